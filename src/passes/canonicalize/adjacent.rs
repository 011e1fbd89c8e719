//! Two Transposes in a row as one, and two means.

use crate::analysis::Analysis;
use crate::ir::NodeId;
use crate::ir::builder::Maker;
use crate::ir::regions::way;

/// A Transpose of what a Transpose makes for it alone, or a ReduceMean over other axes of what one makes: one of both.
pub fn one<'m>(analysis: &'m Analysis, node: NodeId) -> Option<Maker<'m>> {
    let graph = &analysis.graph;
    let between = graph.input(node, 0)?;
    let (first, _) = graph.producer(between)?;
    let op = graph
        .op(node)
        .filter(|op| matches!(*op, "Transpose" | "ReduceMean"))?;
    let is_alone = graph.is(first, op)
        && graph.only_reader(between).is_some()
        && way(graph.node(first)) == way(graph.node(node));
    let value = graph.input(first, 0).filter(|_| is_alone)?;
    let [before, behind] = [first, node].map(|node| analysis.at(node));
    let rank = analysis.facts.rank(value)?;
    let mut maker = Maker::new(graph, node);
    match op {
        "Transpose" => {
            let orders = [&before, &behind].map(|at| {
                at.only_attributes(&["perm"]).ok()?;
                at.permutation(rank).ok()
            });
            let [Some(first), Some(then)] = orders else {
                return None;
            };
            let order: Vec<i64> = then.into_iter().map(|axis| first[axis] as i64).collect();
            maker.transpose(graph.value_name(value), &order);
        }
        _ => {
            let told = ["axes", "keepdims", "noop_with_empty_axes"];
            let reduced = [&before, &behind].map(|at| {
                at.only_attributes(&told).ok()?;
                at.reduction(rank)
                    .ok()
                    .filter(|(_, keeps)| *keeps)
                    .map(|(axes, _)| axes)
            });
            let [Some(mut axes), Some(others)] = reduced else {
                return None;
            };
            // The mean of a mean over the same axis is that.
            axes.extend(
                others
                    .into_iter()
                    .filter(|axis| !axes.contains(axis))
                    .collect::<Vec<_>>(),
            );
            axes.sort_unstable();
            let axes: Vec<i64> = axes.into_iter().map(|axis| axis as i64).collect();
            maker.mean(graph.value_name(value), &axes, true);
        }
    }
    Some(maker)
}
