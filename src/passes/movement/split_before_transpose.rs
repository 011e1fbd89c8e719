//! Moves a Split before a Transpose.
//!
//! Before: one Transpose of queries, keys and values, `[batch, token, 3, head, channel]`, moves the
//! axis of extent 3 to the front, and a Split or Gathers select along that axis. After: the Split
//! or the Gathers come first, and each part has its own Transpose. The Transposes move as many
//! elements as before, but with one axis less. onnxruntime and tract transpose four axes faster
//! than five if the last axis moves. If the Transpose keeps the last axis in its position, the
//! original form stays, because it is as fast, and other engines fuse it.

use crate::affine::materialize::Edit;
use crate::affine::recognize::Replacement;
use crate::analysis::Analysis;
use crate::analysis::node_view::At;
use crate::ir::axes::axis;
use crate::ir::builder::{Maker, int};
use crate::ir::{Graph, NodeId, Reader, ValueId};
use crate::shape::facts::extent;

/// The edits that move a Split before a Transpose.
pub(crate) fn edits(analysis: &Analysis) -> Vec<Edit> {
    analysis
        .graph
        .order()
        .iter()
        .filter_map(|&node| split_first(analysis, node))
        .collect()
}

/// The edit that moves a Split or Gathers before a Transpose. `None` if the result of the Transpose
/// has other readers, or if the parts would still need a Transpose that keeps the last axis.
fn split_first(analysis: &Analysis, node: NodeId) -> Option<Edit> {
    let graph = &analysis.graph;
    let at = analysis.at(node);
    let (source, whole) = (at.input(0).ok()?, graph.only_output(node)?);
    if !graph.is(node, "Transpose")
        || at.only_attributes(&["perm"]).is_err()
        || analysis.constants.is_constant(source)
    {
        return None;
    }
    let perm = at.permutation(at.rank(0).ok()?).ok()?;
    let (along, parts, nodes) = parts(analysis, whole, perm.len())?;
    let from = perm[along];
    let order: Vec<i64> = perm
        .iter()
        .filter(|&&axis| axis != from)
        .map(|&axis| (axis - usize::from(axis > from)) as i64)
        .collect();
    let stays = (0..).zip(&order).all(|(place, &axis)| place == axis);
    if !stays && perm.last().is_none_or(|&last| last + 1 == perm.len()) {
        return None;
    }
    let mut maker = Maker::new(graph, node);
    write(&mut maker, graph, source, from as i64, &parts, &order);
    let (made, constants) = maker.done();
    let replacement = Replacement {
        nodes: [vec![node], nodes].concat(),
        made,
        constants,
    };
    Some(Edit::replacing(graph, node, replacement))
}

/// Writes the parts of a value along an axis, and a Transpose for each part whose axes must be
/// reordered.
fn write(
    maker: &mut Maker,
    graph: &Graph,
    source: ValueId,
    along: i64,
    parts: &[WithoutAxis],
    order: &[i64],
) {
    let value = graph.value_name(source);
    let is_in_order = order.is_sorted();
    let split = match parts[0] {
        WithoutAxis::Gathered(..) => vec![],
        _ => maker.split(value, along, &vec![1; parts.len()]),
    };
    for (place, part) in parts.iter().enumerate() {
        let mut name = match *part {
            WithoutAxis::Gathered(_, index) => {
                let axis = vec![int("axis", along)];
                maker.op("Gather", &[value, graph.value_name(index)], axis)
            }
            _ => maker.squeeze(&split[place], along),
        };
        if !is_in_order {
            name = maker.transpose(&name, order);
        }
        let made = match *part {
            WithoutAxis::Squeezed(made) | WithoutAxis::Gathered(made, _) => made,
            WithoutAxis::Reshaped(made, node) => {
                let target = graph.input(node, 1);
                let target = target.map_or("", |target| graph.value_name(target));
                let attributes = graph.node(node).attribute.clone();
                maker.op("Reshape", &[&name, target], attributes);
                made
            }
        };
        maker.makes(graph.value_name(made));
    }
}

