//! Compares two models by running both in tract on the same seeded random inputs.

mod measure;
#[cfg(test)]
mod tests;
mod trust;

use serde::Serialize;
use tract_onnx::prelude::{DatumType, Tensor};

use crate::onnx::Model;
use crate::onnx::tensor::{self, DataType};
use crate::run::{Dims, Engine, Failure, random};
use measure::{is_mute, measure};
use trust::{compares_too_many, unbounded, unseen, untrusted};

/// The options of a comparison.
#[derive(Debug, Clone)]
pub struct VerifyOptions {
    /// The sizes of symbolic dimensions.
    pub dims: Dims,
    /// The largest relative error that passes. The default depends on the least precise float type
    /// of the weights: 1e-1 for bfloat16, 2e-2 for half, 1e-4 for float, 1e-9 for double.
    pub tolerance: Option<f64>,
    /// The seeds of the inputs, one for each run.
    pub seeds: Vec<u64>,
}

impl Default for VerifyOptions {
    fn default() -> Self {
        Self {
            dims: Dims::default(),
            tolerance: None,
            seeds: vec![0],
        }
    }
}

/// The outcome of a comparison.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Verdict {
    /// Both models ran. [`Comparison::agrees`] says whether their outputs agree.
    Compared(Comparison),
    /// The original runs, but the other model does not run, or its outputs have other names, types
    /// or shapes.
    Broken {
        /// The reason why the other model does not run, or how its outputs differ from the
        /// original's.
        reason: String,
    },
    /// The models could not be compared, because the original cannot be run, or because its results
    /// would not be reliable.
    CouldNotVerify {
        /// The reason.
        reason: String,
    },
}

impl Verdict {
    /// Whether both models ran and agree.
    pub fn passed(&self) -> bool {
        matches!(self, Self::Compared(comparison) if comparison.agrees())
    }
}

/// The differences between the outputs of two models.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Comparison {
    /// The largest relative error that passes.
    pub tolerance: f64,
    /// The outputs in order, each with its largest errors over all seeds.
    pub outputs: Vec<OutputError>,
}

impl Comparison {
    /// Whether every output agrees.
    pub fn agrees(&self) -> bool {
        self.outputs
            .iter()
            .all(|output| output.agrees(self.tolerance))
    }

    /// The output with the largest error; `None` for a model without outputs.
    pub fn worst(&self) -> Option<&OutputError> {
        self.outputs.iter().reduce(|worst, output| {
            if output.severity() > worst.severity() {
                output
            } else {
                worst
            }
        })
    }
}

/// The differences between one output of two models.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OutputError {
    /// The name of the output.
    pub name: String,
    /// The largest difference between two elements.
    pub absolute: f64,
    /// The largest difference, divided by the largest magnitude of the original's output.
    pub relative: f64,
    /// The number of elements that differ beyond any tolerance. These are different integers and
    /// booleans, and elements that are NaN or infinite in only one result.
    pub mismatched: usize,
}

impl OutputError {
    /// An output without errors.
    fn none(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            absolute: 0.0,
            relative: 0.0,
            mismatched: 0,
        }
    }

    fn severity(&self) -> (usize, f64) {
        (self.mismatched, self.relative)
    }

    fn agrees(&self, tolerance: f64) -> bool {
        self.mismatched == 0 && self.relative <= tolerance
    }
}

/// Runs `original` and `fused` on the same random inputs, and measures the differences between
/// their outputs.
///
/// ```no_run
/// use unfold::onnx::Model;
/// use unfold::verify::{Verdict, VerifyOptions, compare};
///
/// let (original, fused) = (Model::open("model.onnx")?, Model::open("fused.onnx")?);
/// match compare(&original, &fused, &VerifyOptions::default()) {
///     Verdict::Compared(comparison) if comparison.agrees() => println!("they agree"),
///     Verdict::Compared(comparison) => println!("they differ: {:?}", comparison.worst()),
///     Verdict::Broken { reason } => println!("the fused model is broken: {reason}"),
///     Verdict::CouldNotVerify { reason } => println!("not verified: {reason}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn compare(original: &Model, fused: &Model, options: &VerifyOptions) -> Verdict {
    decided(original, fused, options).unwrap_or_else(|verdict| verdict)
}

