//! Writes a product with its bias as one Gemm. onnxruntime fuses them on more than two axes only if
//! all extents are known.
//!
//! Before: `x·W + b` as MatMul and Add, with x of any batch. After: a Reshape to two axes, a Gemm,
//! and a Reshape back. This is exact, because the rows of a product do not depend on how they are
//! arranged.
//!
//! A product with a Transpose on one side stays, since engines fuse that Transpose into a MatMul,
//! but not through a Reshape. With a Transpose on both sides, as in layers that mix heads, the Gemm
//! is faster in onnxruntime and as fast in the other engines.

use crate::affine::materialize::Edit;
use crate::affine::recognize::Replacement;
use crate::analysis::Analysis;
use crate::ir::builder::Maker;
use crate::ir::{NodeId, ValueId};
use crate::onnx::tensor::DataType;
use crate::passes::legalize::dense_layer::Layer;
use crate::shape::facts::extent;

/// The edits of all layers that become a Gemm.
pub(super) fn edits(analysis: &Analysis) -> Vec<Edit> {
    analysis
        .graph
        .order()
        .iter()
        .filter_map(|&matmul| as_gemm(analysis, matmul))
        .collect()
}

/// Writes a MatMul and the Add of its bias as one Gemm. `None` unless exactly one leading extent is
/// unknown.
fn as_gemm(analysis: &Analysis, matmul: NodeId) -> Option<Edit> {
    let Analysis { graph, facts, .. } = analysis;
    let Layer {
        add,
        value,
        weight,
        bias,
        output,
        rows,
        columns,
    } = Layer::find(analysis, matmul)?;
    let shape = facts.shape(value)?;
    let (leading, _) = shape.split_at(shape.len().checked_sub(1)?);
    let arranged: Vec<Option<usize>> = leading.iter().map(extent).collect();
    // A Reshape can infer one unknown extent, as `-1`. If all extents are known, onnxruntime fuses
    // the operators itself.
    let is_one_open = arranged.iter().filter(|extent| extent.is_none()).count() == 1;
    let is_float = facts.data_type(output) == Some(DataType::Float);
    if !is_float || arranged.len() < 2 || !is_one_open || arranged.contains(&Some(0)) {
        return None;
    }
    if has_one_transpose(analysis, value, output) {
        return None;
    }
    let mut maker = Maker::new(graph, matmul);
    let [value, weight, bias] = [value, weight, bias].map(|operand| graph.value_name(operand));
    let flat = maker.reshape(value, &[-1, rows as i64]);
    let product = maker.op_in_place("Gemm", &[&flat, weight, bias], vec![]);
    let back = arranged
        .iter()
        .map(|extent| extent.map_or(-1, |extent| extent as i64));
    maker.reshape(&product, &back.chain([columns as i64]).collect::<Vec<_>>());
    let (made, constants) = maker.finish(graph.value_name(output));
    let replacement = Replacement {
        nodes: vec![matmul, add],
        made,
        constants,
    };
    Some(Edit::replacing(graph, matmul, replacement))
}

/// Whether a Transpose either produces a layer's input or is the only reader of its output.
/// `false` if both hold.
fn has_one_transpose(analysis: &Analysis, value: ValueId, output: ValueId) -> bool {
    let graph = &analysis.graph;
    let neighbours = [graph.producer(value), graph.only_reader(output)];
    let transposes = neighbours
        .into_iter()
        .flatten()
        .filter(|&(node, _)| graph.is(node, "Transpose"));
    transposes.count() == 1
}
