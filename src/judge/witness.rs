//! Searches for inputs on which the outputs of two models differ by more than rounding.

use tract_onnx::prelude::{DatumType, Tensor};

use super::compared_runs::{ComparedRuns, OutputDifference};
use crate::onnx::Model;
use crate::prove::sizes_of_proof;
use crate::run::{Dims, Input, random};

/// The standard deviations of the normally distributed float inputs.
const SCALES: [f32; 3] = [1.0, 0.0625, 16.0];

/// The standard deviations of the inputs on which differences near rounding are searched. On the smallest inputs, the
/// biases of the first layer have the largest effect.
const NEAR_SCALES: [f32; 4] = [1.0, 0.0625, 16.0, 0.00390625];

/// The number of inputs that are tried at each scale.
const SEEDS: u64 = 2;

/// The number of inputs with levels, whose axes take turns.
const LEVEL_SEEDS: u64 = 8;

/// The standard deviation of the levels.
const LEVEL: f32 = 3.0;

/// An input on which the outputs of two models differ.
#[derive(Debug, serde::Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Witness {
    /// The output that differs most.
    pub output: String,
    /// The shapes of this output in both models, if they differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shapes: Option<[Vec<usize>; 2]>,
    /// The largest difference, divided by the largest magnitude in the output of the first model.
    /// For integers and truth values, the share of elements that differ. Infinite if the shapes
    /// differ, or if an element is finite only in the first model.
    pub relative: f64,
    /// The relative difference that moving each weight by one rounding causes.
    pub rounding: f64,
    /// The first value of one model without a known counterpart in the other one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_value: Option<String>,
    /// The inputs by name, in the order of the first model.
    #[serde(skip)]
    pub inputs: Vec<(String, Tensor)>,
    /// The sizes of the symbolic dimensions of the inputs.
    #[serde(skip)]
    pub(crate) dims: Dims,
}

/// The reason why no input is a witness.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoWitness {
    #[error("no run shows a difference")]
    Equal,
    #[error(
        "a run differs by {:.1e} in `{output}`, which rounding can make: one rounding of each weight makes {:.1e}",
        difference.relative,
        difference.rounding
    )]
    Rounding {
        output: String,
        difference: OutputDifference,
    },
    #[error("no run shows a difference: {0}")]
    Failed(String),
}

/// Finds a witness among random inputs, at the given or default sizes and at those of the proof.
/// Differences near rounding are searched if no input shows a large one.
///
/// # Errors
/// The largest difference over rounding that was seen, if no input is a witness.
pub(super) fn search(first: &Model, second: &Model, dims: &Dims) -> Result<Witness, NoWitness> {
    let mut sizes = vec![dims.clone()];
    sizes.extend(sizes_of_proof([first, second], dims));
    let mut first_runs = None;
    let mut failure = None;
    for dims in &sizes {
        match ComparedRuns::load([first, second], dims) {
            Ok(runs) => {
                if let Some(witness) = far_witness(&runs) {
                    return Ok(witness);
                }
                first_runs.get_or_insert(runs);
            }
            Err(reason) => {
                failure.get_or_insert(reason);
            }
        }
    }
    match (first_runs, failure) {
        (Some(runs), _) => match near_witness(&runs, &near_samples(runs.inputs())) {
            // tract's optimizations may have removed the difference.
            Err(NoWitness::Equal) => {
                let unoptimized = runs.unoptimized().map_err(NoWitness::Failed)?;
                near_witness(&unoptimized, &near_samples(runs.inputs()))
            }
            found => found,
        },
        (None, Some(reason)) => Err(NoWitness::Failed(reason)),
        (None, None) => Err(NoWitness::Equal),
    }
}

/// Runs both models on these inputs, in the order of the first model and at these sizes. Returns
/// the inputs as a witness if they show a difference.
pub(crate) fn witness_on(
    first: &Model,
    second: &Model,
    inputs: Vec<Tensor>,
    dims: &Dims,
) -> Option<Witness> {
    let runs = ComparedRuns::load([first, second], dims).ok()?;
    match runs.far_difference(&inputs) {
        Some(difference) => Some(witness(&runs, inputs, difference)),
        None => near_witness(&runs, &[inputs]).ok(),
    }
}

