//! Merges a Concat whose inputs are Concats along the same axis into one Concat of all parts, which
//! moves the elements once.

use crate::affine::materialize::{Edit, written_anew};
use crate::analysis::Analysis;
use crate::ir::axes::axis;
use crate::ir::builder::{Maker, int};
use crate::ir::regions::region_path;
use crate::ir::{NodeId, ValueId};

/// The edits that merge Concats.
pub(crate) fn edits(analysis: &Analysis) -> Vec<Edit> {
    written_anew(analysis, |node, _| merged(analysis, node))
}

/// Replaces each inner Concat that only this node reads by the inputs of the inner Concat. `None`
/// if there is no inner Concat.
fn merged<'m>(analysis: &'m Analysis, node: NodeId) -> Option<Maker<'m>> {
    let graph = &analysis.graph;
    let along = concat_axis(analysis, node)?;
    let mut parts: Vec<&str> = vec![];
    let mut merges_any = false;
    for &part in graph.inputs(node) {
        match inner_parts(analysis, part?, node, along) {
            Some(inner) => {
                merges_any = true;
                let inner = inner.iter().flatten();
                parts.extend(inner.map(|&part| graph.value_name(part)));
            }
            None => parts.push(graph.value_name(part?)),
        }
    }
    merges_any.then_some(())?;
    let mut maker = Maker::new(graph, node);
    maker.op("Concat", &parts, vec![int("axis", along as i64)]);
    Some(maker)
}

/// The inputs of the Concat that produces a value, if this Concat has the axis `along`, and
/// `reader` is the only reader of the value.
fn inner_parts<'a>(
    analysis: &'a Analysis,
    value: ValueId,
    reader: NodeId,
    along: usize,
) -> Option<&'a [Option<ValueId>]> {
    let graph = &analysis.graph;
    let (maker, _) = graph.producer(value)?;
    let is_own = graph.only_reader(value).is_some() && !analysis.constants.is_constant(value);
    let is_beside = region_path(graph.node(maker)) == region_path(graph.node(reader));
    let inputs = graph.inputs(maker);
    (is_own && is_beside && concat_axis(analysis, maker)? == along).then_some(())?;
    inputs.iter().all(Option::is_some).then_some(inputs)
}

/// The axis of a Concat. `None` for other nodes.
fn concat_axis(analysis: &Analysis, node: NodeId) -> Option<usize> {
    let at = analysis.at(node);
    let is_plain = analysis.graph.is(node, "Concat") && at.only_attributes(&["axis"]).is_ok();
    let rank = at.output_rank(0).ok().filter(|_| is_plain)?;
    axis(at.attr("axis", 1).ok()?, rank).ok()
}
