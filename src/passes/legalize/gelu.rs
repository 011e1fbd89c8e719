//! Writes a GELU in the order that engines fuse.
//!
//! Before: `x·(½·(1 + erf(x/√2)))`, as torch's exporter decomposes it, or with tanh in place of
//! erf. After: `(x·½)·(1 + …)`. Halving is exact except for the smallest numbers of a type, so both
//! forms give equal results. onnxruntime runs the second form as one operator, tract does so with
//! erf, and neither recognizes the first form.

use crate::affine::materialize::{Edit, written_anew};
use crate::analysis::Analysis;
use crate::ir::builder::Maker;
use crate::ir::{NodeId, ValueId};

/// The edits that write GELUs in this order.
pub(crate) fn edits(analysis: &Analysis) -> Vec<Edit> {
    written_anew(analysis, |node, _| halved_first(analysis, node))
}

/// Writes `x·(½·s)` as `(x·½)·s`, where s is 1 plus the erf or the tanh of a function of x. `None`
/// for other nodes.
fn halved_first<'m>(analysis: &'m Analysis, node: NodeId) -> Option<Maker<'m>> {
    let graph = &analysis.graph;
    let &[Some(left), Some(right)] = graph.inputs(node) else {
        return None;
    };
    if !graph.is(node, "Mul") || !analysis.activations.contains(node) {
        return None;
    }
    [(left, right), (right, left)]
        .into_iter()
        .find_map(|(value, gate)| {
            let (half, sum) = half_of_sum(analysis, gate)?;
            let mut maker = Maker::new(graph, node);
            let [value, half, sum] = [value, half, sum].map(|operand| graph.value_name(operand));
            let halved = maker.op("Mul", &[value, half], vec![]);
            maker.op("Mul", &[&halved, sum], vec![]);
            Some(maker)
        })
}

/// Reads a value with one reader as a product of ½ and `1 + erf(…)` or `1 + tanh(…)`. Returns the
/// two factors. `None` for other values.
fn half_of_sum(analysis: &Analysis, gate: ValueId) -> Option<(ValueId, ValueId)> {
    let Analysis {
        graph,
        facts,
        constants,
        ..
    } = analysis;
    let (product, _) = graph.producer(gate)?;
    let &[Some(left), Some(right)] = graph.inputs(product) else {
        return None;
    };
    graph
        .only_reader(gate)
        .filter(|_| graph.is(product, "Mul"))?;
    let (half, sum) = if constants.is_constant(left) {
        (left, right)
    } else {
        (right, left)
    };
    // A factor ½ with more axes than the sum would give the product these axes too.
    let fits = facts
        .rank(half)
        .is_some_and(|rank| rank <= facts.rank(sum).unwrap_or(0));
    let (adds, _) = graph
        .producer(sum)
        .filter(|_| fits && constants.scalar(half) == Some(0.5))?;
    let mut makers = graph
        .inputs(adds)
        .iter()
        .flatten()
        .filter_map(|&value| Some(graph.producer(value)?.0));
    let has_curve = makers.any(|maker| graph.is(maker, "Erf") || graph.is(maker, "Tanh"));
    (graph.is(adds, "Add") && has_curve).then_some((half, sum))
}
