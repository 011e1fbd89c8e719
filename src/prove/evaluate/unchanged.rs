//! Nodes that return an input unchanged.

use super::{Evaluation, Location};
use crate::onnx::tensor::DataType;
use crate::prove::field_value::FieldValue;
use crate::prove::operators::Call;

impl Evaluation<'_> {
    /// The input that a node returns unchanged, even if its elements are uninterpreted. The node is
    /// a Cast or CastLike to the type of its input, an Add of 0, a Mul by 1, an And with true, a
    /// Pad by nothing, or a Split into one part. `None` for all other nodes.
    pub(super) fn passed_through(&self, call: &Call, location: &Location) -> Option<FieldValue> {
        let slot = match call.node.op() {
            ("", "Cast") => {
                let graph = &self.point.analysis.graph;
                let to = graph.node(location.node?).cast_to()?;
                (to == self.input_type(0, location)?).then_some(0)
            }
            ("", "CastLike") => {
                let [own, like] = [0, 1].map(|slot| self.input_type(slot, location));
                (own? == like?).then_some(0)
            }
            ("", "Add") if call.node.attribute.is_empty() => self.beside(call, 0, location),
            ("", "And" | "Mul") if call.node.attribute.is_empty() => self.beside(call, 1, location),
            ("", "Split") => (call.node.output.len() == 1).then_some(0),
            ("", "Pad") => pads_nothing(call).then_some(0),
            _ => None,
        };
        input(call, slot?).cloned()
    }

    /// The slot of the operand that an Add, Mul or And returns unchanged. `None` unless the other
    /// operand is a single element that equals `number`. The single element must not have the
    /// larger rank, since the result would have this rank too.
    fn beside(&self, call: &Call, number: i64, location: &Location) -> Option<usize> {
        (0..2).find_map(|slot| {
            let neutral = input(call, slot)?;
            let is_number = neutral.shape().is_some() && neutral.len() == 1;
            let broadcasts =
                self.rank(call, slot, location)? <= self.rank(call, 1 - slot, location)?;
            (is_number && are_all(neutral, number) && broadcasts).then_some(1 - slot)
        })
    }

    /// The rank of an input. `None` if it is unknown.
    fn rank(&self, call: &Call, slot: usize, location: &Location) -> Option<usize> {
        if let Some(shape) = input(call, slot)?.shape() {
            return Some(shape.len());
        }
        let analysis = self.point.analysis;
        let value = analysis.graph.input(location.node?, slot)?;
        analysis.facts.rank(value)
    }

    /// The element type of an input. `None` if it is unknown.
    fn input_type(&self, slot: usize, location: &Location) -> Option<DataType> {
        let analysis = self.point.analysis;
        let value = analysis.graph.input(location.node?, slot)?;
        analysis.facts.data_type(value)
    }
}

fn input<'c>(call: &'c Call, slot: usize) -> Option<&'c FieldValue> {
    call.inputs.get(slot)?.as_ref()
}

/// Whether a Pad adds nothing, according to its attribute or its input.
fn pads_nothing(call: &Call) -> bool {
    let Ok(pads) = call.node.attr_ints("pads") else {
        return false;
    };
    let is_none = pads.is_some_and(|pads| pads.iter().all(|&pad| pad == 0));
    is_none || input(call, 1).is_some_and(|pads| are_all(pads, 0))
}

/// Whether a value consists of integers that all equal `number`.
fn are_all(value: &FieldValue, number: i64) -> bool {
    matches!(value, FieldValue::Int(integers) if integers.iter().all(|&integer| integer == number))
}
