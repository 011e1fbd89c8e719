//! Compares the results of two models.

use ndarray::{ArrayD, Zip, arr0};
use unfold::onnx::proto::{Dim, ValueInfoProto};
use unfold::onnx::{DataType, Model};

use super::numbers::{Kind, Numbers, Role};
use super::reference::{self, Env, Value};

/// Inputs for a model: every open extent is `open`, every condition is `truth`.
pub fn inputs(model: &Model, open: usize, truth: bool, kind: Kind) -> Env {
    let graph = model.graph();
    let is_given =
        |input: &&ValueInfoProto| !graph.initializer.iter().any(|t| t.name() == input.name());
    let value = |input: &ValueInfoProto| {
        let tensor = input
            .r#type
            .as_ref()
            .and_then(|t| t.tensor_type.as_ref())
            .expect("a tensor");
        let dims = tensor
            .shape
            .as_ref()
            .map(|shape| &shape.dim[..])
            .unwrap_or_default();
        let shape: Vec<usize> = dims
            .iter()
            .map(|dim| match dim.value {
                Some(Dim::DimValue(n)) => n as usize,
                _ => open,
            })
            .collect();
        match DataType::from_code(tensor.elem_type()) {
            Some(DataType::Bool) => Value::Ints(arr0(i64::from(truth)).into_dyn()),
            // A list of integers may be a shape, in which 0 keeps the extent. An array of a higher
            // rank holds indices into a table with at least two rows.
            Some(DataType::Int64) if shape.len() < 2 => Value::Ints(ArrayD::zeros(shape)),
            Some(DataType::Int64) => {
                let mut places = [1, 0, 0].into_iter().cycle();
                Value::Ints(ArrayD::from_shape_simple_fn(shape, || {
                    places.next().unwrap_or_default()
                }))
            }
            _ => Value::Floats(Numbers::from_recipe(input.name()).array(&shape, Role::Input, kind)),
        }
    };
    graph
        .input
        .iter()
        .filter(is_given)
        .map(|input| (input.name().to_owned(), value(input)))
        .collect()
}

/// Compares the results of two models for the same inputs. Accepts differences up to `tolerance`,
/// relative to the largest number in the whole computation. With a tolerance of 0, results must be
/// equal bit for bit, except for the sign of zero. Integers must be equal. Returns `Ok(false)` if
/// the first model cannot be computed.
pub fn agree(model: &Model, other: &Model, inputs: &Env, tolerance: f64) -> Result<bool, String> {
    let Ok(before) = reference::values(model, inputs) else {
        return Ok(false);
    };
    let after = reference::run(other, inputs).map_err(|error| format!("{error:#}"))?;
    if after.len() != model.graph().output.len() {
        return Err("there are not as many outputs".to_owned());
    }
    let finite = |value: &Value| value.floats().ok().cloned();
    let numbers = before.values().filter_map(finite).flatten();
    let largest = numbers
        .filter(|v| v.is_finite())
        .fold(1.0, |largest: f64, v| largest.max(v.abs()));
    for (output, after) in model.graph().output.iter().zip(after) {
        let (name, before) = (output.name(), &before[output.name()]);
        // The mean of no elements is NaN in both models.
        let near = |a: &f64, b: &f64| {
            a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= tolerance * largest
        };
        let same = match (before, &after) {
            (Value::Floats(before), Value::Floats(after)) => {
                before.shape() == after.shape() && Zip::from(before).and(after).all(near)
            }
            (Value::Ints(before), Value::Ints(after)) => before == after,
            _ => false,
        };
        if !same {
            return Err(format!("{name} was\n{before:?}\nand is\n{after:?}"));
        }
    }
    Ok(true)
}
