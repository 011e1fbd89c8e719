//! Runs two models on the same inputs, and measures how far their outputs differ, and how far rounding moves them.

use tract_onnx::prelude::Tensor;

use crate::measurements::shaken;
use crate::onnx::Model;
use crate::run::{Dims, Engine, Failure, Input};
use crate::verify::{default_tolerance, doubt};

/// A difference is far above rounding if it exceeds the effect of one rounding of each weight this many times.
const FAR: f64 = 100.0;

/// A difference is above rounding if it exceeds the largest of all measured effects of one rounding of each weight this
/// many times.
const ABOVE: f64 = 10.0;

/// The share of the tolerance of verification below which a difference is not above rounding.
const FLOOR: f64 = 0.01;

/// The variants with moved weights that measure rounding beside the first one: the index of the model, and the seed.
const VARIANTS: [(usize, u64); 3] = [(0, 1), (1, 0), (1, 1)];

/// The difference of one output of both models on one input.
#[derive(Debug)]
pub(super) struct OutputDifference {
    /// The index of the output.
    pub at: usize,
    /// The shapes of both outputs, if they differ.
    pub shapes: Option<[Vec<usize>; 2]>,
    /// The difference, as a witness has it.
    pub relative: f64,
    /// The relative difference that moving each weight by one rounding causes.
    pub rounding: f64,
}

impl OutputDifference {
    /// The difference as a multiple of the effect of rounding; 0 if rounding makes an output infinite.
    pub(super) fn over_rounding(&self) -> f64 {
        if self.rounding.is_finite() {
            self.relative / self.rounding.max(f64::MIN_POSITIVE)
        } else {
            0.0
        }
    }
}

/// Loads a model into tract.
type Load = fn(&Model, &Dims) -> Result<Engine, Failure>;

/// Both models in tract, and a variant of the coarser one with moved weights.
pub(super) struct ComparedRuns<'r> {
    models: [&'r Model; 2],
    load: Load,
    engines: [Engine; 2],
    /// The index of the model that stores coarser floats: the first one unless only the second one
    /// stores floats of a narrower type.
    coarser: usize,
    /// The coarser model, with each weight moved by one rounding.
    moved: Engine,
    tolerance: f64,
    pub dims: Dims,
}

/// The outputs of both models on one input.
struct Outputs {
    of_models: [Vec<Tensor>; 2],
    /// The largest measured effect of rounding on each output.
    roundings: Vec<f64>,
}

