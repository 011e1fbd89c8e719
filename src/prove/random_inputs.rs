//! Draws the inputs of both models at a point: random values that depend on their names.

use std::collections::{HashMap, HashSet};

use ndarray::ArrayD;
use tract_onnx::prelude::DatumType;

use crate::onnx::proto::TensorProto;
use crate::onnx::tensor::{self, DataType, declared_type};
use crate::prove::evaluate::Stopped;
use crate::prove::field_value::{FieldValue, slice};
use crate::prove::operators::Allowance;
use crate::prove::prepared::Prepared;
use crate::prove::random::{Hash, Unknown};
use crate::prove::roots::RootRule;
use crate::run::Input;

/// The maximum number of Boolean elements, of all inputs together, for which all combinations are
/// tried.
const FEW_TRUTHS: usize = 3;

/// The seeds of a point.
#[derive(Clone, Copy)]
pub(super) struct Seed {
    /// The seed of this attempt at the point.
    pub key: u64,
    /// The seed of all points.
    pub all: u64,
    /// The index of the point.
    pub point: u64,
    /// The definition of the root at this point.
    pub roots: RootRule,
}

/// The Boolean inputs, including those with defaults, and the number of elements of each.
pub(super) fn boolean_inputs(prepared: &Prepared) -> Vec<(&str, usize)> {
    let graph = prepared.model.graph();
    let mut found = vec![];
    for input in &prepared.inputs {
        if input.element == DatumType::Bool {
            found.push((input.name.as_str(), input.shape.iter().product()));
        }
    }
    if has_constant_defaults(prepared) {
        return found;
    }
    let names: HashSet<&str> = graph.input.iter().map(|input| input.name()).collect();
    for tensor in &graph.initializer {
        if tensor.data_type() == DataType::Bool.code() && names.contains(tensor.name()) {
            let shape = tensor::shape(tensor).unwrap_or_else(|_| vec![0]);
            found.push((tensor.name(), shape.iter().product()));
        }
    }
    found
}

/// Whether initializers of graph inputs are constants, as before IR version 4. Since version 4,
/// they are defaults that the caller may replace.
fn has_constant_defaults(prepared: &Prepared) -> bool {
    prepared.model.proto.ir_version() < 4
}

/// The number of points needed to cover all combinations of a few Boolean elements. For many
/// elements, 2 points, which cover both values of each element.
pub(super) fn truth_cases(truths: &[(&str, usize)]) -> usize {
    match truths.iter().map(|(_, count)| count).sum() {
        count @ 0..=FEW_TRUTHS => 1 << count,
        _ => 2,
    }
}

/// The Boolean elements of an input at a point.
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
    let values = (0..shape.iter().product::<usize>()).map(|place| {
        let bits = match is_few {
            true => point >> (before + place),
            // After two points, as for integers.
            false if point > 1 => place as u64 >> (point - 2).min(63),
            false => u64::from(unknown.value(place as u64)) ^ point,
        };
        (bits & 1) as i64
    });
    let places = values.collect();
    ArrayD::from_shape_vec(shape, places).map_or(FieldValue::Opaque(hash.finish()), FieldValue::int)
}

/// The values of the inputs. They are random, but an input of the same name and type has the same
/// value in both models.
///
/// # Errors
/// If the elements of an input exceed the limits.
pub(super) fn given(
    prepared: &Prepared,
    seed: Seed,
    allowance: &Allowance,
) -> Result<HashMap<String, FieldValue>, Stopped> {
    let draw = Draw {
        seed,
        truths: boolean_inputs(prepared),
        allowance,
    };
    let graph = prepared.model.graph();
    let sized = prepared.inputs.iter();
    let sized: HashMap<&str, &Input> = sized.map(|input| (input.name.as_str(), input)).collect();
    let stored = graph.initializer.iter();
    let stored: HashMap<&str, &TensorProto> =
        stored.map(|tensor| (tensor.name(), tensor)).collect();
    let has_constant_defaults = has_constant_defaults(prepared);
    let mut values = HashMap::new();
    for input in &graph.input {
        let name = input.name();
        let kind = match (sized.get(name), stored.get(name)) {
            // The initializer is only a default, which a caller may replace, so a value is drawn.
            (_, Some(tensor)) if !has_constant_defaults => tensor::data_type(tensor)
                .ok()
                .zip(tensor::shape(tensor).ok()),
            (_, Some(_)) => continue,
            (Some(sized), None) => {
                declared_type(input).map(|element| (element, sized.shape.clone()))
            }
            (None, None) => None,
        };
        values.insert(name.to_owned(), draw.value(name, kind)?);
    }
    Ok(values)
}

/// Draws inputs.
struct Draw<'d> {
    seed: Seed,
    truths: Vec<(&'d str, usize)>,
    allowance: &'d Allowance,
}

impl Draw<'_> {
    /// The value of an input. `kind` holds its type and its extents. It is `None` if the input is
    /// not a tensor, and then the value is opaque.
    fn value(
        &self,
        name: &str,
        kind: Option<(DataType, Vec<usize>)>,
    ) -> Result<FieldValue, Stopped> {
        let mut hash = Hash::new(self.seed.key, "input");
        hash.text(name);
        let own = hash.finish();
        let Some((data_type, shape)) = kind else {
            return Ok(FieldValue::Opaque(own));
        };
        self.allowance.room(&shape).map_err(|stop| Stopped {
            stop,
            at: name.to_owned(),
        })?;
        if self.truths.iter().any(|(truth, _)| *truth == name) {
            return Ok(truth(&self.truths, name, &shape, self.seed));
        }
        let drawn = FieldValue::drawn(own, &shape, data_type);
        Ok(with_hidden_places(drawn, self.seed.point))
    }
}

/// Integers of which half are 0 at each point after the first, like places that a mask hides: those
/// whose place has a certain binary digit. Any two places differ in a digit.
fn with_hidden_places(drawn: FieldValue, point: u64) -> FieldValue {
    let digit = point.checked_sub(1).filter(|digit| *digit < 64);
    let (FieldValue::Int(integers), Some(digit)) = (&drawn, digit) else {
        return drawn;
    };
    let places = slice(integers).iter().enumerate();
    let hidden = places.map(|(place, &integer)| match place as u64 >> digit & 1 {
        1 => 0,
        _ => integer,
    });
    let hidden = ArrayD::from_shape_vec(integers.shape(), hidden.collect());
    hidden.map_or(drawn, FieldValue::int)
}
