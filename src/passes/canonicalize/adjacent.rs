//! Merges two successive Transposes into one, and two successive means into one.

use crate::analysis::Analysis;
use crate::analysis::node_view::At;
use crate::ir::NodeId;
use crate::ir::builder::Maker;
use crate::ir::regions::region_path;

/// Merges a Transpose or a ReduceMean with the operator of the same kind that produces its input.
/// `None` for other nodes, or if another node reads this input.
pub(crate) fn merged<'m>(analysis: &'m Analysis, node: NodeId) -> Option<Maker<'m>> {
    let graph = &analysis.graph;
    let between = graph.input(node, 0)?;
    let (first, _) = graph.producer(between)?;
    let op = graph
        .op(node)
        .filter(|op| matches!(*op, "Transpose" | "ReduceMean"))?;
    let is_alone = graph.is(first, op)
        && graph.only_reader(between).is_some()
        && region_path(graph.node(first)) == region_path(graph.node(node));
    let value = graph.input(first, 0).filter(|_| is_alone)?;
    let [before, behind] = [first, node].map(|node| analysis.at(node));
    let rank = analysis.facts.rank(value)?;
    let mut maker = Maker::new(graph, node);
    match op {
        "Transpose" => {
            let (first, then) = (permutation(&before, rank)?, permutation(&behind, rank)?);
            let order: Vec<i64> = then.into_iter().map(|axis| first[axis] as i64).collect();
            maker.transpose(graph.value_name(value), &order);
        }
        _ => {
            let mut axes = reduced_axes(&before, rank)?;
            // A second mean over the same axis has no effect, so each axis is listed once.
            axes.extend(reduced_axes(&behind, rank)?);
            axes.sort_unstable();
            axes.dedup();
            let axes: Vec<i64> = axes.into_iter().map(|axis| axis as i64).collect();
            maker.mean(graph.value_name(value), &axes, true);
        }
    }
    Some(maker)
}

fn permutation(at: &At, rank: usize) -> Option<Vec<usize>> {
    at.only_attributes(&["perm"]).ok()?;
    at.permutation(rank).ok()
}

/// The axes over which a ReduceMean averages. `None` if the result lacks these axes (`keepdims =
/// 0`).
fn reduced_axes(at: &At, rank: usize) -> Option<Vec<usize>> {
    at.only_attributes(&["axes", "keepdims", "noop_with_empty_axes"])
        .ok()?;
    let (axes, keeps_axes) = at.reduction(rank).ok()?;
    keeps_axes.then_some(axes)
}
