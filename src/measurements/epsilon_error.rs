//! Measures the error of merging normalizers, which the ε of the remaining normalizers causes.

use tract_onnx::prelude::{Tensor, TractResult};

use crate::affine::plan::{Follower, MergedNorm};
use crate::onnx::Model;
use crate::onnx::proto::ValueInfoProto;
use crate::run::{Engine, Failure, Stage, random};
use crate::verify::VerifyOptions;

/// A bound on the largest relative change of the result of a normalizer.
///
/// Let v be the variance (or mean square) of a token before the change, and u after it. After the
/// change, the normalizer divides by `√(u + ε)` instead of `√(v + ε)`, and its input is `√(u/v)`
/// times as large. So the relative change is at most `ε/2·|1/u − 1/v|`.
#[derive(Debug, Clone, PartialEq)]
pub struct EpsilonError {
    /// The maximum of `ε/2·|1/u − 1/v|` over all tokens of the runs. It is infinite if the variance
    /// of a token is 0 in only one of the two models.
    pub bound: f64,
}

impl EpsilonError {
    /// Runs two models on the same random inputs, and measures the bound. `after` is `before`
    /// without the `merged` normalizers.
    ///
    /// # Errors
    /// If tract cannot run one of the models, or if a model lacks a value that `merged` names.
    pub fn measure(
        before: &Model,
        after: &Model,
        merged: &[MergedNorm],
        options: &VerifyOptions,
    ) -> Result<Self, Failure> {
        let followers: Vec<&Follower> = merged.iter().flat_map(|norm| &norm.followers).collect();
        let before = seen_by(before, &followers, options)?;
        let after = seen_by(after, &followers, options)?;
        let mut bound: f64 = 0.0;
        for (before, after) in before.into_iter().zip(after) {
            for ((follower, v), u) in followers.iter().zip(before).zip(after) {
                for (v, u) in v.into_iter().zip(u) {
                    let part = follower.epsilon / 2.0 * (1.0 / u - 1.0 / v).abs();
                    bound = bound.max(if u == v { 0.0 } else { part });
                }
            }
        }
        Ok(Self { bound })
    }
}

/// Runs a model on random inputs several times, and returns for each run the values with the names
/// `names`.
pub(crate) fn watched(
    model: &Model,
    names: &[&str],
    options: &VerifyOptions,
) -> Result<Vec<Vec<Tensor>>, Failure> {
    let mut watched = model.clone();
    let outputs = &mut watched.graph_mut().output;
    outputs.clear();
    outputs.extend(names.iter().map(|&name| ValueInfoProto {
        name: Some(name.to_owned()),
        ..Default::default()
    }));
    let engine = Engine::load(&watched, &options.dims)?;
    let seeds = options.seeds.iter();
    seeds
        .map(|&seed| engine.run(&random(engine.inputs(), seed)))
        .collect()
}

/// For each run and each normalizer in `followers`, the variances or mean squares of the tokens
/// that the normalizer reads.
fn seen_by(
    model: &Model,
    followers: &[&Follower],
    options: &VerifyOptions,
) -> Result<Vec<Vec<Vec<f64>>>, Failure> {
    let names: Vec<&str> = followers.iter().map(|follower| &*follower.value).collect();
    let mut seen = vec![];
    for values in watched(model, &names, options)? {
        let mut statistics = vec![];
        for (follower, value) in followers.iter().zip(&values) {
            let tokens = moments(value, follower.centred)
                .map_err(|error| Failure::new(Stage::Run, error.to_string()))?;
            statistics.push(tokens);
        }
        seen.push(statistics);
    }
    Ok(seen)
}

/// The variance of each token if `centred`, otherwise the mean of its squares.
fn moments(value: &Tensor, centred: bool) -> TractResult<Vec<f64>> {
    let wide = value.cast_to::<f64>()?;
    let numbers = wide.try_as_plain_ram()?.as_slice::<f64>()?;
    let channels = value.shape().last().copied().unwrap_or(1).max(1);
    let tokens = numbers.chunks(channels);
    Ok(tokens.map(|token| moment(token, centred)).collect())
}

/// The variance of some numbers if `centred`, otherwise the mean of their squares.
pub(crate) fn moment(numbers: &[f64], centred: bool) -> f64 {
    let count = numbers.len() as f64;
    let centre = if centred {
        numbers.iter().sum::<f64>() / count
    } else {
        0.0
    };
    let squares: f64 = numbers.iter().map(|x| (x - centre).powi(2)).sum();
    squares / count
}
