//! Determines whether the sign of a zero matters: `x + 0` turns `−0` into `+0`, and `1/x` turns
//! `+0` and `−0` into ∞ and −∞.
//!
//! An operator observes the sign if it divides by the value, or computes its reciprocal or a
//! negative power. An operator that unfold does not know may observe it too, and so may a body that
//! reads the value. All other operators pass the sign on to their results. The exceptions are
//! results that are equal for both zeros: a sum with a constant other than 0, an exponential, a
//! square, an integer. In the outputs of the model, `−0` counts as equal to `0`.

use std::cell::OnceCell;

use crate::analysis::Analysis;
use crate::ir::{NodeId, ValueId};
use crate::onnx::operator::Category;
use crate::onnx::tensor::DataType;

/// The maximum number of elements of a constant that is read.
const FEW: usize = 1 << 16;

/// Operators without a category that never divide by an operand: they compute, move or compare
/// numbers.
const NEUTRAL: [&str; 27] = [
    "ArgMax",
    "ArgMin",
    "AveragePool",
    "Cast",
    "CastLike",
    "Concat",
    "CumSum",
    "DepthToSpace",
    "Dropout",
    "Einsum",
    "GatherElements",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "GridSample",
    "Hardmax",
    "LogSoftmax",
    "MaxPool",
    "NonZero",
    "Pad",
    "Resize",
    "ReverseSequence",
    "ScatterElements",
    "ScatterND",
    "Softmax",
    "SpaceToDepth",
    "TopK",
    "Trilu",
];

/// The values of a graph for which some operator observes the sign of a zero.
pub(crate) struct ZeroSigns<'a> {
    analysis: &'a Analysis<'a>,
    observed: OnceCell<Vec<bool>>,
}

impl<'a> ZeroSigns<'a> {
    /// Refers to the graph of an analysis. The search runs at the first query.
    pub(crate) fn new(analysis: &'a Analysis<'a>) -> Self {
        Self {
            analysis,
            observed: OnceCell::new(),
        }
    }

    /// Whether a later operator may distinguish `−0` from `0` in the value.
    pub(crate) fn are_observed(&self, value: ValueId) -> bool {
        self.observed.get_or_init(|| observed(self.analysis))[value.index()]
    }
}

/// Finds the values whose sign of zero is observed, from the last operator to the first.
fn observed(analysis: &Analysis) -> Vec<bool> {
    let graph = &analysis.graph;
    let mut observed = vec![false; graph.value_count()];
    for &node in graph.order().iter().rev() {
        graph
            .captures(node)
            .iter()
            .for_each(|value| observed[value.index()] = true);
        let is_passed_on = graph
            .outputs(node)
            .iter()
            .flatten()
            .any(|value| observed[value.index()]);
        for (slot, value) in graph.inputs(node).iter().enumerate() {
            let Some(value) = *value else { continue };
            let is_observed =
                observes(analysis, node, slot) || is_passed_on && passes_on(analysis, node, slot);
            observed[value.index()] |= is_observed && may_be_float(analysis, value);
        }
    }
    observed
}

fn may_be_float(analysis: &Analysis, value: ValueId) -> bool {
    analysis
        .facts
        .data_type(value)
        .is_none_or(DataType::is_float)
}

/// Whether a node itself distinguishes `−0` from `0` in an input.
fn observes(analysis: &Analysis, node: NodeId, slot: usize) -> bool {
    let graph = &analysis.graph;
    let Some(op) = graph.op(node) else {
        return true;
    };
    match (op, slot) {
        ("Div" | "Mod", 1) | ("Reciprocal", _) => true,
        ("Pow", 0) => !graph
            .input(node, 1)
            .is_some_and(|power| is_positive(analysis, power)),
        ("Cast" | "CastLike", _) => {
            let made = graph
                .only_output(node)
                .and_then(|made| analysis.facts.data_type(made));
            made.is_none_or(|made| made == DataType::String)
        }
        _ => graph.category(node).is_none_or(Category::is_random) && !NEUTRAL.contains(&op),
    }
}

/// Whether the result of a node may depend on the sign of a zero in an input.
fn passes_on(analysis: &Analysis, node: NodeId, slot: usize) -> bool {
    let graph = &analysis.graph;
    let Some(op) = graph.op(node) else {
        return true;
    };
    match op {
        "Abs" | "Cos" | "Cosh" | "Exp" | "LogSoftmax" | "ReduceL1" | "ReduceL2"
        | "ReduceLogSumExp" | "ReduceSumSquare" | "Sigmoid" | "Softmax" | "Softplus" => false,
        "Add" | "Sub" => {
            let other = graph.input(node, 1 - slot.min(1));
            !other.is_some_and(|other| has_no_zero(analysis, other))
        }
        "Mul" => graph.input(node, 0) != graph.input(node, 1),
        "Pow" => {
            let power = graph
                .input(node, 1)
                .and_then(|power| analysis.constants.scalar(power));
            !power.is_some_and(|power| power > 0.0 && power % 2.0 == 0.0)
        }
        _ => true,
    }
}

/// Whether a value is a constant without a zero.
fn has_no_zero(analysis: &Analysis, value: ValueId) -> bool {
    every_number(analysis, value, |number| number != 0.0)
}

/// Whether a value is a constant above 0.
fn is_positive(analysis: &Analysis, value: ValueId) -> bool {
    every_number(analysis, value, |number| number > 0.0)
}

fn every_number(analysis: &Analysis, value: ValueId, holds: fn(f64) -> bool) -> bool {
    let constants = &analysis.constants;
    let is_small =
        constants.is_constant(value) && constants.len(value).is_some_and(|count| count <= FEW);
    is_small
        && constants
            .read(value)
            .is_ok_and(|numbers| numbers.iter().all(|&number| holds(number)))
}
