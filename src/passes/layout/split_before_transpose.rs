//! Parts of a value that are taken before its axes are put in order.
//!
//! Before: one Transpose of queries, keys and values, `[batch, token, 3, head, channel]`, that brings the three to the front,
//! and a Split or Gathers that take them apart. After: they are taken apart first, and each has a Transpose of its own.
//! As many elements are moved, but over one axis less: onnxruntime and tract move four axes faster than five where the
//! last one does not stay the last. Where it does, nothing is gained, and other engines look for the form of before.

use crate::affine::materialize::Edit;
use crate::affine::recognize::Replacement;
use crate::analysis::Analysis;
use crate::analysis::node_view::At;
use crate::ir::axes::axis;
use crate::ir::builder::{Maker, int};
use crate::ir::{NodeId, Reader, ValueId};
use crate::shape::facts::extent;

/// The edits that take parts first.
pub fn edits(analysis: &Analysis) -> Vec<Edit> {
    analysis
        .graph
        .order()
        .iter()
        .filter_map(|&node| apart(analysis, node))
        .collect()
}

/// A Transpose whose result is only taken apart along one axis.
fn apart(analysis: &Analysis, node: NodeId) -> Option<Edit> {
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
    let below = |axis: usize| axis - usize::from(axis > from);
    let order: Vec<i64> = perm
        .iter()
        .filter(|&&axis| axis != from)
        .map(|&axis| below(axis) as i64)
        .collect();
    let stays = (0..).zip(&order).all(|(place, &axis)| place == axis);
    if !stays && perm.last().is_none_or(|&last| last + 1 == perm.len()) {
        return None;
    }
    let mut maker = Maker::new(graph, node);
    let value = graph.value_name(source);
    let split = match &parts[0] {
        WithoutAxis::Gathered(..) => vec![],
        _ => maker.split(value, from as i64, &vec![1; parts.len()]),
    };
    for (place, part) in parts.iter().enumerate() {
        let mut name = match *part {
            WithoutAxis::Gathered(_, index) => {
                let axis = vec![int("axis", from as i64)];
                maker.op("Gather", &[value, graph.value_name(index)], axis)
            }
            _ => maker.squeeze(&split[place], from as i64),
        };
        if !stays {
            name = maker.transpose(&name, &order);
        }
        let made = match *part {
            WithoutAxis::Squeezed(made) | WithoutAxis::Gathered(made, _) => made,
            WithoutAxis::Reshaped(made, node) => {
                let target = graph
                    .input(node, 1)
                    .map_or("", |target| graph.value_name(target));
                maker.op(
                    "Reshape",
                    &[&name, target],
                    graph.node(node).attribute.clone(),
                );
                made
            }
        };
        maker.makes(graph.value_name(made));
    }
    let (made, constants) = maker.done();
    let nodes = [vec![node], nodes].concat();
    let replacement = Replacement {
        nodes,
        made,
        constants,
    };
    Some(Edit::replacing(graph, node, replacement))
}

/// A value without the axis.
enum WithoutAxis {
    /// Of one output of a Split, all of which are.
    Squeezed(ValueId),
    /// One output of a Split, read by this Reshape, which drops the axis of one place.
    Reshaped(ValueId, NodeId),
    /// Of a Gather at this index.
    Gathered(ValueId, ValueId),
}

/// The axis along which all readers take a value apart, their results, and the nodes.
fn parts(
    analysis: &Analysis,
    whole: ValueId,
    rank: usize,
) -> Option<(usize, Vec<WithoutAxis>, Vec<NodeId>)> {
    let graph = &analysis.graph;
    if let Some((split, 0)) = graph.only_reader(whole)
        && graph.is(split, "Split")
    {
        let at = analysis.at(split);
        let along = axis(at.attr("axis", 0).ok()?, rank).ok()?;
        let parts = graph.outputs(split).iter();
        let found = parts.map(|&part| {
            squeezed(analysis, part?, along, rank).or_else(|| reshaped(analysis, part?))
        });
        let (made, readers): (Vec<WithoutAxis>, Vec<NodeId>) =
            found.collect::<Option<Vec<_>>>()?.into_iter().unzip();
        let is_one = |part: &Option<ValueId>| {
            part.is_some_and(|part| analysis.facts.extent(part, along) == Some(1))
        };
        let is_whole = made.len() > 1 && graph.outputs(split).iter().all(is_one);
        return is_whole.then(|| (along, made, [&[split], &readers[..]].concat()));
    }
    let gather = |reader: &Reader| match *reader {
        Reader::Node { node, input: 0 } if graph.is(node, "Gather") => {
            let at = analysis.at(node);
            let along = axis(at.attr("axis", 0).ok()?, rank).ok()?;
            let part = WithoutAxis::Gathered(graph.only_output(node)?, at.input(1).ok()?);
            let is_one =
                at.is_constant(1) && at.rank(1) == Ok(0) && at.only_attributes(&["axis"]).is_ok();
            is_one.then_some((along, part, node))
        }
        _ => None,
    };
    let found: Vec<_> = graph
        .readers(whole)
        .iter()
        .map(gather)
        .collect::<Option<_>>()?;
    let &(along, ..) = found.first()?;
    let is_one_axis = found.iter().all(|(other, ..)| *other == along);
    let nodes = found.iter().map(|&(.., node)| node).collect();
    is_one_axis.then(|| {
        (
            along,
            found.into_iter().map(|(_, part, _)| part).collect(),
            nodes,
        )
    })
}

/// The result and node of a Squeeze of one axis that alone reads a value.
fn squeezed(
    analysis: &Analysis,
    part: ValueId,
    along: usize,
    rank: usize,
) -> Option<(WithoutAxis, NodeId)> {
    let (node, 0) = analysis.graph.only_reader(part)? else {
        return None;
    };
    let at: At = analysis.at(node);
    let [named] = at.list("axes").ok()??[..] else {
        return None;
    };
    let is_one = analysis.graph.is(node, "Squeeze") && axis(named, rank) == Ok(along);
    is_one.then_some((
        WithoutAxis::Squeezed(analysis.graph.only_output(node)?),
        node,
    ))
}

/// The result and node of a Reshape that alone reads a value, without copied extents.
fn reshaped(analysis: &Analysis, part: ValueId) -> Option<(WithoutAxis, NodeId)> {
    let (node, 0) = analysis.graph.only_reader(part)? else {
        return None;
    };
    let target = analysis.facts.extents(analysis.graph.input(node, 1)?)?;
    let is_told = target
        .iter()
        .all(|dim| dim.is_some() && extent(dim) != Some(0));
    let is_own = analysis.graph.is(node, "Reshape") && is_told;
    is_own.then_some((
        WithoutAxis::Reshaped(analysis.graph.only_output(node)?, node),
        node,
    ))
}
