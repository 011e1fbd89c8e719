//! Evaluates constants in float64, as recipes do, and converts the results to elements of the
//! field.

use std::ops::Range;

use ndarray::ArrayD;

use super::{Evaluation, Location};
use crate::affine::recognize::batch_invariant::Alike;
use crate::analysis::Analysis;
use crate::ir::ValueId;
use crate::ir::axes::axis;
use crate::onnx::node::bodies;
use crate::onnx::operator::softmax_axis;
use crate::onnx::proto::NodeProto;
use crate::prove::field_value::{FieldValue, of_floats, of_numbers, of_shares};
use crate::shape::facts::extent;

impl Evaluation<'_> {
    /// The results of a node if all of them are constant: floats as computed in float64, and
    /// integers. `None` if there are no results, or if one depends on an input or cannot be
    /// computed.
    pub(super) fn constants(
        &self,
        node: &NodeProto,
        location: &Location,
    ) -> Option<Vec<FieldValue>> {
        let (analysis, alike, made_by) = match location.node {
            Some(id) if bodies(node).next().is_none() => {
                (self.point.analysis, self.point.alike, id)
            }
            // A node of a body, or with bodies, is looked up in the flattened graph, in which an If
            // with a known condition has the results of the branch that it takes.
            _ => (
                self.point.laid_out?.0,
                self.point.laid_out?.1,
                self.laid_out(node, location)?,
            ),
        };
        let made = analysis
            .graph
            .outputs(made_by)
            .iter()
            .map(|value| self.constant(node, (*value)?, analysis, alike))
            .collect::<Option<Vec<_>>>();
        made.filter(|made| !made.is_empty())
    }

    /// The elements of a node's result `value`. `None` if the value is not constant, or if its type
    /// or an extent is unknown.
    fn constant(
        &self,
        node: &NodeProto,
        value: ValueId,
        analysis: &Analysis,
        alike: Option<&Alike>,
    ) -> Option<FieldValue> {
        if !analysis.constants.is_constant(value) {
            return None;
        }
        if analysis.facts.data_type(value)?.is_float() {
            return self.constant_floats(node, value, analysis, alike);
        }
        constant_integers(analysis, value)
    }

    /// A constant result with floating-point elements. `None` if it cannot be read. Also `None` if
    /// it is constant only at these sizes, and all recipes of the proof are arithmetic.
    fn constant_floats(
        &self,
        node: &NodeProto,
        value: ValueId,
        analysis: &Analysis,
        alike: Option<&Alike>,
    ) -> Option<FieldValue> {
        // A value that is constant only at these sizes counts as constant only if a recipe of the
        // proof is more than arithmetic, such as a Softmax. Such a recipe may use a value that is
        // equal for all items of a batch.
        let only_at_sizes = &self.point.only_at_sizes.constants;
        let is_of_size = only_at_sizes.contains(analysis.graph.value_name(value));
        if is_of_size && !self.point.has_formulas {
            return None;
        }
        let wide = alike
            .and_then(|alike| alike.read(value))
            .map(|wide| (*wide).clone());
        let is_wide = wide.is_some();
        let numbers = wide.or_else(|| analysis.constants.read(value).ok())?;
        Some(match self.softmax_lane(node, numbers.ndim()) {
            Some(along) => of_shares(&numbers, along, self.point.key),
            None if is_wide => of_numbers(&numbers, self.point.key),
            None => of_floats(numbers, analysis.facts.data_type(value), self.point.key),
        })
    }

    /// The axes over which a Softmax normalizes together. `None` for other operators, or if the
    /// axis is invalid.
    fn softmax_lane(&self, node: &NodeProto, rank: usize) -> Option<Range<usize>> {
        if node.op() != ("", "Softmax") {
            return None;
        }
        let (absent, alone) = softmax_axis(self.opset());
        let named = node.attr_i("axis").ok()?.unwrap_or(absent);
        let first = axis(named, rank).ok()?;
        Some(first..if alone { first + 1 } else { rank })
    }

    /// The constant results of a node that divides constants by 0. `None` if a result is not
    /// constant. Records the names of the results, so that the values computed from them are
    /// evaluated in float64 too.
    pub(super) fn divided_by_zero(
        &self,
        node: &NodeProto,
        location: &Location,
    ) -> Option<Vec<FieldValue>> {
        let constants = self.constants(node, location)?;
        self.unbounded
            .borrow_mut()
            .extend(node.output.iter().cloned());
        Some(constants)
    }

    /// The constant results of a node that reads a constant with infinite or NaN elements after a
    /// division by 0. `None` for all other nodes, or if a result is not constant.
    pub(super) fn of_unbounded(
        &self,
        node: &NodeProto,
        location: &Location,
    ) -> Option<Vec<FieldValue>> {
        let is_of_unbounded = node
            .input
            .iter()
            .any(|name| self.unbounded.borrow().contains(name));
        if is_of_unbounded {
            self.divided_by_zero(node, location)
        } else {
            None
        }
    }
}

/// The elements of a constant of integers. `None` if the value is no such constant, or if an extent
/// is unknown.
pub(in crate::prove) fn constant_integers(
    analysis: &Analysis,
    value: ValueId,
) -> Option<FieldValue> {
    let shape = analysis.facts.shape(value)?;
    let shape: Vec<usize> = shape.iter().map(extent).collect::<Option<_>>()?;
    let integers = ArrayD::from_shape_vec(shape, analysis.constants.ints(value)?);
    integers.ok().map(FieldValue::int)
}
