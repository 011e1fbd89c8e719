//! Rewrites Gemms as MatMul and Add. onnxruntime accumulates a Gemm in half but a MatMul in
//! float32, and tract has no Gemm in half with a bias.

use crate::affine::materialize::{Edit, written_anew};
use crate::analysis::Analysis;
use crate::analysis::node_view::At;
use crate::ir::NodeId;
use crate::ir::builder::Maker;
use crate::onnx::tensor::DataType;

/// The edits that rewrite Gemms as MatMul and Add. A Gemm with a factor (`alpha`, `beta`) or with
/// `transA` stays.
pub(crate) fn without_gemm(analysis: &Analysis) -> Vec<Edit> {
    written_anew(analysis, |node, _| product(analysis, node))
}

fn product<'m>(analysis: &'m Analysis, node: NodeId) -> Option<Maker<'m>> {
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
