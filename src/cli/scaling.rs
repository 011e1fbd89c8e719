//! `--scale-stream`: scales residual streams by a power of two.

use std::path::PathBuf;

use anyhow::Result;
use serde::Serialize;
use unfold::StreamMagnitude;
use unfold::magnitude::widened;
use unfold::onnx::Model;
use unfold::residual::stream_scaling::possible;
use unfold::run::Dims;

use super::inputs::{read_inputs, sizes};
use crate::cli::usage_errors::misused;

/// The options for scaling residual streams.
#[derive(Debug, clap::Args)]
pub(super) struct ScalingArgs {
    /// Scales residual streams by 2^-K, so that they fit into float16. In float32 no bit of an
    /// output changes, except for subnormal numbers, and where SkipLayerNormalization is written
    /// out, which rounds otherwise. `auto` determines K from --input
    #[arg(long, value_name = "2^-K|auto", value_parser = asked)]
    scale_stream: Option<ScaleStream>,

    /// Samples of the inputs for --scale-stream auto, as a .npy or .npz file. They are in float32
    /// if the model's inputs are narrower
    #[arg(
        long,
        value_name = "FILE",
        requires = "scale_stream",
        required_if_eq("scale_stream", "auto")
    )]
    input: Option<PathBuf>,
}

/// The requested power of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScaleStream {
    /// `2^-k`
    By(u32),
    /// The power that the samples require.
    Auto,
}

/// Parses `auto` or `2^-k`.
fn asked(text: &str) -> Result<ScaleStream, String> {
    if text == "auto" {
        return Ok(ScaleStream::Auto);
    }
    let power = text
        .strip_prefix("2^-")
        .and_then(|power| power.parse().ok());
    let power = power.ok_or("neither auto nor a power of two such as 2^-5")?;
    possible(power)
        .map(ScaleStream::By)
        .map_err(|error| error.to_string())
}

/// The chosen scale of residual streams.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct ScalingChoice {
    /// The k of `2^-k`; `None` if the samples require no scale.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale_stream: Option<u32>,
    /// The largest magnitude on a stream, if it was measured on samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    largest_on_stream: Option<f64>,
}

impl ScalingArgs {
    /// The requested power, or the power that the samples require.
    pub(super) fn choose(
        &self,
        model: &Model,
        dims: &[Dims],
        tell: &dyn Fn(&str, usize, usize),
    ) -> Result<ScalingChoice> {
        match (self.scale_stream, &self.input) {
            (Some(ScaleStream::By(_)), Some(_)) => Err(misused(
                "--input is for --scale-stream auto, which finds K from it",
            )),
            (Some(ScaleStream::By(power)), None) => Ok(ScalingChoice {
                scale_stream: Some(power),
                largest_on_stream: None,
            }),
            (Some(ScaleStream::Auto), Some(file)) => {
                tell("headroom", 0, 1);
                let (inputs, dims) = read_inputs(file, &widened(model)?, &sizes(dims, model)?)?;
                let found = StreamMagnitude::measure(model, &inputs, &dims)?;
                let power = found
                    .map(|headroom| headroom.power())
                    .filter(|&power| power > 0);
                Ok(ScalingChoice {
                    scale_stream: power,
                    largest_on_stream: found.map(|headroom| headroom.largest),
                })
            }
            _ => Ok(ScalingChoice::default()),
        }
    }
}

impl ScalingChoice {
    /// The scale in one line, or an empty text.
    pub(crate) fn told(&self) -> String {
        let by = match self.scale_stream {
            Some(power) => format!("scaled by 2^-{power}"),
            None => "not scaled: float16 holds them".to_owned(),
        };
        let Some(largest) = self.largest_on_stream else {
            return String::new();
        };
        let digits = if largest < 10.0 { 2 } else { 0 };
        format!("residual streams: {largest:.digits$} is the largest number on them; {by}\n")
    }
}
