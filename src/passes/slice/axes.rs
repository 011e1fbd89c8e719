//! Determines which part of each operand a node reads to compute one place along an axis of all its
//! outputs. Also determines whether the node can be repeated for a part of the places.

use crate::analysis::Analysis;
use crate::analysis::node_view::At;
use crate::ir::NodeId;
use crate::onnx::operator::Category;
use crate::ops::axes::{self, AxisRead};
use crate::shape::facts::extent;

/// The part of an operand that is read to compute one place along an axis of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PartRead {
    /// The place with the same index along this axis.
    Same(usize),
    /// Any place. Every part reads the whole operand, which may be broadcast.
    Whole,
}

/// The part of each operand that is read to compute one place along an axis of all outputs of a
/// node. `None` if places depend on each other or are unknown, or if the node cannot be repeated
/// for a part of them.
pub(super) fn reads(analysis: &Analysis, node: NodeId, axis: usize) -> Option<Vec<PartRead>> {
    let at = analysis.at(node);
    let mut found = None;
    for (slot, output) in analysis.graph.outputs(node).iter().enumerate() {
        let readers = output.map(|output| analysis.graph.readers(output));
        if readers.is_none_or(|readers| slot > 0 && readers.is_empty()) {
            continue;
        }
        let reads = output_reads(&at, slot, axis)?;
        if *found.get_or_insert_with(|| reads.clone()) != reads {
            return None;
        }
    }
    let reads = found.filter(|reads| can_be_repeated(&at, axis, reads))?;
    reads.into_iter().map(read).collect()
}

/// The part of each operand that is read to compute one place along an axis of an output. `None` if
/// the axis has extent 1.
fn output_reads(at: &At, slot: usize, axis: usize) -> Option<Vec<AxisRead>> {
    let dim = at.output_shape(slot).ok()?.get(axis)?.clone();
    (extent(&dim) != Some(1)).then(|| axes::reads(at, slot, axis))
}

fn read(read: AxisRead) -> Option<PartRead> {
    match read {
        AxisRead::Same(axis) => Some(PartRead::Same(axis)),
        AxisRead::All | AxisRead::Absent | AxisRead::Picked { .. } => Some(PartRead::Whole),
        AxisRead::Strided { .. } | AxisRead::Unknown => None,
    }
}

/// Operators that can compute a part of their result from the whole first operand and a part of
/// another operand.
const PARTS_OF_LATER_OPERANDS: &[&str] = &[
    "Conv",
    "Einsum",
    "FusedMatMul",
    "Gather",
    "GatherElements",
    "GatherND",
    "Gemm",
    "MatMul",
];

/// Whether the node computes a part of its result if it reads parts of its operands. The node must
/// not name the extent of the axis, except in a shape that can be rewritten. The part must take its
/// places from an operand: a Softmax along the axis, for example, reads all places for each result.
fn can_be_repeated(at: &At, axis: usize, reads: &[AxisRead]) -> bool {
    let op = at.proto().op_type();
    let is_along = reads.iter().any(|read| matches!(read, AxisRead::Same(_)));
    let is_first_cut = !matches!(reads.first(), Some(AxisRead::All | AxisRead::Picked { .. }));
    if !(is_along || op == "Expand") || !(is_first_cut || PARTS_OF_LATER_OPERANDS.contains(&op)) {
        return false;
    }
    match op {
        // A part may have extent 1, and a Squeeze without axes would remove the axis.
        "Squeeze" => matches!(at.list("axes"), Ok(Some(_))),
        "Conv" => axis != 1 || at.attr("group", 1) == Ok(1),
        "Resize" => at.input(3).is_err(),
        _ => true,
    }
}

/// Operators that engines run even if an extent is 0, in addition to the categories of
/// [`takes_no_places`].
const TAKE_NO_PLACES: &[&str] = &[
    "AveragePool",
    "BatchNormalization",
    "Cast",
    "Concat",
    "DepthToSpace",
    "InstanceNormalization",
    "LayerNormalization",
    "LogSoftmax",
    "MaxPool",
    "Pad",
    "Resize",
    "RMSNormalization",
    "Softmax",
    "Trilu",
];

/// Whether a node can compute a part without places. onnxruntime refuses some operators without
/// elements, such as Attention and GroupNormalization, and an Einsum without batches ends its
/// process.
pub(super) fn takes_no_places(analysis: &Analysis, node: NodeId) -> bool {
    let (domain, op) = analysis.graph.domain_op(node);
    let is_usual = matches!(
        analysis.graph.category(node),
        Some(
            Category::Movement
                | Category::Selection
                | Category::Arithmetic
                | Category::Elementwise
                | Category::MatrixProduct
                | Category::Layer
                | Category::Reduction
        )
    );
    matches!(domain, "" | "ai.onnx") && (is_usual || TAKE_NO_PLACES.contains(&op))
}

/// The axis of a node's outputs along which each place reads the same place of the operand at
/// `slot`, along the axis `along` of that operand. `None` if there is no such axis.
pub(super) fn carried(
    analysis: &Analysis,
    node: NodeId,
    slot: usize,
    along: usize,
) -> Option<usize> {
    let rank = analysis.at(node).output_rank(0).ok()?;
    (0..rank).find(|&axis| {
        let reads = reads(analysis, node, axis);
        reads.is_some_and(|reads| reads.get(slot) == Some(&PartRead::Same(along)))
    })
}
