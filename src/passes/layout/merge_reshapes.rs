//! Movements that keep all elements in their order, beside a Reshape: both are one Reshape. So are two Unsqueezes one.
//!
//! Attention of one head is written as that of several: the heads are split off, brought forward over an axis of one place,
//! brought back and put together. Keras puts axes of one place around a product for each einsum that it writes out.

use crate::affine::materialize::{Edit, written_anew};
use crate::analysis::Analysis;
use crate::analysis::node_view::At;
use crate::ir::axes::axes;
use crate::ir::builder::Maker;
use crate::ir::regions::way;
use crate::ir::{NodeId, ValueId};
use crate::shape::facts::{Shape, extent, same};

/// The edits: a movement behind a Reshape with one reader, or a Reshape behind a movement.
pub fn edits(analysis: &Analysis) -> Vec<Edit> {
    let graph = &analysis.graph;
    written_anew(analysis, |node, _| {
        let merged = |(value, extents): (ValueId, Vec<i64>)| {
            let mut maker = Maker::new(graph, node);
            maker.reshape(graph.value_name(value), &extents);
            maker
        };
        let as_one = before(analysis, node)
            .or_else(|| behind(analysis, node))
            .map(merged);
        as_one
            .or_else(|| without_ones(analysis, node))
            .or_else(|| unsqueezed_at_once(analysis, node))
    })
}

/// The input that a Reshape can read instead of a movement's result, and the target extents.
fn before(analysis: &Analysis, node: NodeId) -> Option<(ValueId, Vec<i64>)> {
    let (source, named) = target(&analysis.at(node))?;
    let movement = analysis.at(analysis.graph.producer(source)?.0);
    let (value, from, to) = (
        movement.input(0).ok()?,
        movement.shape(0).ok()?,
        analysis.facts.shape(source)?,
    );
    let keeps_order = ones_come_or_go(&movement).is_some() || target(&movement).is_some();
    let stays = |(place, &number): (usize, &i64)| {
        let alike = || Some(same(from.get(place)?, to.get(place)?));
        number != 0 || alike() == Some(true)
    };
    (keeps_order && named.iter().enumerate().all(stays)).then_some((value, named))
}

/// The input of the Reshape before a movement, and the target extents of both.
fn behind(analysis: &Analysis, node: NodeId) -> Option<(ValueId, Vec<i64>)> {
    let graph = &analysis.graph;
    let at = analysis.at(node);
    let between = at.input(0).ok()?;
    let (source, named) = target(&analysis.at(graph.producer(between)?.0))?;
    let is_alone = graph.only_reader(between).is_some() && !graph.is_output(between);
    let places = ones_come_or_go(&at).filter(|_| is_alone && at.rank(0) == Ok(named.len()))?;
    // A 0 copies the extent at its own place, and a removed axis has one place.
    let stays = |(place, &axis): (usize, &Option<usize>)| {
        axis.is_none_or(|axis| named[axis] != 0 || axis == place)
    };
    let goes = |axis: usize| places.contains(&Some(axis)) || named[axis] == 1;
    let is_told = places.iter().enumerate().all(stays) && (0..named.len()).all(goes);
    is_told.then(|| {
        (
            source,
            places
                .into_iter()
                .map(|axis| axis.map_or(1, |axis| named[axis]))
                .collect(),
        )
    })
}

/// A Reshape of what a Transpose puts in another order, without the axes of one place that an Unsqueeze gave it before.
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
    let is_beside = way(transpose.proto()) == way(graph.node(node));
    let is_alone = is_beside && graph.only_reader(turned).is_some() && !graph.is_output(turned);
    // A 0 takes the extent at a place, where another one is then.
    (is_alone && !named.contains(&0)).then_some(())?;
    let mut maker = Maker::new(graph, node);
    let turned = maker.transpose(graph.value_name(graph.input(unsqueeze, 0)?), &order);
    maker.reshape(&turned, &named);
    Some(maker)
}

/// One Unsqueeze that replaces two.
fn unsqueezed_at_once<'m>(analysis: &'m Analysis, node: NodeId) -> Option<Maker<'m>> {
    let graph = &analysis.graph;
    let between = graph.input(node, 0)?;
    let (first, _) = graph.producer(between)?;
    let are_two = graph.is(node, "Unsqueeze") && graph.is(first, "Unsqueeze");
    let is_alone = graph.only_reader(between).is_some() && !graph.is_output(between);
    (are_two && is_alone).then_some(())?;
    let [before, behind] = [first, node].map(|node| ones_come_or_go(&analysis.at(node)));
    let (before, behind) = (before?, behind?);
    let is_new = |axis: &Option<usize>| axis.and_then(|axis| before[axis]).is_none();
    let new: Vec<i64> = (0..)
        .zip(&behind)
        .filter(|(_, axis)| is_new(axis))
        .map(|(place, _)| place)
        .collect();
    let mut maker = Maker::new(graph, node);
    maker.unsqueeze(graph.value_name(graph.input(first, 0)?), &new);
    Some(maker)
}

/// The axis of its input that is at each axis of what a movement makes, where it only moves, puts in or takes out axes of one
/// place; `None` for those that come.
fn ones_come_or_go(at: &At) -> Option<Vec<Option<usize>>> {
    let shape: Shape = at.shape(0).ok()?;
    let rank = shape.len();
    let listed = |rank: usize| {
        at.only_attributes(&["axes"]).ok()?;
        axes(&at.list("axes").ok()??, rank).ok()
    };
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
            let made = at.output_rank(0).ok()?;
            let (new, mut old) = (listed(made)?, 0..rank);
            Some(
                (0..made)
                    .map(|axis| {
                        if new.contains(&axis) {
                            None
                        } else {
                            old.next()
                        }
                    })
                    .collect(),
            )
        }
        "Squeeze" => {
            let gone = listed(rank)?;
            Some(
                (0..rank)
                    .filter(|axis| !gone.contains(axis))
                    .map(Some)
                    .collect(),
            )
        }
        _ => None,
    }
}

/// The input of a Reshape, and its constant target extents. `None` with `allowzero`.
fn target(at: &At) -> Option<(ValueId, Vec<i64>)> {
    let is_known = at.graph.is(at.node, "Reshape")
        && at.is_constant(1)
        && at.only_attributes(&["allowzero"]).is_ok();
    let named = is_known.then(|| at.ints(1).ok()).flatten()??;
    let is_plain = at.attr("allowzero", 0) == Ok(0) || !named.contains(&0);
    Some((at.input(0).ok().filter(|_| is_plain)?, named))
}
