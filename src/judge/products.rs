//! Bounds on the errors of constants that products of matrices compute.

use ndarray::{ArrayD, arr0};

use super::binary_errors::{Binary, of_binary};
use super::constants::ComputedConstants;
use super::rounded::{ErrorBound, Rounded, exchanged, of_products, of_sums, reshaped};
use crate::ir::{NodeId, ValueId};
use crate::onnx::proto::NodeProto;
use crate::onnx::tensor::DataType;
use crate::recipe::{Recipe, computed};

impl ComputedConstants<'_> {
    pub(super) fn product(
        &self,
        node: NodeId,
        value: ValueId,
        data_type: DataType,
    ) -> Option<ErrorBound> {
        let [a, b] = [0, 1].map(|slot| self.operand(node, slot));
        let result = self.analysis.constants.read(value).ok()?;
        product_error([&a?, &b?], None, &result, data_type)
    }

    /// The bound on the error of a Gemm. `None` if no bound is known.
    pub(super) fn gemm(
        &self,
        node: NodeId,
        value: ValueId,
        data_type: DataType,
    ) -> Option<ErrorBound> {
        let graph = &self.analysis.graph;
        let proto = graph.node(node);
        let [a, b] = [(0, "transA"), (1, "transB")].map(|(slot, flag)| {
            let side = self.operand(node, slot)?;
            match proto.attr_i(flag).ok()? {
                None | Some(0) => Some(side),
                _ => exchanged(side),
            }
        });
        let a = scaled(a?, proto.attr_f("alpha").ok()?, data_type)?;
        let bias = match graph.input(node, 2) {
            Some(bias) => {
                let bias = self.rounded(bias)?;
                Some(scaled(bias, proto.attr_f("beta").ok()?, data_type)?)
            }
            None => None,
        };
        let result = self.analysis.constants.read(value).ok()?;
        product_error([&a, &b?], bias.as_ref(), &result, data_type)
    }

    /// The bound on the error of an Einsum of two operands that sums over nothing, such as an outer
    /// product. `None` for other equations, or if no bound is known.
    pub(super) fn einsum(
        &self,
        node: NodeId,
        value: ValueId,
        data_type: DataType,
    ) -> Option<ErrorBound> {
        let graph = &self.analysis.graph;
        let equation = graph.node(node).attr_s("equation").ok()??;
        if graph.inputs(node).len() != 2 || !sums_over_nothing(equation)? {
            return None;
        }
        let [a, b] = [0, 1].map(|slot| self.error(graph.input(node, slot)?));
        let result = self.analysis.constants.read(value).ok()?;
        let magnitudes = result.mapv(f64::abs);
        of_products([a?, b?], 1, &result, &magnitudes, data_type)
    }

    /// The bound on the error of a Conv whose windows have one place. It is a product of matrices.
    /// `None` for other windows, for groups, or if no bound is known.
    pub(super) fn pointwise_convolution(
        &self,
        node: NodeId,
        value: ValueId,
        data_type: DataType,
    ) -> Option<ErrorBound> {
        let graph = &self.analysis.graph;
        let [input, weight] = [0, 1].map(|slot| self.operand(node, slot));
        let (input, weight) = (input?, weight?);
        let result = self.analysis.constants.read(value).ok()?;
        let &[samples, inner, ..] = input.values.shape() else {
            return None;
        };
        let &[outer, in_group, ref window @ ..] = weight.values.shape() else {
            return None;
        };
        let places = input.values.len() / (samples * inner).max(1);
        let proto = graph.node(node);
        let has_one_place = window.iter().all(|&extent| extent == 1);
        let is_pointwise = in_group == inner
            && has_one_place
            && each_is(proto, "strides", 1)
            && each_is(proto, "pads", 0);
        let keeps_places = result.len() == samples * outer * places;
        if !is_pointwise || !keeps_places {
            return None;
        }
        let bias = graph.input(node, 2).map(|bias| self.rounded(bias));
        let bias = match bias {
            Some(bias) => Some(reshaped(bias?, &[outer, 1])?),
            None => None,
        };
        let input = reshaped(input, &[samples, inner, places])?;
        let weight = reshaped(weight, &[outer, inner])?;
        let result = result.into_shape_with_order(vec![samples, outer, places]);
        product_error([&weight, &input], bias.as_ref(), &result.ok()?, data_type)
    }
}

/// The bound on the error of a product of matrices, and of a bias that is added to it. `None` if the
/// result has another shape than the product.
fn product_error(
    [a, b]: [&Rounded; 2],
    bias: Option<&Rounded>,
    result: &ArrayD<f64>,
    data_type: DataType,
) -> Option<ErrorBound> {
    let mut terms = *a.values.shape().last()?;
    let [shape_a, shape_b] = [a, b].map(|side| side.values.shape());
    let product = Recipe::constant("a", shape_a).product(&Recipe::constant("b", shape_b))?;
    let [size_a, size_b] = [a, b].map(|side| side.values.mapv(f64::abs));
    let mut magnitudes = computed(&product, &[&size_a, &size_b]);
    if magnitudes.shape() != result.shape() {
        return None;
    }
    let [large_a, large_b] = [a, b].map(largest_magnitudes);
    let mut carried = computed(&product, &[&large_a, &large_b]) - &magnitudes;
    if let Some(bias) = bias {
        bias.values.broadcast(result.raw_dim())?;
        carried += &(largest_magnitudes(bias) - &bias.values.mapv(f64::abs));
        magnitudes += &bias.values.mapv(f64::abs);
        terms += 1;
    }
    of_sums(&carried, terms, result, &magnitudes, data_type)
}

/// Whether each number of an attribute is `number`. True if the attribute is missing.
fn each_is(node: &NodeProto, name: &str, number: i64) -> bool {
    let numbers = node.attr_ints(name).ok().flatten();
    numbers.is_none_or(|numbers| numbers.iter().all(|&found| found == number))
}

/// For each element, an upper bound on the magnitude of the exact number that it approximates.
fn largest_magnitudes(side: &Rounded) -> ArrayD<f64> {
    side.values.mapv(|value| value.abs() + side.error.at(value))
}

/// Whether each letter of the operands of an Einsum is a letter of its result. `None` if the
/// equation does not give the result.
fn sums_over_nothing(equation: &str) -> Option<bool> {
    let (operands, result) = equation.split_once("->")?;
    let mut letters = operands.chars().filter(char::is_ascii_alphabetic);
    Some(letters.all(|letter| result.contains(letter)))
}

/// Multiplies by a factor that is 1 if it is missing.
fn scaled(side: Rounded, factor: Option<f32>, data_type: DataType) -> Option<Rounded> {
    let factor = Rounded {
        values: arr0(f64::from(factor.unwrap_or(1.0))).into_dyn(),
        error: ErrorBound::EXACT,
    };
    let values = &side.values * &factor.values;
    let error = of_binary(Binary::Mul, &side, &factor, &values, data_type)?;
    Some(Rounded { values, error })
}
