//! Concats of what Concats along the same axis make: each is one Concat of all parts, which moves the elements once.

use crate::affine::materialize::{Edit, written_anew};
use crate::analysis::Analysis;
use crate::ir::axes::axis;
use crate::ir::builder::{Maker, int};
use crate::ir::regions::way;
use crate::ir::{NodeId, ValueId};

/// The edits that merge Concats.
pub fn edits(analysis: &Analysis) -> Vec<Edit> {
    written_anew(analysis, |node, _| at_once(analysis, node))
}

/// A Concat of the parts of the Concats that a node reads and nobody else does; `None` where it reads none.
fn at_once<'m>(analysis: &'m Analysis, node: NodeId) -> Option<Maker<'m>> {
    let graph = &analysis.graph;
    let along = joined(analysis, node)?;
    let inner = |value: ValueId| {
        let (maker, _) = graph.producer(value)?;
        let goes = graph.only_reader(value).is_some() && !analysis.constants.is_constant(value);
        let is_beside = way(graph.node(maker)) == way(graph.node(node));
        (goes && is_beside && joined(analysis, maker)? == along).then(|| graph.inputs(maker))
    };
    let mut parts: Vec<&str> = vec![];
    let mut is_any = false;
    for &part in graph.inputs(node) {
        let part = part?;
        let others = inner(part).filter(|others| others.iter().all(Option::is_some));
        is_any |= others.is_some();
        parts.extend(
            others
                .unwrap_or(&[Some(part)])
                .iter()
                .flatten()
                .map(|&part| graph.value_name(part)),
        );
    }
    is_any.then_some(())?;
    let mut maker = Maker::new(graph, node);
    maker.op("Concat", &parts, vec![int("axis", along as i64)]);
    Some(maker)
}

/// The axis along which a Concat joins.
fn joined(analysis: &Analysis, node: NodeId) -> Option<usize> {
    let at = analysis.at(node);
    let is_plain = analysis.graph.is(node, "Concat") && at.only_attributes(&["axis"]).is_ok();
    let rank = at.output_rank(0).ok().filter(|_| is_plain)?;
    axis(at.attr("axis", 1).ok()?, rank).ok()
}