/// The reason why two models cannot be compared by running them in tract, if there is one.
pub(crate) fn doubt(original: &Model, other: &Model, dims: &Dims) -> Option<String> {
    [original, other].into_iter().find_map(|model| {
        untrusted(model.graph(), model)
            .or_else(|| compares_too_many(model))
            .or_else(|| unbounded(model, dims))
    })
}

/// Compares two models. A verdict that ends the comparison early is returned as an error.
fn decided(original: &Model, fused: &Model, options: &VerifyOptions) -> Result<Verdict, Verdict> {
    let doubt = untrusted(original.graph(), original)
        .or_else(|| [original, fused].into_iter().find_map(compares_too_many))
        .or_else(|| unbounded(original, &options.dims));
    if let Some(reason) = doubt {
        return Err(Verdict::CouldNotVerify { reason });
    }
    let (names, reference) = run(original, options).map_err(|failure| {
        let reason = failure.to_string();
        Verdict::CouldNotVerify { reason }
    })?;
    if let Some(name) = unseen(original, &names, &reference) {
        let reason = format!(
            "its output `{name}` has no elements at these sizes: others may be given by --dim"
        );
        return Err(Verdict::CouldNotVerify { reason });
    }
    let (fused_names, outputs) = run(fused, options).map_err(|failure| {
        let reason = failure.to_string();
        Verdict::Broken { reason }
    })?;
    if names != fused_names {
        let (names, fused_names) = (names.join(", "), fused_names.join(", "));
        let reason = format!("its outputs are {fused_names}, and should be {names}");
        return Err(Verdict::Broken { reason });
    }
    let outputs =
        measure(&names, &reference, &outputs).map_err(|reason| Verdict::Broken { reason })?;
    let given = options.tolerance;
    let tolerance = given.unwrap_or_else(|| default_tolerance(original));
    let comparison = Comparison { tolerance, outputs };
    if comparison.agrees() && is_mute(&reference) {
        let reason =
            "no output has two different numbers: a wrong result would agree too".to_owned();
        return Err(Verdict::CouldNotVerify { reason });
    }
    Ok(Verdict::Compared(comparison))
}

/// Runs a model. Returns the names of its outputs, and their values for each seed.
fn run(model: &Model, options: &VerifyOptions) -> Result<(Vec<String>, Vec<Vec<Tensor>>), Failure> {
    let engine = Engine::load(model, &options.dims)?;
    let outputs: Result<_, _> = options
        .seeds
        .iter()
        .map(|&seed| engine.run(&random(engine.inputs(), seed)).map(in_numbers))
        .collect();
    let outputs = outputs?;
    Ok((engine.outputs().to_vec(), outputs))
}

/// Converts outputs of tract's type for symbolic extents (TDim) to integers.
fn in_numbers(outputs: Vec<Tensor>) -> Vec<Tensor> {
    outputs.into_iter().map(in_integers).collect()
}

fn in_integers(tensor: Tensor) -> Tensor {
    if tensor.datum_type() != DatumType::TDim {
        return tensor;
    }
    let cast = tensor.cast_to::<i64>().map(|cast| cast.into_owned());
    cast.unwrap_or(tensor)
}

/// The default tolerance: the relative error that rounding may cause. The error depends on the
/// least precise float type of the weights.
///
/// Folding changes the order of multiplications and additions, so that every layer rounds
/// differently. Over tens of layers, the errors add up to some tens of units in the last place of
/// the largest output. A tolerance of 1e-4 allows almost a thousand such units in float32. A wrong
/// axis, shift or sign causes a much larger error, near 1.
pub(crate) fn default_tolerance(model: &Model) -> f64 {
    let tensors = model.graph().initializer.iter();
    tensors
        .filter_map(|tensor| tolerance_of(tensor::data_type(tensor).ok()?))
        .reduce(f64::max)
        .unwrap_or(1e-4)
}

fn tolerance_of(data_type: DataType) -> Option<f64> {
    match data_type {
        DataType::BFloat16 => Some(1e-1),
        DataType::Float16 => Some(2e-2),
        DataType::Float => Some(1e-4),
        DataType::Double => Some(1e-9),
        _ => None,
    }
}
