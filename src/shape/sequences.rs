//! Infers the parts into which a SplitToSequence splits a value, and the parts that a SequenceAt
//! reads.
//!
//! A sequence is not a tensor, so it lacks a shape. The shape of a part follows from the value that
//! is split.

use std::rc::Rc;

use tract_onnx::prelude::InferenceFact;
use tract_onnx::tract_hir::infer::Factoid;

use crate::ir::axes::axis;
use crate::ir::{Graph, NodeId, ValueId};
use crate::shape::encode::{ints_of, rank, type_alone};
use crate::shape::extents::{Shape, extent};
use crate::shape::rules::{closed, shape};

/// The maximum number of parts. A longer sequence is not replaced, because each part would become
/// an output of one operator.
const MOST: usize = 1 << 10;

/// The parts into which a SplitToSequence splits a value.
pub(crate) struct SequenceParts {
    /// The axis that is split.
    pub axis: usize,
    /// The extent of each part along the axis.
    pub extents: Vec<usize>,
    /// Whether parts keep the axis.
    pub keeps_axis: bool,
}

impl SequenceParts {
    /// Finds the parts of a SplitToSequence; `None` for other nodes, or if the parts are unknown.
    /// `shape` returns the extents of a value. `ints` returns its rank and its integers, if they
    /// are known.
    pub(crate) fn find(
        graph: &Graph,
        node: NodeId,
        shape: impl Fn(ValueId) -> Option<Shape>,
        ints: impl Fn(ValueId) -> Option<(Vec<i64>, usize)>,
    ) -> Option<Self> {
        let proto = graph.node(node);
        let is_plain = proto
            .attribute
            .iter()
            .all(|attribute| ["axis", "keepdims"].contains(&attribute.name()));
        let [Some(value), split @ ..] = graph.inputs(node) else {
            return None;
        };
        if !graph.is(node, "SplitToSequence") || !is_plain || split.len() > 1 {
            return None;
        }
        let shape = shape(*value)?;
        let axis = axis(proto.attr_i("axis").ok()?.unwrap_or(0), shape.len()).ok()?;
        let whole = extent(&shape[axis]);
        let (extents, keeps_axis) = match split.first().copied().flatten().map(ints) {
            None => (
                by_number(whole?, 1)?,
                proto.attr_i("keepdims").ok()?.unwrap_or(1) != 0,
            ),
            Some(split) => match split? {
                (number, 0) => (
                    by_number(whole?, usize::try_from(*number.first()?).ok()?)?,
                    true,
                ),
                (list, _) => (by_list(whole, &list)?, true),
            },
        };
        Some(SequenceParts {
            axis,
            extents,
            keeps_axis,
        })
    }

    /// The index of the part that a SequenceAt reads at `position`.
    pub(crate) fn taken(&self, position: i64) -> Option<usize> {
        axis(position, self.extents.len()).ok()
    }
}

/// The extents of parts with `number` places each. The last part may be shorter.
fn by_number(whole: usize, number: usize) -> Option<Vec<usize>> {
    if number == 0 || whole.div_ceil(number) > MOST {
        return None;
    }
    let starts = (0..whole).step_by(number);
    Some(starts.map(|start| number.min(whole - start)).collect())
}

/// The extents of parts given as a list, if they cover the whole axis.
fn by_list(whole: Option<usize>, list: &[i64]) -> Option<Vec<usize>> {
    let extents: Vec<usize> = list
        .iter()
        .map(|&n| usize::try_from(n).ok())
        .collect::<Option<_>>()?;
    let sum = extents
        .iter()
        .try_fold(0_usize, |sum, &extent| sum.checked_add(extent))?;
    (extents.len() <= MOST && whole.is_none_or(|whole| whole == sum)).then_some(extents)
}

/// The fact about a sequence, which has the type of its parts, or the fact about the result of a
/// SequenceAt; `None` for other nodes.
pub(crate) fn infer(
    graph: &Graph,
    node: NodeId,
    facts: &[Rc<InferenceFact>],
) -> Option<Vec<InferenceFact>> {
    if graph.is(node, "SplitToSequence") {
        let value = graph.input(node, 0)?;
        return Some(vec![type_alone(&facts[value.index()])]);
    }
    let [Some(sequence), Some(position)] = graph.inputs(node) else {
        return None;
    };
    let (split, _) = graph
        .producer(*sequence)
        .filter(|_| graph.is(node, "SequenceAt"))?;
    let parts = SequenceParts::find(
        graph,
        split,
        |value| shape(&facts[value.index()]),
        |value| ints(&facts[value.index()]),
    )?;
    let (position, _) = ints(&facts[position.index()])?;
    let taken = parts.taken(*position.first()?)?;
    let mut extents = shape(&facts[graph.input(split, 0)?.index()])?;
    if parts.keeps_axis {
        extents[parts.axis] = Some(parts.extents[taken].into());
    } else {
        extents.remove(parts.axis);
    }
    let part = type_alone(&facts[sequence.index()]);
    Some(vec![part.with_shape(closed(extents))])
}

/// The integers of a value, and its rank.
fn ints(fact: &InferenceFact) -> Option<(Vec<i64>, usize)> {
    Some((ints_of(&*fact.value.concretize()?)?, rank(fact)?))
}
