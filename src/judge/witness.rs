//! Searches for inputs on which the outputs of two models differ by far more than rounding.

use tract_onnx::prelude::{DatumType, Tensor};

use crate::measurements::shaken;
use crate::onnx::Model;
use crate::prove::sizes_of_proof;
use crate::run::{Dims, Engine, random};
use crate::verify::{default_tolerance, doubt};

/// The standard deviations of the normally distributed float inputs.
const SCALES: [f32; 3] = [1.0, 0.0625, 16.0];

/// The number of inputs that are tried at each scale.
const SEEDS: u64 = 2;

/// A difference counts if it is more than this many times the difference that one rounding of each
/// weight causes.
const FAR: f64 = 100.0;

/// An input on which the outputs of two models differ.
#[derive(Debug, serde::Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Witness {
    /// The output that differs most.
    pub output: String,
    /// The largest difference, divided by the largest magnitude in the output of the first model.
    /// For integers and truth values, the share of elements that differ. Infinite if the shapes
    /// differ, or if an element is finite only in the first model.
    pub relative: f64,
    /// The relative difference that moving each weight of the first model by one rounding causes.
    pub rounding: f64,
    /// The inputs by name, in the order of the first model.
    #[serde(skip)]
    pub inputs: Vec<(String, Tensor)>,
    /// The sizes of the symbolic dimensions of the inputs.
    #[serde(skip)]
    pub(crate) dims: Dims,
}

/// Finds the first witness among random inputs, at the given or default sizes and at the sizes of
/// the proof. `None` if no input shows a difference, or if tract cannot run one of the models.
pub(super) fn search(first: &Model, second: &Model, dims: &Dims) -> Option<Witness> {
    let mut sizes = vec![dims.clone()];
    sizes.extend(sizes_of_proof([first, second], dims));
    sizes.iter().find_map(|dims| search_at(first, second, dims))
}

/// Finds the first witness at these sizes. `None` if no input shows a difference, or if tract
/// cannot run one of the models.
fn search_at(first: &Model, second: &Model, dims: &Dims) -> Option<Witness> {
    let engines = Engines::load(first, second, dims)?;
    for scale in SCALES {
        for seed in 0..SEEDS {
            let mut inputs = random(engines.first.inputs(), seed);
            inputs.iter_mut().for_each(|input| multiply(input, scale));
            if let Some(witness) = engines.witness(inputs) {
                return Some(witness);
            }
        }
    }
    None
}

/// Runs both models on these inputs, in the order of the first model and at these sizes. Returns
/// the inputs as a witness if they show a difference. `None` if they do not, or if tract cannot run
/// one of the models.
pub(crate) fn witness_on(
    first: &Model,
    second: &Model,
    inputs: Vec<Tensor>,
    dims: &Dims,
) -> Option<Witness> {
    Engines::load(first, second, dims)?.witness(inputs)
}

/// Multiplies the elements of a float32 input. Leaves all other inputs unchanged.
fn multiply(input: &mut Tensor, factor: f32) {
    if input.datum_type() == DatumType::F32
        && let Ok(mut plain) = input.try_as_plain_ram_mut()
        && let Ok(elements) = plain.as_slice_mut::<f32>()
    {
        elements.iter_mut().for_each(|element| *element *= factor);
    }
}

/// Both models, and a variant of the first one with moved weights.
struct Engines {
    first: Engine,
    second: Engine,
    /// The first model, with each weight moved by one rounding.
    moved: Engine,
    tolerance: f64,
    dims: Dims,
}

impl Engines {
    /// Loads both models. `None` if tract cannot run them, or if its results on them are not
    /// trusted.
    fn load(first: &Model, second: &Model, dims: &Dims) -> Option<Self> {
        if doubt(first, second, dims).is_some() {
            return None;
        }
        let moved = shaken(first, 0)?;
        let [first_engine, second_engine, moved] =
            [first, second, &moved].map(|model| Engine::load(model, dims).ok());
        Some(Self {
            first: first_engine?,
            second: second_engine?,
            moved: moved?,
            tolerance: default_tolerance(first),
            dims: dims.clone(),
        })
    }

    /// Runs the models on these inputs. Returns a witness if the outputs differ by far more than
    /// rounding explains. `None` if they do not, or if a run fails.
    fn witness(&self, inputs: Vec<Tensor>) -> Option<Witness> {
        let [reference, moved, other] =
            [&self.first, &self.moved, &self.second].map(|engine| engine.run(&inputs).ok());
        let (reference, moved, other) = (reference?, moved?, other?);
        let mut worst: Option<(usize, f64, f64)> = None;
        for (at, ((expected, moved), other)) in reference.iter().zip(&moved).zip(&other).enumerate()
        {
            let rounding = distance(expected, moved)?;
            let relative = distance(expected, other)?;
            let is_far = relative > FAR * rounding && relative > self.tolerance;
            if is_far && worst.is_none_or(|(_, most, _)| relative > most) {
                worst = Some((at, relative, rounding));
            }
        }
        let (at, relative, rounding) = worst?;
        let names = self.first.inputs().iter().map(|input| input.name.clone());
        Some(Witness {
            output: self.first.outputs().get(at)?.clone(),
            relative,
            rounding,
            inputs: names.zip(inputs).collect(),
            dims: self.dims.clone(),
        })
    }
}

/// The largest difference between the elements of two float outputs, divided by the largest
/// magnitude in the first output. For other types, the share of elements that differ.
///
/// The result is infinite if the shapes differ, or if an element is finite only in the first
/// output. Elements that are not finite in the first output are ignored.
fn distance(expected: &Tensor, other: &Tensor) -> Option<f64> {
    if expected.shape() != other.shape() {
        return Some(f64::INFINITY);
    }
    let is_float = expected.datum_type().is_float();
    let [expected, other] = [expected, other].map(|tensor| tensor.cast_to::<f64>().ok());
    let (expected, other) = (expected?, other?);
    let (expected, other) = (
        expected.try_as_plain_ram().ok()?,
        other.try_as_plain_ram().ok()?,
    );
    let (expected, other) = (
        expected.as_slice::<f64>().ok()?,
        other.as_slice::<f64>().ok()?,
    );
    if is_float {
        Some(distance_of_floats(expected, other))
    } else {
        // Not every differing element is an error: rounding may change an ArgMax, or move a value
        // across a threshold.
        let differing = expected.iter().zip(other).filter(|(a, b)| a != b).count();
        Some(differing as f64 / expected.len().max(1) as f64)
    }
}

fn distance_of_floats(expected: &[f64], other: &[f64]) -> f64 {
    let (mut difference, mut magnitude) = (0.0_f64, 0.0_f64);
    let pairs = expected.iter().zip(other);
    for (&expected, &other) in pairs.filter(|(expected, _)| expected.is_finite()) {
        let apart = (expected - other).abs();
        difference = difference.max(if apart.is_nan() { f64::INFINITY } else { apart });
        magnitude = magnitude.max(expected.abs());
    }
    if difference == 0.0 {
        0.0
    } else {
        difference / magnitude
    }
}