impl<'r> ComparedRuns<'r> {
    /// Loads both models.
    ///
    /// # Errors
    /// The reason if tract cannot run them.
    pub(super) fn load(models: [&'r Model; 2], dims: &Dims) -> Result<Self, String> {
        Self::load_as(models, dims, Engine::load)
    }

    /// Loads both models again, without tract's optimizations.
    ///
    /// # Errors
    /// The reason if tract cannot run them so.
    pub(super) fn unoptimized(&self) -> Result<Self, String> {
        Self::load_as(self.models, &self.dims, Engine::load_unoptimized)
    }

    fn load_as(models: [&'r Model; 2], dims: &Dims, load: Load) -> Result<Self, String> {
        let [first, second] = models;
        if let Some(reason) = doubt(first, second, dims) {
            return Err(reason);
        }
        let engines = [loaded(first, dims, load)?, loaded(second, dims, load)?];
        let tolerances = models.map(default_tolerance);
        let coarser = usize::from(tolerances[1] > tolerances[0]);
        Ok(Self {
            models,
            load,
            engines,
            coarser,
            moved: moved(models[coarser], 0, dims, load)?,
            tolerance: tolerances[coarser],
            dims: dims.clone(),
        })
    }

    /// The inputs of the first model.
    pub(super) fn inputs(&self) -> &[Input] {
        self.engines[0].inputs()
    }

    /// The name of an output of the first model.
    pub(super) fn output(&self, at: usize) -> String {
        let names = self.engines[0].outputs();
        names.get(at).cloned().unwrap_or_default()
    }

    /// The largest difference on these inputs that is far above rounding.
    pub(super) fn far_difference(&self, inputs: &[Tensor]) -> Option<OutputDifference> {
        let outputs = self.run(inputs).ok()?;
        let differences = outputs.differences().into_iter();
        differences
            .filter(|found| found.relative > self.tolerance && found.over_rounding() > FAR)
            .max_by(|one, other| one.relative.total_cmp(&other.relative))
    }

    /// The differences of float outputs on all inputs, each with the index of the inputs. Rounding is the largest effect
    /// of several variants of both models with moved weights.
    ///
    /// # Errors
    /// The reason if tract can run the models on none of the inputs.
    pub(super) fn differences(
        &self,
        samples: &[Vec<Tensor>],
    ) -> Result<Vec<(usize, OutputDifference)>, String> {
        let mut runs = vec![];
        let mut failure = None;
        for (sample, inputs) in samples.iter().enumerate() {
            match self.run(inputs) {
                Ok(outputs) => runs.push((sample, outputs)),
                Err(reason) => failure = Some(reason),
            }
        }
        if let (true, Some(reason)) = (runs.is_empty(), failure) {
            return Err(reason);
        }
        for (model, seed) in VARIANTS {
            let variant = moved(self.models[model], seed, &self.dims, self.load)?;
            for (sample, outputs) in &mut runs {
                outputs.add_rounding(model, &variant, &samples[*sample])?;
            }
        }
        let differences = runs.iter().flat_map(|(sample, outputs)| {
            let differences = outputs.differences().into_iter();
            let of_floats = differences.filter(|found| outputs.is_float(found.at));
            of_floats.map(|found| (*sample, found))
        });
        Ok(differences
            .filter(|(_, found)| found.relative > 0.0)
            .collect())
    }

    /// Whether a difference is above rounding, where rounding is the largest of several effects. If no weight has an
    /// effect, rounding is unknown.
    pub(super) fn exceeds_rounding(&self, difference: &OutputDifference) -> bool {
        difference.rounding > 0.0
            && difference.over_rounding() > ABOVE
            && difference.relative > FLOOR * self.tolerance
    }

    /// Runs both models and the variant on these inputs.
    fn run(&self, inputs: &[Tensor]) -> Result<Outputs, String> {
        let [first, second] = &self.engines;
        let of_models = [
            output_values(first, inputs)?,
            output_values(second, inputs)?,
        ];
        let roundings = vec![0.0; of_models[0].len()];
        let mut outputs = Outputs {
            of_models,
            roundings,
        };
        outputs.add_rounding(self.coarser, &self.moved, inputs)?;
        Ok(outputs)
    }
}

impl Outputs {
    /// Runs a variant of a model with moved weights, and takes its effects into account.
    fn add_rounding(
        &mut self,
        model: usize,
        variant: &Engine,
        inputs: &[Tensor],
    ) -> Result<(), String> {
        let moved = output_values(variant, inputs)?;
        let pairs = self.of_models[model].iter().zip(&moved);
        for (rounding, (expected, moved)) in self.roundings.iter_mut().zip(pairs) {
            *rounding = rounding.max(distance(expected, moved).unwrap_or(f64::INFINITY));
        }
        Ok(())
    }

    /// The difference of each output.
    fn differences(&self) -> Vec<OutputDifference> {
        let [first, second] = &self.of_models;
        let pairs = first.iter().zip(second).zip(&self.roundings).enumerate();
        pairs
            .filter_map(|(at, ((expected, other), &rounding))| {
                let shapes = [expected.shape(), other.shape()].map(<[usize]>::to_vec);
                let relative = distance(expected, other)?;
                let shapes = (shapes[0] != shapes[1]).then_some(shapes);
                Some(OutputDifference {
                    at,
                    shapes,
                    relative,
                    rounding,
                })
            })
            .collect()
    }

    fn is_float(&self, at: usize) -> bool {
        self.of_models[0][at].datum_type().is_float()
    }
}

fn loaded(model: &Model, dims: &Dims, load: Load) -> Result<Engine, String> {
    load(model, dims).map_err(|failure| failure.to_string())
}

/// The model with each weight moved by one rounding.
fn moved(model: &Model, seed: u64, dims: &Dims, load: Load) -> Result<Engine, String> {
    let moved = shaken(model, seed).ok_or("a tensor cannot be read")?;
    loaded(&moved, dims, load)
}

fn output_values(engine: &Engine, inputs: &[Tensor]) -> Result<Vec<Tensor>, String> {
    engine.run(inputs).map_err(|failure| failure.to_string())
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
