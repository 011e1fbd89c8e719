//! Values that are split into sequences, and the parts that are taken out of these.
//!
//! A sequence is no tensor and has no shape; the shape of a part follows from the value that the node splits.

use std::rc::Rc;

use tract_onnx::prelude::InferenceFact;
use tract_onnx::tract_hir::infer::Factoid;

use crate::ir::axes::axis;
use crate::ir::{Graph, NodeId, ValueId};
use crate::shape::encode::{ints_of, rank, type_alone};
use crate::shape::extents::{Shape, extent};
use crate::shape::rules::{closed, shape};

/// Sequences of more parts are left alone: each would be an output of one operator.
const MOST: usize = 1 << 10;

/// How a SplitToSequence splits a value.
pub struct SequenceParts {
    /// The axis.
    pub axis: usize,
    /// How many places of the axis each part has.
    pub extents: Vec<usize>,
    /// Whether parts have the axis.
    pub keeps_axis: bool,
}

impl SequenceParts {
    /// The parts that a node makes, from the extents of values and from integers that are known before a run, with the number
    /// of axes that these have; `None` for every other node, and where it is not known which parts there are.
    pub fn find(
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

    /// The number of the part that a SequenceAt takes, from the integer that it reads.
    pub fn taken(&self, position: i64) -> Option<usize> {
        axis(position, self.extents.len()).ok()
    }
}

/// Parts of `number` places each; the last one may be shorter.
fn by_number(whole: usize, number: usize) -> Option<Vec<usize>> {
    if number == 0 || whole.div_ceil(number) > MOST {
        return None;
    }
    let starts = (0..whole).step_by(number);
    Some(starts.map(|start| number.min(whole - start)).collect())
}

/// Parts by a list of extents that covers the whole axis.
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

/// The facts about a sequence, whose type is that of its parts, and about the result of a
/// SequenceAt; `None` for every other node.
pub fn infer(
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
