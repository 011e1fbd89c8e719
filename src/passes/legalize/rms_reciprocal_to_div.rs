//! Writes RMSNorm in the form that onnxruntime fuses.
//!
//! Before: `x·(1/√(mean(x²) + ε))·γ`, as torch's exporter decomposes it. After: `x/√(mean(x²) +
//! ε)·γ`, which rounds once less. onnxruntime runs the second form as one operator and does not
//! recognize the first. tract and OpenVINO run both equally fast.

use crate::affine::materialize::{Edit, written_anew};
use crate::analysis::Analysis;
use crate::ir::builder::Maker;
use crate::ir::{Graph, NodeId, ValueId};

/// The edits that write RMSNorms in this form.
pub(crate) fn edits(analysis: &Analysis) -> Vec<Edit> {
    written_anew(analysis, |node, output| divided(analysis, node, output))
}

/// Writes the product of a value and the reciprocal root of its mean square as a quotient. `None`
/// for other nodes, or if no constant vector scales the product.
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
            if value_below_root(analysis, root) != Some(value) {
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

/// Whether the only reader of a value multiplies it by a constant vector, possibly after a Cast.
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
    let Some((mul, _)) = reader.filter(|&(reader, _)| graph.is(reader, "Mul")) else {
        return false;
    };
    let mut operands = graph.inputs(mul).iter().flatten();
    operands.any(|&operand| constants.is_constant(operand) && facts.rank(operand) == Some(1))
}

/// Reads `root` as `√(mean(x²) + ε)` over the last axis. Returns x. `None` if a value between x and
/// `root` has another reader.
fn value_below_root(analysis: &Analysis, root: ValueId) -> Option<ValueId> {
    let Analysis {
        graph,
        facts,
        constants,
        ..
    } = analysis;
    let sqrt = own_producer(graph, root, "Sqrt")?;
    let sum = own_producer(graph, graph.input(sqrt, 0)?, "Add")?;
    let (numbers, others): (Vec<ValueId>, Vec<ValueId>) = graph
        .inputs(sum)
        .iter()
        .flatten()
        .partition(|&&value| constants.scalar(value).is_some());
    numbers.first()?;
    let mean = own_producer(graph, *others.first()?, "ReduceMean")?;
    let squares = own_producer(graph, graph.input(mean, 0)?, "Pow")?;
    let value = graph.input(squares, 0)?;
    let rank = facts.rank(value)?;
    let (axes, keeps_axes) = analysis.at(mean).reduction(rank).ok()?;
    let is_square = constants.scalar(graph.input(squares, 1)?) == Some(2.0);
    let is_over_last = axes == [rank.checked_sub(1)?];
    (is_square && keeps_axes && is_over_last).then_some(value)
}

/// The node that produces a value with one reader, if it has this operator.
fn own_producer(graph: &Graph, value: ValueId, op: &str) -> Option<NodeId> {
    let (node, _) = graph
        .producer(value)
        .filter(|&(node, _)| graph.is(node, op))?;
    graph.only_reader(value).and(Some(node))
}
