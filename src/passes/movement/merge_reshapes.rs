//! Merges a Reshape with a movement that keeps the order of all elements, and merges two
//! Unsqueezes.
//!
//! Attention with one head is exported like attention with several: the heads are split off,
//! transposed with an axis of extent 1, transposed back and merged. Keras puts axes of extent 1
//! around a product for each einsum that it writes out.

use crate::affine::materialize::{Edit, written_anew};
use crate::analysis::Analysis;
use crate::analysis::node_view::At;
use crate::ir::axes::axes;
use crate::ir::builder::Maker;
use crate::ir::regions::region_path;
use crate::ir::{NodeId, ValueId};
use crate::shape::facts::{Shape, extent, same};

/// The edits that merge a Reshape with the movement before it, a Reshape without other readers with
/// the movement after it, or two Unsqueezes.
pub(crate) fn edits(analysis: &Analysis) -> Vec<Edit> {
    written_anew(analysis, |node, _| {
        merged(analysis, node)
            .or_else(|| without_ones(analysis, node))
            .or_else(|| unsqueezed_at_once(analysis, node))
    })
}

/// Writes one Reshape in place of a Reshape and a movement before or after it. `None` if they
/// cannot be merged.
fn merged<'m>(analysis: &'m Analysis, node: NodeId) -> Option<Maker<'m>> {
    let (value, extents) = before(analysis, node).or_else(|| behind(analysis, node))?;
    let mut maker = Maker::new(&analysis.graph, node);
    maker.reshape(analysis.graph.value_name(value), &extents);
    Some(maker)
}

/// The value that a Reshape can read instead of a movement's result, and the target extents. `None`
/// if the movement changes the order of the elements, or if a 0 in the target would copy another
/// extent.
fn before(analysis: &Analysis, node: NodeId) -> Option<(ValueId, Vec<i64>)> {
    let (source, named) = target(&analysis.at(node))?;
    let movement = analysis.at(analysis.graph.producer(source)?.0);
    let (value, from, to) = (
        movement.input(0).ok()?,
        movement.shape(0).ok()?,
        analysis.facts.shape(source)?,
    );
    let keeps_order = ones_come_or_go(&movement).is_some() || target(&movement).is_some();
    // A target extent of 0 copies the extent of the axis with the same index.
    let copies_same_extents = named
        .iter()
        .enumerate()
        .filter(|(_, number)| **number == 0)
        .all(|(place, _)| {
            let extents = from.get(place).zip(to.get(place));
            extents.is_some_and(|(from, to)| same(from, to))
        });
    (keeps_order && copies_same_extents).then_some((value, named))
}

/// The input of the Reshape before a movement, and the target extents of one Reshape that replaces
/// both. `None` if no Reshape is before the movement, or if its result has another reader.
fn behind(analysis: &Analysis, node: NodeId) -> Option<(ValueId, Vec<i64>)> {
    let graph = &analysis.graph;
    let at = analysis.at(node);
    let between = at.input(0).ok()?;
    let (source, named) = target(&analysis.at(graph.producer(between)?.0))?;
    let is_alone = graph.only_reader(between).is_some() && !graph.is_output(between);
    let places = ones_come_or_go(&at).filter(|_| is_alone && at.rank(0) == Ok(named.len()))?;
    // A 0 copies the extent of the axis with the same index, so this axis must keep its index. A
    // removed axis must have extent 1.
    let copies_own_extents = places
        .iter()
        .enumerate()
        .all(|(place, axis)| axis.is_none_or(|axis| named[axis] != 0 || axis == place));
    let removes_ones =
        (0..named.len()).all(|axis| places.contains(&Some(axis)) || named[axis] == 1);
    (copies_own_extents && removes_ones).then_some(())?;
    let extents = places
        .into_iter()
        .map(|axis| axis.map_or(1, |axis| named[axis]))
        .collect();
    Some((source, extents))
}