/// Runs both models with 0 for all truth values and integers of the inputs, except for indices into tables, as if every
/// place was padding. Returns the inputs as a witness if they show a difference.
pub(super) fn with_hidden_places(first: &Model, second: &Model, dims: &Dims) -> Option<Witness> {
    let runs = ComparedRuns::load([first, second], dims).ok()?;
    let mut values = random(runs.inputs(), 0);
    for (value, input) in values.iter_mut().zip(runs.inputs()) {
        if input.indices.is_none() && !value.datum_type().is_float() {
            *value = Tensor::zero_dt(value.datum_type(), value.shape()).ok()?;
        }
    }
    let difference = runs.far_difference(&values)?;
    Some(witness(&runs, values, difference))
}

/// The first random input on which the models differ by far more than rounding.
fn far_witness(runs: &ComparedRuns) -> Option<Witness> {
    drawn(runs.inputs(), &SCALES)
        .into_iter()
        .find_map(|inputs| {
            let difference = runs.far_difference(&inputs)?;
            Some(witness(runs, inputs, difference))
        })
}

/// The input with the smallest effect of rounding, among all on which the models differ by more
/// than rounding. Where rounding has a large effect, few variants measure it badly.
fn near_witness(runs: &ComparedRuns, samples: &[Vec<Tensor>]) -> Result<Witness, NoWitness> {
    let mut differences = runs.differences(samples).map_err(NoWitness::Failed)?;
    differences.sort_by(|(_, one), (_, other)| one.rounding.total_cmp(&other.rounding));
    let above = differences
        .iter()
        .position(|(_, found)| runs.exceeds_rounding(found));
    if let Some(above) = above {
        let (sample, difference) = differences.swap_remove(above);
        return Ok(witness(runs, samples[sample].clone(), difference));
    }
    let largest = differences
        .into_iter()
        .max_by(|(_, one), (_, other)| one.over_rounding().total_cmp(&other.over_rounding()));
    Err(match largest {
        Some((_, difference)) => NoWitness::Rounding {
            output: runs.output(difference.at),
            difference,
        },
        None => NoWitness::Equal,
    })
}

fn witness(runs: &ComparedRuns, inputs: Vec<Tensor>, difference: OutputDifference) -> Witness {
    let names = runs.inputs().iter().map(|input| input.name.clone());
    Witness {
        output: runs.output(difference.at),
        shapes: difference.shapes,
        relative: difference.relative,
        rounding: difference.rounding,
        first_value: None,
        inputs: names.zip(inputs).collect(),
        dims: runs.dims.clone(),
    }
}

/// Draws inputs at each scale of [`NEAR_SCALES`], and inputs with levels.
fn near_samples(inputs: &[Input]) -> Vec<Vec<Tensor>> {
    let mut samples = drawn(inputs, &NEAR_SCALES);
    samples.extend((0..LEVEL_SEEDS).map(|seed| {
        let mut sample = random(inputs, seed);
        let levels = random(inputs, LEVEL_SEEDS + seed);
        for (input, levels) in sample.iter_mut().zip(&levels) {
            add_levels(input, levels, seed as usize);
        }
        sample
    }));
    samples
}

/// Draws inputs at each scale.
fn drawn(inputs: &[Input], scales: &[f32]) -> Vec<Vec<Tensor>> {
    let mut samples = vec![];
    for &scale in scales {
        for seed in 0..SEEDS {
            let mut sample = random(inputs, seed);
            sample.iter_mut().for_each(|input| multiply(input, scale));
            samples.push(sample);
        }
    }
    samples
}

/// Adds to all elements of a float32 input at the same place of an axis the same number. A ReLU that noise never
/// activates may be active then.
fn add_levels(input: &mut Tensor, levels: &Tensor, axis: usize) {
    let rank = input.rank();
    if rank == 0 {
        return;
    }
    let axis = axis % rank;
    let extent = input.shape()[axis];
    let stride: usize = input.shape()[axis + 1..].iter().product();
    if let Ok(mut plain) = input.try_as_plain_ram_mut()
        && let Ok(elements) = plain.as_slice_mut::<f32>()
        && let Ok(levels) = levels.try_as_plain_ram()
        && let Ok(levels) = levels.as_slice::<f32>()
    {
        for (at, element) in elements.iter_mut().enumerate() {
            *element += LEVEL * levels[at / stride % extent];
        }
    }
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
