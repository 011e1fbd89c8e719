//! The candidates of `tune`, which are measured in tract, or by Python code in onnxruntime.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use clap::ValueEnum;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::calls::{SizesByName, sizes_of};
use super::errors::{BadOption, raised};
use super::gil_worker::attend;
use super::source::ModelSource;
use crate::bench::choice::TuneGoal;
use crate::bench::{BenchOptions, Stop};
use crate::cli::candidates::{Candidate, candidates};
use crate::cli::fuse::Fix;
use crate::cli::out::Paint;
use crate::cli::rounds::RoundArgs;
use crate::cli::tune::{GoalName, sized, take_fixed};
use crate::cli::tune_report::{Times, Tuned};
use crate::onnx::Model;
use crate::run::{Dims, Input, random};

/// The different results of `fuse` for one model.
#[pyclass(frozen, module = "unfold_onnx._native")]
pub(crate) struct Candidates {
    candidates: Arc<Vec<Candidate>>,
    options: BenchOptions,
}

/// The name, element type, shape and elements of an input.
type InputData<'py> = (String, String, Vec<usize>, Bound<'py, PyBytes>);

/// The report of `tune` as JSON and as text.
type TunedAsText = (String, String);

#[pymethods]
impl Candidates {
    #[new]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        source: &ModelSource,
        dim: SizesByName,
        fix: SizesByName,
        rounds: Option<NonZeroUsize>,
        time: f64,
        threads: NonZeroUsize,
        progress: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let rounds = RoundArgs {
            dims: vec![sizes_of(&dim)],
            rounds,
            time,
            threads,
            quiet: true,
        };
        let fix = [Fix::Sizes(sizes_of(&fix))];
        let read = source.reader();
        let ended = attend(py, progress, move |attended| {
            let tell = |stage: &str, done, of| attended.tell(stage, done, of);
            tell("load", 0, 1);
            let model = read()?;
            let (options, fix) =
                measurement(&rounds, &fix, &model).map_err(|error| BadOption(error.to_string()))?;
            let candidates = candidates(&model, &options.dims, &fix, &tell)?;
            Ok(Self {
                candidates: Arc::new(candidates),
                options,
            })
        });
        source.settled(py, ended)
    }

    /// The number of candidates.
    fn __len__(&self) -> usize {
        self.candidates.len()
    }

    /// The name of a candidate in reports.
    fn name(&self, at: usize) -> String {
        self.candidates[at].options.to_string()
    }

    /// The sizes of the open dimensions.
    fn sizes(&self) -> Vec<(String, usize)> {
        self.options
            .dims
            .iter()
            .map(|(name, size)| (name.to_owned(), size))
            .collect()
    }

    /// Writes a candidate to a file.
    fn save(&self, py: Python<'_>, at: usize, path: PathBuf) -> PyResult<()> {
        let candidates = self.candidates.clone();
        attend(py, None, move |_| {
            candidates[at].model.save(path)?;
            Ok(())
        })
    }

    /// The random inputs on which tract runs.
    fn inputs<'py>(&self, py: Python<'py>) -> PyResult<Vec<InputData<'py>>> {
        let inputs = Input::from_model(&self.candidates[0].model, &self.options.dims)
            .map_err(|failure| raised(&failure.into()))?;
        let tensors = random(&inputs, 0);
        let data = inputs.into_iter().zip(&tensors).map(|(input, tensor)| {
            let element = format!("{:?}", input.element).to_lowercase();
            let bytes = PyBytes::new(py, tensor.as_bytes());
            (input.name, element, input.shape, bytes)
        });
        Ok(data.collect())
    }

    /// Measures the candidates in tract, and chooses the best one.
    fn in_tract(
        &self,
        py: Python<'_>,
        goal: &str,
        max_slowdown: f64,
        progress: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<TunedAsText> {
        let goal = goal_from(goal, max_slowdown)?;
        let (candidates, options) = (self.candidates.clone(), self.options.clone());
        attend(py, progress, move |attended| {
            let tell = |stage: &str, done, of| attended.tell(stage, done, of);
            let tuned = Tuned::in_tract(&candidates, &options, goal, &Stop::default(), &tell)?;
            as_text(&tuned)
        })
    }

    /// Chooses the best candidate by times in onnxruntime. For each candidate, `times` holds its
    /// times in all rounds, or the reason why it did not run.
    fn in_onnxruntime(&self, times: Vec<(Vec<f64>, Option<String>)>) -> PyResult<TunedAsText> {
        let times: Vec<Times> = times
            .into_iter()
            .map(|(seconds, failed)| failed.map_or(Ok((seconds, None)), Err))
            .collect();
        let (engine, goal) = ("onnxruntime", TuneGoal::Latency);
        Tuned::new(engine, &self.candidates, times, &self.options, goal)
            .and_then(|tuned| as_text(&tuned))
            .map_err(|error| raised(&error))
    }
}

/// The options of the measurement, and the sizes of the dimensions that are fixed in the model.
fn measurement(rounds: &RoundArgs, fix: &[Fix], model: &Model) -> Result<(BenchOptions, Dims)> {
    let mut options = sized(rounds.options()?, fix, model)?;
    let fix = take_fixed(fix, &mut options.dims)?;
    Ok((options, fix))
}

fn goal_from(name: &str, max_slowdown: f64) -> PyResult<TuneGoal> {
    let goal = GoalName::from_str(name, false)
        .map_err(|_| raised(&BadOption(format!("goal: `{name}`")).into()))?;
    Ok(goal.with_slowdown(max_slowdown))
}

fn as_text(tuned: &Tuned) -> Result<TunedAsText> {
    Ok((serde_json::to_string(tuned)?, tuned.text(Paint::none())))
}
