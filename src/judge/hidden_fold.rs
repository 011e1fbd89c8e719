//! Bounds the rounding of the fold of a BatchNormalization that neither of two models contains any
//! more.
//!
//! Two exporters may fold the same BatchNormalization into a layer. Each exporter rounds in its own
//! way, and neither file holds the operands. A weight holds `w·γ/√(v + ε)`, and its error is
//! relative to the element. A bias holds `(b − μ)·γ/√(v + ε) + β`, in which the sum may cancel. So
//! the error of every element of a bias is bounded relative to the largest magnitude in the bias.
//! If one of the exports is in float16, its operands are those of the other one, rounded.

use std::sync::Arc;

use ndarray::{ArrayD, arr0};

use super::constants::RoundedConstant;
use super::formulas;
use super::rounded::{ErrorBound, FloatRounding};
use crate::onnx::tensor::{DataType, rounded};
use crate::recipe::{Given, Recipe};

/// The fold of a BatchNormalization into a layer.
#[derive(Debug, Clone, Copy)]
pub(super) struct HiddenFold {
    /// The type of the operands and of the result.
    pub data_type: DataType,
    /// Whether the operands are those of the other model, rounded to the type.
    pub are_operands_rounded: bool,
}

/// The bound on the difference of two weights into which the same BatchNormalization was folded.
pub(super) fn of_weight(fold: HiddenFold) -> ErrorBound {
    match weight().and_then(|weight| relative(&weight, fold)) {
        Some(relative) => ErrorBound {
            relative,
            absolute: f64::INFINITY,
        },
        None => ErrorBound::EXACT,
    }
}

/// The bound on the difference of two biases into which the same BatchNormalization was folded.
/// `bias` is one of the two biases.
pub(super) fn of_bias(fold: HiddenFold, bias: &ArrayD<f64>) -> ErrorBound {
    let magnitudes = bias.iter().map(|number| number.abs());
    let largest = magnitudes.fold(0.0, f64::max);
    match term().and_then(|term| relative(&term, fold)) {
        Some(relative) => ErrorBound {
            relative: f64::INFINITY,
            absolute: relative * largest,
        },
        None => ErrorBound::EXACT,
    }
}

/// The formula of a folded weight, `w·γ/√(v + ε)`.
fn weight() -> Option<Recipe> {
    let [w, gamma, variance, epsilon] =
        ["w", "γ", "v", "ε"].map(|name| Recipe::constant(name, &[]));
    let deviation = variance.add(&epsilon)?.sqrt();
    w.mul(&gamma.div(&deviation)?)
}

/// The formula of a folded bias, `(b − μ)·γ/√(v + ε) + β`. [`operand`] gives β a value for which
/// the sum does not cancel.
fn term() -> Option<Recipe> {
    let [bias, mean, gamma, variance, epsilon, shift] =
        ["b", "μ", "γ", "v", "ε", "β"].map(|name| Recipe::constant(name, &[]));
    let deviation = variance.add(&epsilon)?.sqrt();
    let scale = gamma.div(&deviation)?;
    bias.sub(&mean)?.mul(&scale)?.add(&shift)
}

/// The error of a formula relative to its value, computed with the operands of [`operand`]. Without
/// cancellation, this error does not depend on the operands.
fn relative(formula: &Recipe, fold: HiddenFold) -> Option<f64> {
    let data_type = fold.data_type;
    let unit = FloatRounding::new(data_type)?.unit;
    let names = formula.constants().into_iter();
    let given = names.map(|name| {
        let number = rounded(data_type, operand(name));
        let error = match fold.are_operands_rounded {
            true => ErrorBound {
                relative: unit,
                absolute: f64::INFINITY,
            },
            false => ErrorBound::EXACT,
        };
        let constant = RoundedConstant {
            given: Given::Computed(Arc::new(arr0(number).into_dyn())),
            error,
        };
        (name.clone(), constant)
    });
    let made = formulas::value(formula, data_type, &given.collect())?;
    let number = made.values.first()?;
    Some(made.error.at(*number) / number.abs())
}

/// A number that uses all binary digits of its type, so that each operation rounds.
fn operand(name: &str) -> f64 {
    match name {
        "w" | "b" => 0.7,
        "γ" => 1.3,
        "v" => 0.9,
        "ε" => 1e-5,
        "μ" => -0.1,
        _ => 1e-9,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Half a unit in the last place of 1, in float32.
    const UNIT: f64 = 0.5 / 8_388_608.0;

    #[test]
    fn bounds_count_each_operation_as_two_roundings() {
        // Counted in roundings: the sum `v + ε` has 2, the root halves them to 1 and adds 2, and
        // the quotient and the product add 2 each.
        let fold = |data_type| HiddenFold {
            data_type,
            are_operands_rounded: false,
        };
        let weight = of_weight(fold(DataType::Float));
        assert!(
            (weight.at(3.0) / (3.0 * UNIT) - 7.0).abs() < 0.01,
            "{weight:?}"
        );
        // The difference `b − μ` and the sum with β add 2 each.
        let bias = of_bias(
            fold(DataType::Float),
            &ndarray::arr1(&[0.25, -2.0]).into_dyn(),
        );
        assert!(
            (bias.at(0.01) / (2.0 * UNIT) - 11.0).abs() < 0.01,
            "{bias:?}"
        );
        assert!(of_weight(fold(DataType::Int8)).is_exact());
    }

    #[test]
    fn rounded_operands_count_as_one_rounding_each() {
        let weight = of_weight(HiddenFold {
            data_type: DataType::Float16,
            are_operands_rounded: true,
        });
        // The weight and γ have 1 each, and the root halves that of the variance.
        let unit = 0.5_f64.powi(11);
        assert!((weight.at(1.0) / unit - 9.5).abs() < 0.1, "{weight:?}");
    }
}
