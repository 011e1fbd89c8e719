//! Writes a GatherND that takes all places of a value in order as an Unsqueeze of the value.
//!
//! torch's `vmap` over a padding mask takes `mask[b, k]` for all b and k. This is exported as two
//! Ranges that are expanded to each other's axes, a Concat of both, and a GatherND.

use ndarray::{ArrayD, Axis};

use crate::affine::materialize::{Edit, written_anew};
use crate::analysis::Analysis;
use crate::analysis::axis_factors::LayoutMap;
use crate::analysis::node_view::At;
use crate::ir::axes::axis;
use crate::ir::builder::Maker;
use crate::ir::{NodeId, ValueId};
use crate::onnx::operator::Category;
use crate::onnx::tensor::DataType;
use crate::passes::canonicalize::identity_selection::constant;
use crate::shape::facts::{extent, same};

/// The longest chain of operators through which indices are followed.
const DEPTH: usize = 12;

/// The edits that replace each GatherND that takes all places in order.
pub(crate) fn edits(analysis: &Analysis) -> Vec<Edit> {
    written_anew(analysis, |node, _| as_unsqueeze(analysis, node))
}

/// Writes the selection of a GatherND as an Unsqueeze of the value. `None` if it selects other
/// places or another order.
fn as_unsqueeze<'m>(analysis: &'m Analysis, gather: NodeId) -> Option<Maker<'m>> {
    let Analysis { graph, facts, .. } = analysis;
    let at = analysis.at(gather);
    let is_plain = graph.is(gather, "GatherND")
        && at.only_attributes(&["batch_dims"]).is_ok()
        && at.attr("batch_dims", 0) == Ok(0);
    let (value, indices) = (at.input(0).ok().filter(|_| is_plain)?, at.input(1).ok()?);
    let (own, mut made) = (facts.shape(value)?, facts.shape(indices)?);
    let count = extent(&made.pop()?).filter(|&count| count > 0 && count <= own.len())?;
    let axes = counted_axes(analysis, indices, count)?;
    let takes_all = axes
        .iter()
        .zip(&own)
        .all(|(&axis, dim)| made.get(axis).is_some_and(|made| same(made, dim)));
    if !axes.is_sorted_by(|one, next| one < next) || !takes_all {
        return None;
    }
    let new: Vec<usize> = (0..made.len())
        .filter(|axis| !axes.contains(axis))
        .collect();
    let mut maker = Maker::new(graph, gather);
    if new.is_empty() {
        maker.op("Identity", &[graph.value_name(value)], vec![]);
        return Some(maker);
    }
    let new: Vec<i64> = new
        .into_iter()
        .map(|axis| (extent(&made[axis]) == Some(1)).then_some(axis as i64))
        .collect::<Option<_>>()?;
    maker.unsqueeze(graph.value_name(value), &new);
    Some(maker)
}

/// For each place of the last axis, the axis along which the indices at that place count up. `None`
/// if they do not, or if this is not known.
fn counted_axes(analysis: &Analysis, indices: ValueId, count: usize) -> Option<Vec<usize>> {
    let graph = &analysis.graph;
    if let Some(all) = constant(analysis, indices) {
        let last = Axis(all.ndim() - 1);
        return (0..count)
            .map(|place| counted_axis(&all.index_axis(last, place).to_owned()))
            .collect();
    }
    let (node, _) = graph.producer(indices)?;
    let at = analysis.at(node);
    let rank = at.rank(0).ok()?;
    let is_last = graph.is(node, "Concat")
        && at.only_attributes(&["axis"]).is_ok()
        && at
            .attr("axis", 0)
            .is_ok_and(|named| axis(named, rank) == Ok(rank - 1));
    let parts = graph.inputs(node).iter().map(|part| {
        let part = (*part).filter(|&part| analysis.facts.extent(part, rank - 1) == Some(1))?;
        along(analysis, part, DEPTH).filter(|&axis| axis + 1 < rank)
    });
    let parts: Vec<usize> = parts.collect::<Option<_>>()?;
    (is_last && parts.len() == count).then_some(parts)
}

/// The axis along which a value has the elements 0, 1, … up to the last place, while it is constant
/// along all other axes. `None` if there is no such axis.
fn along(analysis: &Analysis, value: ValueId, depth: usize) -> Option<usize> {
    let Analysis { graph, facts, .. } = analysis;
    if let Some(constant) = constant(analysis, value) {
        return counted_axis(&constant);
    }
    let (node, _) = graph.producer(value)?;
    let at: At = analysis.at(node);
    let left = depth.checked_sub(1)?;
    match graph.op(node)? {
        "Range" => {
            (at.ints(0) == Ok(Some(vec![0])) && at.ints(2) == Ok(Some(vec![1]))).then_some(0)
        }
        "Cast" if facts.data_type(value) == Some(DataType::Int64) => {
            along(analysis, at.input(0).ok()?, left)
        }
        "Expand" => {
            let before = along(analysis, at.input(0).ok()?, left)?;
            let (from, to) = (at.shape(0).ok()?, facts.shape(value)?);
            let behind = before + to.len().checked_sub(from.len())?;
            // If the Expand repeats along this axis, all elements along it are equal.
            same(&from[before], &to[behind]).then_some(behind)
        }
        _ if graph.category(node) == Some(Category::Movement) => {
            let before = along(analysis, at.input(0).ok()?, left)?;
            let (from, to) = (at.shape(0).ok()?, facts.shape(value)?);
            let mut trace = LayoutMap::new(&from);
            trace.follow(at.proto(), &to)?;
            trace.places(&[before])?.first().copied()
        }
        _ => None,
    }
}

/// The axis along which numbers count 0, 1, …, while they are constant along all other axes. `None`
/// if there is none.
fn counted_axis(numbers: &ArrayD<i64>) -> Option<usize> {
    (0..numbers.ndim()).find(|&axis| {
        numbers
            .indexed_iter()
            .all(|(at, &number)| at[axis] as i64 == number)
    })
}
