//! Finds which part of each input a node reads to compute one place along an axis of an output.
//!
//! A pass asks about a node, an output and an axis, and gets an [`AxisRead`] for each input. The
//! answer holds for all extents, and for all places along the other axes. For example, place `i`
//! along the tokens of a Softmax over channels reads only place `i` of its input, so a selection of
//! tokens can move from after the Softmax to before it. All attributes, ranks and extents that
//! affect the answer are checked. If the operator, or something that is checked, is unknown, the
//! answer for each input is [`AxisRead::Unknown`].
//!
//! Inputs that hold shapes, axes or repeats are parameters of the operator, for which the answer is
//! [`AxisRead::All`]. A pass that changes an extent updates such inputs of Reshape, Expand, Resize
//! and Split.

mod axes_before;
mod elementwise;
mod layers;
mod movement;
mod normalizers;
mod products;
mod rows;

pub(crate) use axes_before::axes_before;
pub(crate) use rows::PlaceAxis;

use crate::analysis::node_view::At;
use crate::refusal::Reason;
use crate::shape::facts::{extent, same};

/// The part of an input that is read to compute place `i` along an axis of an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AxisRead {
    /// Place `i` along this axis of the input, whose extent equals that of the output's axis.
    Same(usize),
    /// Possibly every element of the input: the operator mixes all places, or no axis of the input
    /// corresponds to the output's axis.
    All,
    /// Elements that do not depend on `i`: the input is broadcast, because it lacks the axis, or
    /// because its extent along the axis is known to be 1. Also the answer for an absent input.
    Absent,
    /// Place `start + i · step` along this axis of the input.
    Strided {
        /// The axis of the input.
        axis: usize,
        /// The place that output place 0 reads.
        start: usize,
        /// The distance between successive places, at least 1.
        step: usize,
    },
    /// The places along this axis that the indices at place `i` of another input select.
    Picked {
        /// The axis of the input.
        axis: usize,
        /// The input that holds the indices.
        indices: usize,
    },
    /// Unknown.
    Unknown,
}

/// The parts of the inputs that are read to compute a place along an axis of an output, in the
/// order of the inputs.
pub(crate) fn reads(at: &At, output: usize, axis: usize) -> Vec<AxisRead> {
    known_reads(at, output, axis).unwrap_or_else(|| vec![AxisRead::Unknown; at.arity()])
}

/// Like [`reads`], but `None` if the axis does not exist, or if the answer is unknown.
fn known_reads(at: &At, output: usize, axis: usize) -> Option<Vec<AxisRead>> {
    if axis >= at.output_rank(output).ok()? {
        return None;
    }
    let reads = read(at, output, axis).ok()?;
    (reads.len() == at.arity()).then_some(reads)
}

/// The reads of a node by the rule of its operator. Returns an error if the operator has no rule,
/// or if the rule does not cover the node.
fn read(at: &At, output: usize, axis: usize) -> Result<Vec<AxisRead>, Reason> {
    let (domain, op) = at.graph.domain_op(at.node);
    if !matches!(domain, "" | "ai.onnx" | "com.microsoft") {
        return Err(at.not_linear());
    }
    let is_own = domain != "com.microsoft";
    if output > 0 {
        return match op {
            "Split" if is_own => movement::split(at, output, axis),
            "SkipLayerNormalization" | "SkipSimplifiedLayerNormalization"
                if !is_own && output == 3 =>
            {
                normalizers::skip_sum(at, axis)
            }
            _ => Err(at.not_linear()),
        };
    }
    let family = elementwise::read(at, (is_own, op), axis)
        .or_else(|| products::read(at, (is_own, op), axis))
        .or_else(|| normalizers::read(at, (is_own, op), axis));
    let found = match family {
        None if is_own => movement::read(at, op, axis).or_else(|| layers::read(at, op, axis)),
        family => family,
    };
    found.unwrap_or_else(|| Err(at.not_linear()))
}

/// The reads of operands that broadcast. `places` has the axis of each operand that corresponds to
/// the output's axis; `None` for an operand without it.
///
/// Returns an error unless all extents that are not known to be 1 are known to be equal, because
/// otherwise only a run decides which operands broadcast.
fn broadcast(at: &At, places: &[Option<usize>]) -> Result<Vec<AxisRead>, Reason> {
    let mut varying = vec![];
    for (slot, place) in places.iter().enumerate() {
        if let &Some(axis) = place {
            let dim = at
                .shape(slot)?
                .get(axis)
                .cloned()
                .ok_or(Reason::UnknownShape)?;
            if extent(&dim) != Some(1) {
                varying.push((slot, axis, dim));
            }
        }
    }
    if !varying.windows(2).all(|pair| same(&pair[0].2, &pair[1].2)) {
        return Err(Reason::UnknownShape);
    }
    let mut reads = vec![AxisRead::Absent; at.arity()];
    for (slot, axis, _) in varying {
        reads[slot] = AxisRead::Same(axis);
    }
    Ok(reads)
}

/// The axis of an operand of rank `own` that corresponds to an axis of a result of rank `rank`. The
/// shapes are aligned at their last axes. `None` if the operand lacks the axis.
fn aligned(axis: usize, rank: usize, own: usize) -> Option<usize> {
    (axis + own).checked_sub(rank)
}

/// The axis of each operand that corresponds to an axis of a result of rank `rank`; `None` for
/// absent inputs, and for those in `left_out`.
fn aligned_places(
    at: &At,
    axis: usize,
    rank: usize,
    left_out: &[usize],
) -> Result<Vec<Option<usize>>, Reason> {
    let mut places = vec![None; at.arity()];
    for (slot, place) in places.iter_mut().enumerate() {
        if at.input(slot).is_ok() && !left_out.contains(&slot) {
            *place = aligned(axis, rank, at.rank(slot)?);
        }
    }
    Ok(places)
}

/// Returns `read` for the first input and `others` for the other inputs.
fn first(at: &At, read: AxisRead, others: AxisRead) -> Vec<AxisRead> {
    let mut reads = vec![others; at.arity()];
    if let Some(first) = reads.first_mut() {
        *first = read;
    }
    reads
}

/// The reads of a node whose output axis corresponds to axis `axis` of the first input. The other
/// inputs are parameters, which are read as a whole.
fn kept(at: &At, axis: usize) -> Vec<AxisRead> {
    first(at, AxisRead::Same(axis), AxisRead::All)
}

#[cfg(all(test, feature = "cli"))]
mod tests;
