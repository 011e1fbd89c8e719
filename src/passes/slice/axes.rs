//! How a node reads its operands for one place along an axis of all that it makes, and whether it can be repeated for a
//! part of the places.

use crate::analysis::Analysis;
use crate::analysis::node_view::At;
use crate::ir::NodeId;
use crate::ops::axes::{self, AxisRead};
use crate::shape::facts::extent;

/// How one place along an axis of the result reads an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartRead {
    /// The place of the same number along this axis.
    Same(usize),
    /// Any place of it, or it is broadcast: every part reads all of the operand.
    Whole,
}

/// How a node reads each operand for one place along an axis of all its outputs; `None` where
/// places depend on each other or are unknown, and where the node cannot be repeated for a part of
/// them.
pub fn reads(analysis: &Analysis, node: NodeId, axis: usize) -> Option<Vec<PartRead>> {
    let at = analysis.at(node);
    let outputs = analysis.graph.outputs(node);
    let is_made = |slot: &usize| {
        let value = outputs[*slot];
        value.is_some_and(|value| *slot == 0 || !analysis.graph.readers(value).is_empty())
    };
    let of_output = |slot: usize| {
        let dim = at.output_shape(slot).ok()?.get(axis)?.clone();
        (extent(&dim) != Some(1)).then(|| axes::reads(&at, slot, axis))
    };
    let mut all = (0..outputs.len()).filter(is_made).map(of_output);
    let reads = all.next()??;
    if !all.all(|other| other.as_ref() == Some(&reads)) || !can_be_repeated(&at, axis, &reads) {
        return None;
    }
    reads.into_iter().map(read).collect()
}

fn read(read: AxisRead) -> Option<PartRead> {
    match read {
        AxisRead::Same(axis) => Some(PartRead::Same(axis)),
        AxisRead::All | AxisRead::Absent | AxisRead::Picked { .. } => Some(PartRead::Whole),
        AxisRead::Strided { .. } | AxisRead::Unknown => None,
    }
}

/// Operators that make a part of their result of all of the first operand and a part of another.
const OF_ANOTHER: &[&str] = &[
    "Conv",
    "Einsum",
    "FusedMatMul",
    "Gather",
    "GatherElements",
    "GatherND",
    "Gemm",
    "MatMul",
];

/// Whether the node computes a part of its result when it reads parts of its operands. It names no extent of the axis, but
/// for a shape that can be written anew; and the part has its places from an operand: a Softmax along the axis makes all
/// places of all, however few are wanted.
fn can_be_repeated(at: &At, axis: usize, reads: &[AxisRead]) -> bool {
    let op = at.proto().op_type();
    let is_along = reads.iter().any(|read| matches!(read, AxisRead::Same(_)));
    let is_first_cut = !matches!(reads.first(), Some(AxisRead::All | AxisRead::Picked { .. }));
    if !(is_along || op == "Expand") || !(is_first_cut || OF_ANOTHER.contains(&op)) {
        return false;
    }
    match op {
        // A part may have one place, and the axis is not to vanish then.
        "Squeeze" => matches!(at.list("axes"), Ok(Some(_))),
        "Conv" => axis != 1 || at.attr("group", 1) == Ok(1),
        "Resize" => at.input(3).is_err(),
        _ => true,
    }
}

/// The axis of what a node makes whose places come from those along an axis of one of its operands.
pub fn carried(analysis: &Analysis, node: NodeId, slot: usize, along: usize) -> Option<usize> {
    let rank = analysis.at(node).output_rank(0).ok()?;
    let is_carried = |axis: &usize| {
        let reads = reads(analysis, node, *axis);
        reads.is_some_and(|reads| reads.get(slot) == Some(&PartRead::Same(along)))
    };
    (0..rank).find(is_carried)
}
