//! Rewrites products for half.
//!
//! - A Gemm becomes MatMul and Add. onnxruntime accumulates a Gemm in half but a MatMul in float32, and tract has no Gemm in
//!   half with a bias.
//! - A MatMul moves before a Transpose that moves the first axis behind the others. onnxruntime 1.32 fuses the two, and
//!   crashes in float16 while it packs the weight.

use crate::affine::materialize::{Edit, written_anew};
use crate::analysis::Analysis;
use crate::analysis::node_view::At;
use crate::ir::builder::Maker;
use crate::ir::{NodeId, ValueId};
use crate::onnx::tensor::DataType;

/// The edits that rewrite Gemms as MatMul and Add, and that move products before Transposes. A Gemm with a factor (`alpha`,
/// `beta`) or with `transA` stays.
pub(crate) fn product_edits(analysis: &Analysis) -> Vec<Edit> {
    written_anew(analysis, |node, _| {
        without_gemm(analysis, node).or_else(|| before_transpose(analysis, node))
    })
}

/// Whether a node is a product of a constant and a Transpose that moves the first axis behind the others, which onnxruntime
/// fuses.
pub(super) fn reads_moved_batch(analysis: &Analysis, node: NodeId) -> bool {
    moved_batch(analysis, node).is_some()
}

/// The operand of a Transpose before a product with a constant, and the permutation. `None` unless the permutation keeps
/// the order of all axes but the first and the last, and moves the first one behind them.
fn moved_batch(analysis: &Analysis, node: NodeId) -> Option<(ValueId, Vec<usize>)> {
    let graph = &analysis.graph;
    let (value, weight) = (graph.input(node, 0)?, graph.input(node, 1)?);
    let is_product = graph.is(node, "MatMul") && analysis.constants.is_constant(weight);
    let (turn, _) = graph.producer(value).filter(|_| is_product)?;
    let at = analysis.at(turn);
    graph.is(turn, "Transpose").then_some(())?;
    let perm = at.permutation(at.rank(0).ok()?).ok()?;
    let middle = perm.len().checked_sub(2).filter(|&middle| middle > 0)?;
    let moves_batch = perm[..middle].iter().copied().eq(1..=middle);
    Some((at.input(0).ok()?, perm)).filter(|_| moves_batch)
}

/// The product of a matrix with the operand of a Transpose, and the Transpose behind it.
fn before_transpose<'m>(analysis: &'m Analysis, node: NodeId) -> Option<Maker<'m>> {
    let (value, perm) = moved_batch(analysis, node)?;
    let at = analysis.at(node);
    let keeps_channels = perm.last() == Some(&(perm.len() - 1));
    (keeps_channels && at.rank(1) == Ok(2)).then_some(())?;
    let mut maker = Maker::new(&analysis.graph, node);
    let [value, weight] =
        [value, at.input(1).ok()?].map(|operand| analysis.graph.value_name(operand));
    let product = maker.op("MatMul", &[value, weight], vec![]);
    let perm: Vec<i64> = perm.into_iter().map(|axis| axis as i64).collect();
    maker.transpose(&product, &perm);
    Some(maker)
}

fn without_gemm<'m>(analysis: &'m Analysis, node: NodeId) -> Option<Maker<'m>> {
    let (graph, at) = (&analysis.graph, analysis.at(node));
    let is_plain = graph.is(node, "Gemm") && has_no_factor(&at) && at.attr("transA", 0) == Ok(0);
    let [value, weight] = [0, 1].map(|slot| graph.input(node, slot));
    let (value, weight) = (value?, weight.filter(|_| is_plain)?);
    let mut maker = Maker::new(graph, node);
    let name = graph.value_name(weight);
    let turned = if at.attr("transB", 0) == Ok(0) {
        name.to_owned()
    } else {
        // If another node reads the weight too, the Gemm stays, because a transposed copy would
        // make the file larger.
        graph.only_reader(weight)?;
        let recipe = at.constant(1).ok()?.transpose(&[1, 0])?;
        maker.weight(DataType::Float, &recipe, name, vec![0])
    };
    let is_float = analysis.facts.data_type(weight) == Some(DataType::Float);
    is_float.then_some(())?;
    let product = maker.op_in_place("MatMul", &[graph.value_name(value), &turned], vec![]);
    if let Some(bias) = graph.input(node, 2) {
        maker.op("Add", &[&product, graph.value_name(bias)], vec![]);
    }
    Some(maker)
}

/// Whether both factors of a Gemm, `alpha` and `beta`, are 1.
fn has_no_factor(at: &At) -> bool {
    ["alpha", "beta"]
        .iter()
        .all(|name| at.attr_float(name, 1.0) == Ok(1.0))
}
