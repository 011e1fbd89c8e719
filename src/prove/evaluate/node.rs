//! Evaluates one node: a node that returns an input unchanged, an interpreted operator, a constant,
//! or an uninterpreted function.

use std::iter::once;
use std::mem::take;

use super::{Evaluation, Location, Stopped};
use crate::onnx::node::constant_tensor;
use crate::onnx::operator::Category;
use crate::onnx::proto::{FunctionProto, NodeProto};
use crate::passes::inline::functions::callee;
use crate::prove::field;
use crate::prove::field_value::{FieldValue, lowest};
use crate::prove::operators::integers::of_unknown_integers;
use crate::prove::operators::lane_functions::{deformed, of_lanes};
use crate::prove::operators::masked::{as_fields, carried, reads_mask};
use crate::prove::operators::mixed_axes::along_axes;
use crate::prove::operators::quantized::quantize;
use crate::prove::operators::recurrent::{of_projection, of_sums};
use crate::prove::operators::resize_interpolated::interpolated;
use crate::prove::operators::uninterpreted::{
    activated, biased, element_wise, in_range, ramp, softmax, softsign,
};
use crate::prove::operators::windows::without_border;
use crate::prove::operators::{Call, NotEvaluated, OpResult, interpret};
use crate::prove::random::{Digest, Hash};
use crate::prove::scales::{Scales, multiplied_result, times};
use crate::shape::facts::Expected;

/// The number of places that a NonZero finds is drawn from `FEWEST..FEWEST + NUMBERS`. The range is
/// large enough that the numbers of two NonZeros are rarely equal.
const FEWEST: usize = 2;
const NUMBERS: usize = 61;

/// The results of a node, and whether they count as results of an uninterpreted function, which
/// have degree 1.
pub(super) type NodeResults = Result<(Vec<FieldValue>, bool), Stopped>;