/// Removes the Unsqueeze from a chain of an Unsqueeze, a Transpose and the Reshape `node`. The
/// Transpose and the Reshape are written without the axes of extent 1 that the Unsqueeze adds.
/// `None` if `node` does not end such a chain.
fn without_ones<'m>(analysis: &'m Analysis, node: NodeId) -> Option<Maker<'m>> {
    let graph = &analysis.graph;
    let (turned, named) = target(&analysis.at(node))?;
    let transpose = analysis.at(graph
        .producer(turned)
        .filter(|&(maker, _)| graph.is(maker, "Transpose"))?
        .0);
    let unsqueeze = graph
        .producer(transpose.input(0).ok()?)
        .filter(|&(maker, _)| graph.is(maker, "Unsqueeze"))?
        .0;
    let places = ones_come_or_go(&analysis.at(unsqueeze))?;
    let order = transpose
        .only_attributes(&["perm"])
        .and_then(|()| transpose.permutation(places.len()))
        .ok()?;
    let order: Vec<i64> = order
        .into_iter()
        .filter_map(|axis| Some(places[axis]? as i64))
        .collect();
    let is_beside = region_path(transpose.proto()) == region_path(graph.node(node));
    let is_alone = is_beside && graph.only_reader(turned).is_some() && !graph.is_output(turned);
    // A 0 in the target would now copy the extent of another axis.
    (is_alone && !named.contains(&0)).then_some(())?;
    let mut maker = Maker::new(graph, node);
    let turned = maker.transpose(graph.value_name(graph.input(unsqueeze, 0)?), &order);
    maker.reshape(&turned, &named);
    Some(maker)
}

/// Writes one Unsqueeze that replaces an Unsqueeze and the Unsqueeze before it. `None` if the node
/// or its producer is not an Unsqueeze, or if another node reads the value in between.
fn unsqueezed_at_once<'m>(analysis: &'m Analysis, node: NodeId) -> Option<Maker<'m>> {
    let graph = &analysis.graph;
    let between = graph.input(node, 0)?;
    let (first, _) = graph.producer(between)?;
    let are_two = graph.is(node, "Unsqueeze") && graph.is(first, "Unsqueeze");
    let is_alone = graph.only_reader(between).is_some() && !graph.is_output(between);
    (are_two && is_alone).then_some(())?;
    let [before, behind] = [first, node].map(|node| ones_come_or_go(&analysis.at(node)));
    let (before, behind) = (before?, behind?);
    let new: Vec<i64> = (0..)
        .zip(&behind)
        .filter(|(_, axis)| axis.and_then(|axis| before[axis]).is_none())
        .map(|(place, _)| place)
        .collect();
    let mut maker = Maker::new(graph, node);
    maker.unsqueeze(graph.value_name(graph.input(first, 0)?), &new);
    Some(maker)
}

/// For each axis of a movement's result, the axis of its input, or `None` for a new axis. Returns
/// `None` unless the movement only permutes, adds or removes axes of extent 1.
fn ones_come_or_go(at: &At) -> Option<Vec<Option<usize>>> {
    let shape: Shape = at.shape(0).ok()?;
    let rank = shape.len();
    match at.graph.op(at.node)? {
        "Transpose" => {
            let order = at
                .only_attributes(&["perm"])
                .and_then(|()| at.permutation(rank))
                .ok()?;
            let wide = order
                .iter()
                .filter(|&&axis| extent(&shape[axis]) != Some(1));
            wide.is_sorted()
                .then(|| order.into_iter().map(Some).collect())
        }
        "Unsqueeze" => {
            let rank_after = at.output_rank(0).ok()?;
            let new = listed_axes(at, rank_after)?;
            let mut old = 0..rank;
            let axes = (0..rank_after).map(|axis| match new.contains(&axis) {
                true => None,
                false => old.next(),
            });
            Some(axes.collect())
        }
        "Squeeze" => {
            let removed = listed_axes(at, rank)?;
            let kept = (0..rank).filter(|axis| !removed.contains(axis));
            Some(kept.map(Some).collect())
        }
        _ => None,
    }
}

/// The axes that a Squeeze or an Unsqueeze names. `None` if they are not constant, or left out.
fn listed_axes(at: &At, rank: usize) -> Option<Vec<usize>> {
    at.only_attributes(&["axes"]).ok()?;
    axes(&at.list("axes").ok()??, rank).ok()
}

/// The input of a Reshape, and its constant target extents. `None` if a 0 in the target means an
/// extent of 0, by `allowzero`.
fn target(at: &At) -> Option<(ValueId, Vec<i64>)> {
    let is_fixed = at.graph.is(at.node, "Reshape")
        && at.is_constant(1)
        && at.only_attributes(&["allowzero"]).is_ok();
    let named = is_fixed.then(|| at.ints(1).ok()).flatten()??;
    let is_plain = at.attr("allowzero", 0) == Ok(0) || !named.contains(&0);
    Some((at.input(0).ok().filter(|_| is_plain)?, named))
}
