//! RMSNorm in the form in which onnxruntime looks for it.
//!
//! Before: `x·(1/√(mean(x²) + ε))·γ`, as torch's exporter decomposes it. After: `x/√(mean(x²) + ε)·γ`, which rounds once less.
//! onnxruntime runs the second as one operator, and does not find the first; for tract and OpenVINO they are the same.

use crate::affine::materialize::{Edit, written_anew};
use crate::analysis::Analysis;
use crate::ir::builder::Maker;
use crate::ir::{NodeId, ValueId};

/// The edits that write RMSNorms in this form.
pub fn edits(analysis: &Analysis) -> Vec<Edit> {
    written_anew(analysis, |node, output| divided(analysis, node, output))
}

/// The product of a value and of one over the root of its mean square, as a quotient.
fn divided<'m>(analysis: &'m Analysis, node: NodeId, output: ValueId) -> Option<Maker<'m>> {
    let graph = &analysis.graph;
    let &[Some(left), Some(right)] = graph.inputs(node) else {
        return None;
    };
    if !graph.is(node, "Mul") || !is_scaled(analysis, output) {
        return None;
    }
    [(left, right), (right, left)]
        .into_iter()
        .find_map(|(value, inverse)| {
            let (inverts, _) = graph
                .producer(inverse)
                .filter(|&(node, _)| graph.is(node, "Reciprocal"))?;
            let root = graph.only_reader(inverse).and(graph.input(inverts, 0))?;
            if !is_root_of_mean_square(analysis, root, value) {
                return None;
            }
            let mut maker = Maker::new(graph, node);
            maker.op(
                "Div",
                &[graph.value_name(value), graph.value_name(root)],
                vec![],
            );
            Some(maker)
        })
}

/// Whether a vector of constants is all that a value is multiplied by, in the type of its weights.
fn is_scaled(analysis: &Analysis, value: ValueId) -> bool {
    let Analysis {
        graph,
        facts,
        constants,
        ..
    } = analysis;
    let mut reader = graph.only_reader(value);
    if let Some((cast, _)) = reader.filter(|&(reader, _)| graph.is(reader, "Cast")) {
        reader = graph
            .only_output(cast)
            .and_then(|cast| graph.only_reader(cast));
    }
    let is_vector = |&value: &ValueId| constants.is_constant(value) && facts.rank(value) == Some(1);
    reader.is_some_and(|(node, _)| {
        graph.is(node, "Mul") && graph.inputs(node).iter().flatten().any(is_vector)
    })
}

/// Whether a value is `√(mean(x²) + ε)` over the last axis of x, with no other reader.
fn is_root_of_mean_square(analysis: &Analysis, root: ValueId, value: ValueId) -> bool {
    let Analysis {
        graph,
        facts,
        constants,
        ..
    } = analysis;
    let made_by = |value: ValueId, op: &str| {
        let (node, _) = graph
            .producer(value)
            .filter(|&(node, _)| graph.is(node, op))?;
        graph.only_reader(value).and(Some(node))
    };
    let found = || {
        let sum = made_by(graph.input(made_by(root, "Sqrt")?, 0)?, "Add")?;
        let is_number = |&value: &ValueId| constants.scalar(value).is_some();
        let mean = graph
            .inputs(sum)
            .iter()
            .flatten()
            .copied()
            .find(|value| !is_number(value))?;
        graph
            .inputs(sum)
            .iter()
            .flatten()
            .any(is_number)
            .then_some(())?;
        let mean = made_by(mean, "ReduceMean")?;
        let squares = made_by(graph.input(mean, 0)?, "Pow")?;
        let rank = facts.rank(value)?;
        let (axes, keeps) = analysis.at(mean).reduction(rank).ok()?;
        let is_square = graph.input(squares, 0) == Some(value)
            && constants.scalar(graph.input(squares, 1)?) == Some(2.0);
        Some(is_square && keeps && axes == [rank.checked_sub(1)?])
    };
    found() == Some(true)
}
