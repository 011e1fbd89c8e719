//! The inputs of both models at a point: random numbers, equal for equal names.

use std::collections::{HashMap, HashSet};

use ndarray::ArrayD;
use tract_onnx::prelude::DatumType;

use crate::onnx::proto::TensorProto;
use crate::onnx::tensor::{self, DataType};
use crate::prove::evaluate::Stopped;
use crate::prove::field_value::FieldValue;
use crate::prove::operators::Allowance;
use crate::prove::prepared::Prepared;
use crate::prove::random::{Hash, Unknown};
use crate::run::Input;

/// Of so many truth values among the inputs, all that they may be are tried.
const FEW_TRUTHS: usize = 3;
/// The seeds of a point.
#[derive(Clone, Copy)]
pub struct Seed {
    /// The seed of this point, or of another attempt at it.
    pub key: u64,
    /// The seed of all points.
    pub all: u64,
    /// Which point it is.
    pub point: u64,
}

/// The inputs of truth values, also those that need not be given, and how many each has.
pub fn boolean_inputs(prepared: &Prepared) -> Vec<(&str, usize)> {
    let is_truth = |input: &&Input| input.element == DatumType::Bool;
    let inputs = prepared.inputs.iter().filter(is_truth);
    let graph = prepared.model.graph();
    let names: HashSet<&str> = graph.input.iter().map(|input| input.name()).collect();
    let is_default = |tensor: &&TensorProto| {
        tensor.data_type() == DataType::Bool.code() && names.contains(tensor.name())
    };
    // Before that version they are the constants that they are.
    let is_given = prepared.model.proto.ir_version() >= 4;
    let defaults = graph
        .initializer
        .iter()
        .filter(is_default)
        .filter(|_| is_given);
    let count =
        |tensor: &TensorProto| tensor::shape(tensor).map_or(0, |shape| shape.iter().product());
    inputs
        .map(|input| (input.name.as_str(), input.shape.iter().product()))
        .chain(defaults.map(|tensor| (tensor.name(), count(tensor))))
        .collect()
}

/// How many points see all that a few truth values may be; of more, each is seen both ways.
pub fn truth_cases(truths: &[(&str, usize)]) -> usize {
    match truths.iter().map(|(_, count)| count).sum() {
        count @ 0..=FEW_TRUTHS => 1 << count,
        _ => 2,
    }
}

/// The truth values of an input at a point.
fn truth(
    truths: &[(&str, usize)],
    name: &str,
    shape: &[usize],
    Seed { all, point, .. }: Seed,
) -> FieldValue {
    let before: usize = truths
        .iter()
        .take_while(|(other, _)| *other != name)
        .map(|(_, count)| count)
        .sum();
    let is_few = truths.iter().map(|(_, count)| count).sum::<usize>() <= FEW_TRUTHS;
    let mut hash = Hash::new(all, "truth");
    hash.text(name);
    let unknown = Unknown::new(hash.finish());
    let one = |place: usize| match is_few {
        true => point >> (before + place) & 1,
        false => (u64::from(unknown.value(place as u64)) ^ point) & 1,
    };
    let places = (0..shape.iter().product())
        .map(|place| one(place) as i64)
        .collect();
    ArrayD::from_shape_vec(shape, places).map_or(FieldValue::Opaque(hash.finish()), FieldValue::int)
}

/// The values of the inputs: random ones, the same for each name.
///
/// # Errors
/// At which input there is too much of them.
pub fn given(
    prepared: &Prepared,
    seed: Seed,
    allowance: &Allowance,
) -> Result<HashMap<String, FieldValue>, Stopped> {
    let (key, truths) = (seed.key, boolean_inputs(prepared));
    let graph = prepared.model.graph();
    let sized: HashMap<&str, &Input> = prepared
        .inputs
        .iter()
        .map(|input| (input.name.as_str(), input))
        .collect();
    let stored: HashMap<&str, &TensorProto> = graph
        .initializer
        .iter()
        .map(|tensor| (tensor.name(), tensor))
        .collect();
    let listed_is_constant = prepared.model.proto.ir_version() < 4;
    let mut values = HashMap::new();
    for input in &graph.input {
        let name = input.name();
        let mut hash = Hash::new(key, "input");
        hash.text(name);
        let own = hash.finish();
        let drawn = |shape: &[usize], data_type| {
            allowance.room(shape).map_err(|stop| Stopped {
                stop,
                at: name.to_owned(),
            })?;
            Ok(match truths.iter().any(|(truth, _)| *truth == name) {
                true => truth(&truths, name, shape, seed),
                false => FieldValue::drawn(own, shape, data_type),
            })
        };
        let declared =
            || DataType::from_code(input.r#type.as_ref()?.tensor_type.as_ref()?.elem_type());
        let value = match (sized.get(name), stored.get(name)) {
            // A default, which the caller may replace.
            (_, Some(tensor)) if !listed_is_constant => {
                match (tensor::data_type(tensor), tensor::shape(tensor)) {
                    (Ok(data_type), Ok(shape)) => drawn(&shape, data_type)?,
                    _ => FieldValue::Opaque(own),
                }
            }
            (_, Some(_)) => continue,
            (Some(sized), None) => match declared() {
                Some(data_type) => drawn(&sized.shape, data_type)?,
                None => FieldValue::Opaque(own),
            },
            (None, None) => FieldValue::Opaque(own),
        };
        values.insert(name.to_owned(), value);
    }
    Ok(values)
}