/// A part of a value at one place of an axis, without that axis.
enum WithoutAxis {
    /// The result of a Squeeze after an output of a Split.
    Squeezed(ValueId),
    /// The result of a Reshape after an output of a Split, and the Reshape.
    Reshaped(ValueId, NodeId),
    /// The result of a Gather, and its index.
    Gathered(ValueId, ValueId),
}

/// The axis along which all readers split a value, the parts, and the nodes that take them. `None`
/// if a reader does anything else.
fn parts(
    analysis: &Analysis,
    whole: ValueId,
    rank: usize,
) -> Option<(usize, Vec<WithoutAxis>, Vec<NodeId>)> {
    let graph = &analysis.graph;
    if let Some((split, 0)) = graph.only_reader(whole)
        && graph.is(split, "Split")
    {
        return split_parts(analysis, split, rank);
    }
    let mut along = None;
    let (mut parts, mut nodes) = (vec![], vec![]);
    for reader in graph.readers(whole) {
        let (axis, part, node) = gathered(analysis, reader, rank)?;
        if *along.get_or_insert(axis) != axis {
            return None;
        }
        parts.push(part);
        nodes.push(node);
    }
    Some((along?, parts, nodes))
}

/// The axis of a Split into parts of extent 1, the parts without that axis, and the nodes. `None`
/// if a part has another extent, or keeps the axis.
fn split_parts(
    analysis: &Analysis,
    split: NodeId,
    rank: usize,
) -> Option<(usize, Vec<WithoutAxis>, Vec<NodeId>)> {
    let along = axis(analysis.at(split).attr("axis", 0).ok()?, rank).ok()?;
    let (mut parts, mut nodes) = (vec![], vec![split]);
    for &part in analysis.graph.outputs(split) {
        let part = part.filter(|&part| analysis.facts.extent(part, along) == Some(1))?;
        let (made, node) = match squeeze_after(analysis, part, along, rank) {
            Some((made, node)) => (WithoutAxis::Squeezed(made), node),
            None => reshaped(analysis, part)?,
        };
        parts.push(made);
        nodes.push(node);
    }
    (parts.len() > 1).then_some((along, parts, nodes))
}

/// The axis, the result and the node of a Gather at a constant index. `None` for other readers.
fn gathered(
    analysis: &Analysis,
    reader: &Reader,
    rank: usize,
) -> Option<(usize, WithoutAxis, NodeId)> {
    let graph = &analysis.graph;
    let Reader::Node { node, input: 0 } = *reader else {
        return None;
    };
    graph.is(node, "Gather").then_some(())?;
    let at = analysis.at(node);
    let along = axis(at.attr("axis", 0).ok()?, rank).ok()?;
    let part = WithoutAxis::Gathered(graph.only_output(node)?, at.input(1).ok()?);
    let is_one_place =
        at.is_constant(1) && at.rank(1) == Ok(0) && at.only_attributes(&["axis"]).is_ok();
    is_one_place.then_some((along, part, node))
}

/// The result and the node of the Squeeze of the axis `along` that is the only reader of a value.
/// `None` if the value has another reader.
pub(crate) fn squeeze_after(
    analysis: &Analysis,
    part: ValueId,
    along: usize,
    rank: usize,
) -> Option<(ValueId, NodeId)> {
    let (node, 0) = analysis.graph.only_reader(part)? else {
        return None;
    };
    let at: At = analysis.at(node);
    let [named] = at.list("axes").ok()??[..] else {
        return None;
    };
    let is_one = analysis.graph.is(node, "Squeeze") && axis(named, rank) == Ok(along);
    is_one.then_some((analysis.graph.only_output(node)?, node))
}

/// The result and the node of the Reshape that is the only reader of a value. `None` for another
/// reader, or if the Reshape may copy extents.
fn reshaped(analysis: &Analysis, part: ValueId) -> Option<(WithoutAxis, NodeId)> {
    let (node, 0) = analysis.graph.only_reader(part)? else {
        return None;
    };
    let target = analysis.facts.extents(analysis.graph.input(node, 1)?)?;
    let copies_none = target
        .iter()
        .all(|dim| dim.is_some() && extent(dim) != Some(0));
    (analysis.graph.is(node, "Reshape") && copies_none).then_some((
        WithoutAxis::Reshaped(analysis.graph.only_output(node)?, node),
        node,
    ))
}
