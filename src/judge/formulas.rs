//! Evaluates recipes, and bounds the error of an evaluation in floats.

use std::collections::HashMap;

use ndarray::{ArrayD, Axis};

use super::binary_errors::{Binary, of_binary, of_rounding};
use super::constants::GivenConstants;
use super::rounded::{ErrorBound, Rounded, Unary, of_products, of_unary};
use crate::onnx::tensor::DataType;
use crate::recipe::{Op, Recipe, computed, cut_constant};

/// Evaluates a recipe whose operations have the given type. `None` if a constant is missing, cannot
/// be read or has another shape than in the recipe, or if no bound is known for an operation.
pub(super) fn value(
    recipe: &Recipe,
    data_type: DataType,
    given: &GivenConstants,
) -> Option<Rounded> {
    let mut known: HashMap<_, Rounded> = HashMap::new();
    for step in recipe.steps_to(&|step| cut_constant(step).is_some()) {
        let made = match constant(step, given) {
            Some(constant) => constant.filter(|made| made.values.shape() == step.shape())?,
            None => {
                let inputs: Option<Vec<&Rounded>> = step
                    .inputs()
                    .iter()
                    .map(|input| known.get(&input.id()))
                    .collect();
                step_value(step, &inputs?, data_type)?
            }
        };
        known.insert(step.id(), made);
    }
    known.remove(&recipe.id())
}

/// The value of a step that reads a constant, or a range of one along an axis. `None` for other
/// steps. The inner option is `None` if the constant cannot be read.
fn constant(step: &Recipe, given: &GivenConstants) -> Option<Option<Rounded>> {
    if let Some((name, axis, range)) = cut_constant(step) {
        let constant = given.get(name);
        return Some(constant.and_then(|constant| constant.places(name, axis, range)));
    }
    match step.op() {
        Op::Constant(name) => Some(given.get(name).and_then(|constant| constant.whole(name))),
        _ => None,
    }
}

fn step_value(step: &Recipe, inputs: &[&Rounded], data_type: DataType) -> Option<Rounded> {
    let arrays: Vec<&ArrayD<f64>> = inputs.iter().map(|input| &input.values).collect();
    let values = computed(step, &arrays);
    let error = match (step.op(), inputs) {
        // Literals are exact, because they are constants that the definition of an operator gives.
        (Op::Literal(_), _) => ErrorBound::EXACT,
        (Op::Add, [a, b]) => of_binary(Binary::Add, a, b, &values, data_type)?,
        (Op::Sub, [a, b]) => of_binary(Binary::Sub, a, b, &values, data_type)?,
        (Op::Mul, [a, b]) => of_binary(Binary::Mul, a, b, &values, data_type)?,
        (Op::Div, [a, b]) => of_binary(Binary::Div, a, b, &values, data_type)?,
        (Op::Neg, [a]) => of_unary(Unary::Neg, a, &values, data_type)?,
        (Op::Sqrt, [a]) => of_unary(Unary::Sqrt, a, &values, data_type)?,
        (Op::Exp, [a]) => of_unary(Unary::Exp, a, &values, data_type)?,
        (Op::Sigmoid, [a]) => of_unary(Unary::Gentle, a, &values, data_type)?,
        (Op::Round(to), [a]) => of_rounding(a.error, &values, *to)?,
        (Op::Sum(axis), [a]) => {
            let terms = a.values.len_of(Axis(*axis));
            let errors = [a.error, ErrorBound::EXACT];
            sum_of_products(step, errors, (&arrays, &values), (terms, data_type))?
        }
        (Op::Product, [a, b]) => {
            let terms = *a.values.shape().last()?;
            let errors = [a.error, b.error];
            sum_of_products(step, errors, (&arrays, &values), (terms, data_type))?
        }
        (Op::Reshape | Op::Expand | Op::Transpose(_) | Op::Pick { .. }, [a]) => a.error,
        (Op::Concat(_), parts) => {
            let errors = parts.iter().map(|part| part.error);
            errors.reduce(ErrorBound::or)?
        }
        _ => return None,
    };
    Some(Rounded { values, error })
}

/// The bound on the error of a sum of products, computed from the sum of the products' magnitudes.
/// `values` are the sums. `None` if no bound is known.
fn sum_of_products(
    step: &Recipe,
    errors: [ErrorBound; 2],
    (arrays, values): (&[&ArrayD<f64>], &ArrayD<f64>),
    (terms, data_type): (usize, DataType),
) -> Option<ErrorBound> {
    let magnitudes: Vec<ArrayD<f64>> = arrays.iter().map(|array| array.mapv(f64::abs)).collect();
    let magnitudes = computed(step, &magnitudes.iter().collect::<Vec<_>>());
    of_products(errors, terms, values, &magnitudes, data_type)
}
