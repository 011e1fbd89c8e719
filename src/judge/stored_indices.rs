//! Finds stored indices that select places in only one of two models.

use std::collections::HashSet;

use crate::analysis::Analysis;
use crate::onnx::Model;

/// Operators that select places of the first input by the second one.
const SELECTIONS: [&str; 3] = ["Gather", "GatherElements", "GatherND"];

/// Whether a node of `other` selects places with stored indices that no node of `base` uses.
pub(super) fn has_foreign_indices(base: &Model, other: &Model) -> bool {
    let [before, after] = [base, other].map(stored_indices);
    !after.is_subset(&before)
}

/// All lists of at least two stored indices with which nodes select places.
fn stored_indices(model: &Model) -> HashSet<Vec<i64>> {
    let Ok(analysis) = Analysis::new(model) else {
        return HashSet::new();
    };
    let graph = &analysis.graph;
    let selections = graph.order().iter().filter(|&&node| {
        let op = graph.op(node);
        op.is_some_and(|op| SELECTIONS.contains(&op))
    });
    let indices = selections.filter_map(|&node| graph.input(node, 1));
    let constant = indices.filter(|&value| analysis.constants.is_constant(value));
    let lists = constant.filter_map(|value| analysis.constants.ints(value));
    lists.filter(|list| list.len() > 1).collect()
}
