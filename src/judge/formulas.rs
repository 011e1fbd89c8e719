//! Evaluates recipes, and bounds the error of an evaluation in floats.

use std::collections::HashMap;

use ndarray::{ArrayD, Axis};

use super::rounded::{
    Binary, ErrorBound, Rounded, Unary, of_binary, of_products, of_rounding, of_unary,
};
use crate::onnx::tensor::DataType;
use crate::recipe::{Op, Recipe, computed};

/// Evaluates a recipe whose operations have the given type. `None` if a constant cannot be read or
/// has another shape than in the recipe, or if no bound is known for an operation.
pub(super) fn value(
    recipe: &Recipe,
    data_type: DataType,
    read: &dyn Fn(&str) -> Option<Rounded>,
) -> Option<Rounded> {
    let mut known: HashMap<_, Rounded> = HashMap::new();
    for step in recipe.steps() {
        let made = match step.op() {
            Op::Constant(name) => read(name).filter(|made| made.values.shape() == step.shape())?,
            _ => {
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
            sum_of_products(
                step,
                [a.error, ErrorBound::EXACT],
                &arrays,
                (terms, data_type),
            )?
        }
        (Op::Product, [a, b]) => {
            let terms = *a.values.shape().last()?;
            sum_of_products(step, [a.error, b.error], &arrays, (terms, data_type))?
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
/// `None` if no bound is known.
fn sum_of_products(
    step: &Recipe,
    errors: [ErrorBound; 2],
    arrays: &[&ArrayD<f64>],
    (terms, data_type): (usize, DataType),
) -> Option<ErrorBound> {
    let magnitudes: Vec<ArrayD<f64>> = arrays.iter().map(|array| array.mapv(f64::abs)).collect();
    let magnitudes = computed(step, &magnitudes.iter().collect::<Vec<_>>());
    of_products(
        errors,
        terms,
        &computed(step, arrays),
        &magnitudes,
        data_type,
    )
}