impl Evaluation<'_> {
    /// Evaluates a node.
    pub(super) fn node(&self, call: Call, location: &Location) -> NodeResults {
        if let Some(value) = self.literal(call.node, location) {
            return Ok((vec![value?], false));
        }
        let function = self.called_function(call.node);
        if let Some(function) = function {
            match self.call(function, &call, location.depth) {
                Err(Stopped {
                    stop: NotEvaluated::Uncovered,
                    ..
                }) => {}
                made => return Ok((made?, true)),
            }
        }
        if let Some(value) = self.passed_through(&call, location) {
            return Ok((vec![value], false));
        }
        let call = match reads_mask(&call) {
            true if function.is_none()
                && let Ok(made) = carried(&call) =>
            {
                return Ok((made, false));
            }
            true => Call {
                inputs: as_fields(&call),
                ..call
            },
            false => call,
        };
        if let Some(made) = self.interpreted(&call, function, location)? {
            return Ok((made, false));
        }
        if let Some((node, inside)) = without_border(&call, lowest(self.point.key)) {
            let others = call.inputs.into_iter().skip(1);
            let inputs = once(Some(inside)).chain(others).collect();
            let inner = Call {
                node: &node,
                inputs,
                ..call
            };
            return self.node(inner, location);
        }
        self.uninterpreted(&call, function, location)
    }

    /// The function of the model that a node calls. `None` if the model does not define such a
    /// function.
    fn called_function(&self, node: &NodeProto) -> Option<&FunctionProto> {
        if self.functions.is_empty() {
            return None;
        }
        self.functions.get(&callee(node)).copied()
    }

    /// The results of a node that is interpreted or constant. `None` for other nodes.
    fn interpreted(
        &self,
        call: &Call,
        function: Option<&FunctionProto>,
        location: &Location,
    ) -> Result<Option<Vec<FieldValue>>, Stopped> {
        let node = call.node;
        if let Some(constants) = self.of_unbounded(node, location) {
            return Ok(Some(constants));
        }
        let made = if function.is_some() {
            Err(NotEvaluated::Uncovered)
        } else {
            interpret(call)
        };
        match made {
            Err(NotEvaluated::Uncovered) => Ok(self.constants(node, location)),
            // If constants are divided by 0, the results have infinite or NaN elements, and are
            // evaluated in float64.
            Err(NotEvaluated::Zero)
                if let Some(constants) = self.divided_by_zero(node, location) =>
            {
                Ok(Some(constants))
            }
            made => made.map(Some).map_err(|stop| Stopped::at_node(stop, node)),
        }
    }

    /// The results of a node that is not interpreted. A result that is known from the node's bodies
    /// has the known value. Each other result is an uninterpreted function of the inputs.
    fn uninterpreted(
        &self,
        call: &Call,
        function: Option<&FunctionProto>,
        location: &Location,
    ) -> NodeResults {
        let node = call.node;
        let mut bodies = self.bodies(call, location)?;
        let inside = bodies
            .as_mut()
            .map(|bodies| take(&mut bodies.known))
            .unwrap_or_default();
        if !inside.is_empty() && inside.iter().all(Option::is_some) {
            return Ok((inside.into_iter().flatten().collect(), false));
        }
        let digest = self.function(node, bodies.as_ref(), location);
        let scales = self.point.scales.filter(|_| function.is_none());
        let factor = scales.and_then(|scales| scales.factor(node.op(), digest, &call.inputs));
        if let Some(factor) = factor {
            return self.rescaled(call, factor, location);
        }
        let expected = self.expected_results(call, bodies, location);
        if function.is_none() && matches!(node.op(), ("", "Resize" | "Upsample")) {
            match interpolated(call, digest, first_shape(&expected)) {
                Err(NotEvaluated::Uncovered) => {}
                made => {
                    let made = made.map_err(|stop| Stopped::at_node(stop, node))?;
                    return Ok((made, false));
                }
            }
        }
        let made = match self.of_elements(call, digest, function, &expected, location) {
            Err(NotEvaluated::Uncovered) => self.of_all_inputs(call, digest, &expected),
            made => made,
        };
        let mut made = made.map_err(|stop| Stopped::at_node(stop, node))?;
        if let Some(FieldValue::Field(elements)) = made.first_mut()
            && scales.is_some()
            && Scales::is_nothing(node.op(), &call.inputs)
        {
            *elements = times(elements, 0);
        }
        for (made, inside) in made.iter_mut().zip(inside) {
            if let Some(inside) = inside {
                *made = inside;
            }
        }
        Ok((made, true))
    }

    /// The value of a Constant. `None` for all other operators, and for strings and sparse tensors.
    fn literal(
        &self,
        node: &NodeProto,
        location: &Location,
    ) -> Option<Result<FieldValue, Stopped>> {
        if node.op() != ("", "Constant") {
            return None;
        }
        let tensor = constant_tensor(node)?;
        let name = node.output.first()?;
        // In a function, the name may by accident be that of a stored tensor with a recipe, so
        // recipes are not looked up.
        Some(if location.region.is_some() {
            self.tensor(name, &tensor)
        } else {
            self.held(name, &tensor)
        })
    }

    /// Evaluates a node after multiplying its inputs by `factor`, and divides the result by
    /// `factor`. The multiplied inputs equal the inputs of the corresponding node of the original.
    fn rescaled(&self, call: &Call, factor: u32, location: &Location) -> NodeResults {
        let factors = self.point.scales.map_or(0, Scales::len);
        self.add_doubt(factors as f64);
        let inputs = Scales::scaled(call.node.op(), &call.inputs, factor);
        let multiplied = multiplied_result(call.node.op());
        let (mut made, guessed) = self.node(Call { inputs, ..*call }, location)?;
        if let (Some(FieldValue::Field(elements)), Some(part)) =
            (made.get_mut(multiplied), field::inverse(factor))
        {
            *elements = times(elements, part);
        }
        Ok((made, guessed))
    }

    /// The result of an uninterpreted function, if it is known on which elements of the inputs each
    /// element of the result depends. Otherwise [`NotEvaluated::Uncovered`].
    fn of_elements(
        &self,
        call: &Call,
        digest: Digest,
        function: Option<&FunctionProto>,
        expected: &[Expected],
        location: &Location,
    ) -> OpResult {
        if function.is_some() {
            return Err(NotEvaluated::Uncovered);
        }
        let is_integer = expected.first().and_then(|expected| expected.is_integer) == Some(true);
        let category = call.node.category();
        let is_elementwise = category.is_some_and(Category::is_elementwise);
        match (call.node.op(), is_elementwise) {
            (("", op @ ("Softmax" | "LogSoftmax")), _) => {
                softmax(call, self.operator_alone(op, location))
            }
            (("com.microsoft", "BiasGelu" | "FastGelu"), _) => biased(call, digest),
            (("com.microsoft", "FusedConv" | "FusedGemm"), _) => {
                let activation = self.function(&only_activation(call.node), None, location);
                activated(call, activation)
            }
            (("com.microsoft", "Attention"), _) => {
                let inputs = of_projection(call)?;
                self.of_all_inputs(&Call { inputs, ..*call }, digest, expected)
            }
            (("", "Softsign"), _) => softsign(call, self.operator_alone("Abs", location)),
            (("", "Clip" | "HardSigmoid" | "HardSwish"), _) => {
                match ramp(call, self.operator_alone("HardSigmoid", location)) {
                    Err(NotEvaluated::Uncovered) => element_wise(call, digest, is_integer),
                    made => made,
                }
            }
            // The lanes already depend on the axes, so the attributes are left out of the
            // function's digest.
            (("", op @ ("ReduceMax" | "ReduceMin")), _) => {
                self.of_lanes(call, self.operator_alone(op, location), expected)
            }
            (("", "GlobalMaxPool" | "GridSample" | "MaxPool"), _)
            | (("" | "com.microsoft", "RotaryEmbedding"), _) => {
                self.of_lanes(call, digest, expected)
            }
            (("", "DeformConv"), _) => deformed(call, digest),
            (("", "NonZero"), _) => self.places(call, digest),
            (("", "QuantizeLinear"), _) => quantize(call, digest),
            (("", "Add" | "Mul"), _) if is_integer => match of_unknown_integers(call) {
                Err(NotEvaluated::Uncovered) => element_wise(call, digest, is_integer),
                made => made,
            },
            (("", "ArgMax" | "ArgMin"), _) => {
                in_range(call, self.of_all_inputs(call, digest, expected)?)
            }
            (
                (
                    "",
                    "Hardmax"
                    | "LpNormalization"
                    | "MeanVarianceNormalization"
                    | "ReduceL1"
                    | "ReduceLogSum"
                    | "ReduceLogSumExp"
                    | "ReduceProd",
                ),
                _,
            ) => along_axes(call, digest, first_shape(expected)),
            (_, true) => element_wise(call, digest, is_integer),
            (("", "GRU" | "LSTM" | "RNN"), _) => {
                let inputs = of_sums(call)?;
                self.of_all_inputs(&Call { inputs, ..*call }, digest, expected)
            }
            _ => Err(NotEvaluated::Uncovered),
        }
    }

    /// The digest of an operator without its attributes.
    fn operator_alone(&self, op: &str, location: &Location) -> Digest {
        let node = NodeProto {
            op_type: Some(op.into()),
            ..Default::default()
        };
        self.function(&node, None, location)
    }

    /// The result of a function that computes each lane independently. Positive factors, if this
    /// evaluation uses them, pass through the function.
    fn of_lanes(&self, call: &Call, digest: Digest, expected: &[Expected]) -> OpResult {
        let Some(scales) = self.point.scales else {
            let (made, _) = of_lanes(call, digest, first_shape(expected), None)?;
            return Ok(made);
        };
        let first = |divided, first| scales.first(divided, first);
        let (made, taken) = of_lanes(call, digest, first_shape(expected), Some(&first))?;
        self.add_doubt(taken as f64 * scales.len() as f64);
        Ok(made)
    }

    /// The places that a NonZero finds. Their number is unknown, so it is drawn at random for each
    /// input value.
    fn places(&self, call: &Call, function: Digest) -> OpResult {
        let shape = call
            .inputs
            .first()
            .and_then(|value| value.as_ref()?.shape())
            .ok_or(NotEvaluated::Uncovered)?;
        let rank = shape.len();
        let drawn = self.of_all_inputs(call, function, &[expected_places(rank, 1)])?;
        let Some(FieldValue::Varying(drawn)) = drawn.first() else {
            return Err(NotEvaluated::Uncovered);
        };
        let count = drawn
            .first()
            .map_or(0, |&number| FEWEST + number as usize % NUMBERS);
        self.is_of_point.set(true);
        self.draws_counts.set(true);
        self.of_all_inputs(call, function, &[expected_places(rank, count)])
    }

    /// The results of an uninterpreted function of all inputs of a node.
    fn of_all_inputs(&self, call: &Call, function: Digest, expected: &[Expected]) -> OpResult {
        let mut hash = Hash::new(self.point.key, "application");
        hash.digest(function);
        for input in &call.inputs {
            hash.number(input.is_some().into());
            input
                .iter()
                .for_each(|input| hash.digest(input.digest(self.point.key)));
        }
        let application = hash.finish();
        (0..)
            .zip(expected)
            .map(|(slot, expected)| self.random_result(application, slot, expected))
            .collect()
    }

    /// A random value for the result at index `slot` of a function. It depends only on
    /// `application`, the digest of the function and its arguments.
    fn random_result(
        &self,
        application: Digest,
        slot: u64,
        expected: &Expected,
    ) -> Result<FieldValue, NotEvaluated> {
        let mut hash = Hash::new(self.point.key, "result");
        hash.digest(application);
        hash.number(slot);
        let Some(shape) = &expected.shape else {
            return Ok(FieldValue::Opaque(hash.finish()));
        };
        self.point.allowance.room(shape)?;
        let is_integer = expected.is_integer == Some(true);
        Ok(FieldValue::random(hash.finish(), shape, is_integer))
    }
}

/// The facts about the result of a NonZero that finds `count` places.
fn expected_places(rank: usize, count: usize) -> Expected {
    Expected {
        shape: Some(vec![rank, count]),
        is_integer: Some(true),
    }
}

/// The extents that are expected of the first result.
fn first_shape(expected: &[Expected]) -> Option<&[usize]> {
    expected.first()?.shape.as_deref()
}

/// A node with only the attributes of its activation.
fn only_activation(node: &NodeProto) -> NodeProto {
    let mut node = node.clone();
    node.attribute
        .retain(|attribute| attribute.name().starts_with("activation"));
    node
}
