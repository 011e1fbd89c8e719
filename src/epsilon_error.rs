//! The error of merged norms: the effect of the ε of those that stay.

use tract_onnx::prelude::{Tensor, TractResult};

use crate::affine::plan::{Follower, MergedNorm};
use crate::onnx::Model;
use crate::onnx::proto::ValueInfoProto;
use crate::run::{Engine, Failure, Stage, random};
use crate::verify::VerifyOptions;

/// The largest relative change of the result of a normalizer.
///
/// Let v be the variance (or mean square) of a token before the change, and u after it. The
/// normalizer divides by `√(u + ε)` instead of `√(v + ε)`, and its input is `√(u/v)` times as
/// large, so that the relative change is at most `ε/2·|1/u − 1/v|`.
#[derive(Debug, Clone, PartialEq)]
pub struct EpsilonError {
    /// The largest of these parts, over all tokens of some runs; infinite where a token was 0 for one of the two alone.
    pub bound: f64,
}

impl EpsilonError {
    /// Runs two models on the same random inputs, the second one without some normalizers of the first.
    ///
    /// # Errors
    /// Where tract cannot run one of them, or one has a value no more by its name.
    pub fn measure(
        before: &Model,
        after: &Model,
        merged: &[MergedNorm],
        options: &VerifyOptions,
    ) -> Result<Self, Failure> {
        let followers: Vec<&Follower> = merged.iter().flat_map(|norm| &norm.followers).collect();
        let seen = |model: &Model| seen_by(model, &followers, options);
        let mut bound: f64 = 0.0;
        for (before, after) in seen(before)?.into_iter().zip(seen(after)?) {
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

/// The statistics of each token, for each run and each normalizer.
fn seen_by(
    model: &Model,
    followers: &[&Follower],
    options: &VerifyOptions,
) -> Result<Vec<Vec<Vec<f64>>>, Failure> {
    let mut watched = model.clone();
    let output = |follower: &&Follower| ValueInfoProto {
        name: Some(follower.value.clone()),
        ..Default::default()
    };
    watched.graph_mut().output = followers.iter().map(output).collect();
    let engine = Engine::load(&watched, &options.dims)?;
    let run = |&seed: &u64| {
        let values = engine.run(&random(engine.inputs(), seed))?;
        let tokens = |(follower, value): (&&Follower, &Tensor)| {
            moments(value, follower.centred)
                .map_err(|error| Failure::new(Stage::Run, error.to_string()))
        };
        followers.iter().zip(&values).map(tokens).collect()
    };
    options.seeds.iter().map(run).collect()
}

/// The mean of the squares of each token, or its variance.
fn moments(value: &Tensor, centred: bool) -> TractResult<Vec<f64>> {
    let wide = value.cast_to::<f64>()?;
    let numbers = wide.try_as_plain_ram()?.as_slice::<f64>()?;
    let channels = value.shape().last().copied().unwrap_or(1).max(1);
    let moment = |token: &[f64]| {
        let mean = |sum: f64| sum / token.len() as f64;
        let centre = if centred {
            mean(token.iter().sum())
        } else {
            0.0
        };
        mean(token.iter().map(|x| (x - centre).powi(2)).sum())
    };
    Ok(numbers.chunks(channels).map(moment).collect())
}
