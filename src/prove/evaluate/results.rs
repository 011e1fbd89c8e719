//! Finds the types and extents of the results of a node, and the node's id in the analyses.

use super::inner::Bodies;
use super::{Evaluation, Location};
use crate::analysis::Analysis;
use crate::ir::NodeId;
use crate::ir::regions::region_path;
use crate::onnx::operator::Category;
use crate::onnx::proto::NodeProto;
use crate::onnx::tensor::DataType;
use crate::prove::field_value::FieldValue;
use crate::prove::operators::Call;
use crate::shape::facts::{Expected, Operand, extent};

/// Operators whose results are always booleans.
const TRUTHS: &[&str] = &[
    "And",
    "Equal",
    "Greater",
    "GreaterOrEqual",
    "IsInf",
    "IsNaN",
    "Less",
    "LessOrEqual",
    "Not",
    "Or",
    "Xor",
];

impl<'w> Evaluation<'w> {
    /// The expected extents of each result of a node, and whether the result consists of integers.
    pub(super) fn expected_results(
        &self,
        call: &Call,
        bodies: Option<Bodies>,
        location: &Location,
    ) -> Vec<Expected> {
        let mut expected: Vec<Expected> = (0..call.node.output.len())
            .map(|slot| self.inferred_result(slot, location))
            .collect();
        let mut wanted = expected.iter().take(call.wanted);
        if wanted.any(|result| result.shape.is_none()) {
            self.infer_from_operands(call, location, &mut expected);
        }
        let is_truth = call.node.op().0.is_empty() && TRUTHS.contains(&call.node.op_type());
        let is_integer = is_truth || is_function_of_integers(call, location);
        let results = bodies.map(|bodies| bodies.results).unwrap_or_default();
        for (slot, expected) in expected.iter_mut().enumerate() {
            let of_bodies = results.get(slot).cloned().unwrap_or_default();
            expected.shape = expected.shape.take().or(of_bodies.shape);
            expected.is_integer = expected.is_integer.or(of_bodies.is_integer);
            expected.is_integer.get_or_insert(is_integer);
        }
        expected
    }

    /// The extents of a result, and whether it consists of integers, as the analysis of the main
    /// graph infers them. Both are unknown for a node of a body or a function.
    fn inferred_result(&self, slot: usize, location: &Location) -> Expected {
        let (graph, facts) = (&self.point.analysis.graph, &self.point.analysis.facts);
        let Some(value) = location.node.and_then(|node| graph.output(node, slot)) else {
            return Expected::default();
        };
        let shape = facts.shape(value);
        Expected {
            shape: shape.and_then(|shape| shape.iter().map(extent).collect()),
            is_integer: facts.data_type(value).map(DataType::is_integer),
        }
    }

    /// Adds the facts that follow from the operands at this point. Some extents follow only from
    /// integers that were evaluated.
    fn infer_from_operands(&self, call: &Call, location: &Location, expected: &mut [Expected]) {
        let (graph, facts) = (&self.point.analysis.graph, &self.point.analysis.facts);
        let here = facts.of_inner(graph, call.node, &|name| operand(call, name, location));
        for (expected, here) in expected.iter_mut().zip(here) {
            if expected.shape.is_none() && here.shape.is_some() && location.node.is_some() {
                self.is_of_point.set(true);
            }
            expected.shape = expected.shape.take().or(here.shape);
            expected.is_integer = expected.is_integer.or(here.is_integer);
        }
    }

    /// The id of a node in the flattened graph. `None` for a node of a function, or if the model
    /// has no bodies.
    pub(super) fn laid_out(&self, node: &NodeProto, location: &Location) -> Option<NodeId> {
        let ((analysis, _), inside) = (self.point.laid_out?, location.region?);
        let first = node.output.iter().find(|name| !name.is_empty())?;
        let value = analysis.graph.value(&[inside, first.as_str()].concat())?;
        let (id, _) = analysis.graph.producer(value)?;
        Some(id).filter(|&id| region_path(analysis.graph.node(id)) == inside)
    }

    /// The analysis that contains a node, and the node's id in the analyzed graph. For a node of a
    /// body this is the analysis of the flattened graph. `None` for a node of a function.
    pub(super) fn analyzed(
        &self,
        node: &NodeProto,
        location: &Location,
    ) -> Option<(&Analysis<'w>, NodeId)> {
        match location.node {
            Some(id) => Some((self.point.analysis, id)),
            None => Some((self.point.laid_out?.0, self.laid_out(node, location)?)),
        }
    }

    /// The index of the body that an If takes, among its bodies sorted by attribute name. `None` if
    /// the condition depends on an input or a size, and for other operators.
    pub(super) fn taken(&self, node: &NodeProto, location: &Location) -> Option<usize> {
        let (analysis, _) = self.point.laid_out.filter(|_| node.op() == ("", "If"))?;
        let condition = analysis.graph.input(self.laid_out(node, location)?, 0)?;
        let is_of_size = self
            .point
            .only_at_sizes
            .constants
            .contains(analysis.graph.value_name(condition));
        let is_known = analysis.constants.is_constant(condition) && !is_of_size;
        let [holds] = analysis.constants.ints(condition).filter(|_| is_known)?[..] else {
            return None;
        };
        Some(usize::from(holds != 0))
    }
}

/// Whether a node of a body is an element-wise function of integers. Then its results count as
/// integers, because they may be indices.
fn is_function_of_integers(call: &Call, location: &Location) -> bool {
    let category = call.node.category();
    location.node.is_none()
        && category.is_some_and(Category::is_elementwise)
        && call
            .inputs
            .iter()
            .flatten()
            .all(|input| matches!(input, FieldValue::Int(_) | FieldValue::Varying(_)))
}

/// The facts about a value that a node or its body reads. `None` if there is no such value, or if
/// its extents are unknown.
fn operand(call: &Call, name: &str, location: &Location) -> Option<Operand> {
    let slot = call.node.input.iter().position(|input| input == name);
    let value = match slot {
        Some(slot) => call.inputs.get(slot)?.clone()?,
        None => location.captured(name)?.0,
    };
    let ints = match &value {
        FieldValue::Int(ints) => Some(ints.iter().copied().collect()),
        _ => None,
    };
    Some(Operand {
        shape: value.shape()?.to_vec(),
        is_integer: !matches!(value, FieldValue::Field(_) | FieldValue::Masked(_)),
        ints,
    })
}
