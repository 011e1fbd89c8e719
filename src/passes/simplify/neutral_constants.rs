//! Arithmetic with a neutral constant: `x + 0`, `x − 0`, `x·1`, `x/1` and `x¹` are `x`.
//!
//! PyTorch initializes biases with zeros, and exporters write an Add for each bias. The constant
//! must not widen `x`: it must not have more axes, and each of its extents must be 1 or that of
//! `x`. Because `−0 + 0 = +0`, a sum stays if an operator after it [observes the sign](ZeroSigns)
//! of a zero.

use crate::analysis::Analysis;
use crate::analysis::uniform;
use crate::analysis::zero_sign::ZeroSigns;
use crate::ir::{NodeId, ValueId};
use crate::onnx::tensor::DataType;
use crate::shape::facts::extent;

/// Finds operands of arithmetic with neutral constants in one graph.
pub(super) struct Neutral<'a> {
    pub analysis: &'a Analysis<'a>,
    pub signs: &'a ZeroSigns<'a>,
}

impl Neutral<'_> {
    /// The operand that equals the result of a node. `None` if no constant is neutral.
    pub(super) fn operand(&self, node: NodeId) -> Option<ValueId> {
        let graph = &self.analysis.graph;
        let op = graph.op(node)?;
        let [Some(left), Some(right)] = *graph.inputs(node) else {
            return None;
        };
        let found = match op {
            "Add" => self
                .beside(left, right, 0.0)
                .or_else(|| self.beside(right, left, 0.0)),
            "Mul" => self
                .beside(left, right, 1.0)
                .or_else(|| self.beside(right, left, 1.0)),
            "Sub" => self.beside(left, right, 0.0),
            "Div" | "Pow" => self.beside(left, right, 1.0),
            _ => return None,
        };
        let operand = found.filter(|_| self.analysis.at(node).only_attributes(&[]).is_ok())?;
        let is_sum = matches!(op, "Add" | "Sub");
        (!is_sum || !self.signs.are_observed(graph.only_output(node)?)).then_some(operand)
    }

    /// Returns `value`, if all elements of `constant` equal `number`, and the constant does not
    /// widen the value.
    fn beside(&self, value: ValueId, constant: ValueId, number: f64) -> Option<ValueId> {
        let Analysis {
            constants, facts, ..
        } = self.analysis;
        let is_float = facts.data_type(value).is_some_and(DataType::is_float);
        let is_neutral = is_float
            && !constants.is_constant(value)
            && constants.is_constant(constant)
            && self.keeps_shape(value, constant)
            && uniform::number(self.analysis, constant) == Some(number);
        is_neutral.then_some(value)
    }

    /// Whether broadcasting a constant to a value keeps the shape of the value.
    fn keeps_shape(&self, value: ValueId, constant: ValueId) -> bool {
        let facts = &self.analysis.facts;
        let (Some(shape), Some(own)) = (facts.shape(value), facts.shape(constant)) else {
            return false;
        };
        let mut axes = shape.iter().rev().zip(own.iter().rev());
        own.len() <= shape.len()
            && axes.all(|(dim, own)| {
                let places = extent(own);
                places == Some(1) || places.is_some() && places == extent(dim)
            })
    }
}
