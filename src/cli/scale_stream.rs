//! `--scale-stream`: scales residual streams by a power of two.

use std::path::PathBuf;

use anyhow::Result;
use serde::Serialize;
use unfold::HalfType;
use unfold::StreamMagnitude;
use unfold::measurements::widened;
use unfold::onnx::Model;
use unfold::residual::stream_scaling::possible;
use unfold::run::{Dims, Input, Tensor, random};

use super::inputs::{read_inputs, sizes};
use crate::cli::usage_errors::misused;

/// The options for scaling residual streams.
#[derive(Debug, clap::Args)]
pub(super) struct ScalingArgs {
    /// Scales residual streams by 2^-K, so that they fit into float16. In float32 no bit of an
    /// output changes, except for subnormal numbers, and where SkipLayerNormalization is written
    /// out, which rounds otherwise. `auto` determines K from --input
    #[arg(long, value_name = "2^-K|auto", value_parser = parsed)]
    scale_stream: Option<ScaleStream>,

    /// Samples of the inputs for --scale-stream auto and for --to, as a .npy or .npz file. They are
    /// in float32 if the model's inputs are narrower
    #[arg(long, value_name = "FILE", required_if_eq("scale_stream", "auto"))]
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
fn parsed(text: &str) -> Result<ScaleStream, String> {
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
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ScalingChoice {
    /// The k of `2^-k`; `None` if streams are not scaled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale_stream: Option<u32>,
    /// The largest magnitude on a stream, if it was measured on samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    largest_on_stream: Option<f64>,
    /// Whether the samples were random.
    #[serde(skip)]
    is_random: bool,
}

/// Inputs of a run, and the sizes of open dimensions.
pub(crate) type Samples = (Vec<Tensor>, Dims);

impl ScalingArgs {
    /// The requested power of two, or the power that the samples require. If a model is converted
    /// to float16 without samples, random inputs are used, and if tract cannot run the model on
    /// them, nothing is scaled.
    pub(super) fn choose(
        &self,
        model: &Model,
        dims: &[Dims],
        to: Option<HalfType>,
        tell: &dyn Fn(&str, usize, usize),
    ) -> Result<ScalingChoice> {
        let power = match (self.scale_stream, &self.input) {
            (Some(ScaleStream::By(_)), Some(_)) if to.is_none() => {
                return Err(misused(
                    "--input is for --scale-stream auto, which finds K from it",
                ));
            }
            (None, Some(_)) if to.is_none() => {
                return Err(misused("--input is for --scale-stream auto, and for --to"));
            }
            (Some(ScaleStream::By(power)), _) => Some(power),
            _ => None,
        };
        let is_measured = self.scale_stream == Some(ScaleStream::Auto)
            || self.scale_stream.is_none() && to == Some(HalfType::Float16);
        if !is_measured {
            return Ok(ScalingChoice {
                scale_stream: power,
                ..ScalingChoice::default()
            });
        }
        tell("headroom", 0, 1);
        match self.samples(model, dims)? {
            Some((inputs, dims)) => {
                let found = StreamMagnitude::measure(model, &inputs, &dims)?;
                Ok(ScalingChoice::measured(found, false))
            }
            None => {
                let dims = sizes("--dim", dims, model)?;
                let inputs = Input::from_model(&widened(model)?, &dims);
                let found = inputs.ok().and_then(|inputs| {
                    StreamMagnitude::measure(model, &random(&inputs, 0), &dims).ok()
                });
                Ok(ScalingChoice::measured(found.flatten(), true))
            }
        }
    }

    /// The samples of `--input`, if it is given.
    pub(crate) fn samples(&self, model: &Model, dims: &[Dims]) -> Result<Option<Samples>> {
        let Some(file) = &self.input else {
            return Ok(None);
        };
        let samples = read_inputs(file, &widened(model)?, &sizes("--dim", dims, model)?)?;
        Ok(Some(samples))
    }
}

impl ScalingChoice {
    /// The choice for streams whose largest magnitude was measured.
    fn measured(found: Option<StreamMagnitude>, is_random: bool) -> Self {
        let power = found.map(|magnitude| magnitude.power());
        ScalingChoice {
            scale_stream: power.filter(|&power| power > 0),
            largest_on_stream: found.map(|magnitude| magnitude.largest),
            is_random,
        }
    }

    /// The scale in one line, or an empty text.
    pub(crate) fn text(&self) -> String {
        let by = match self.scale_stream {
            Some(power) => format!("scaled by 2^-{power}"),
            None => "not scaled: float16 holds them".to_owned(),
        };
        let Some(largest) = self.largest_on_stream else {
            return String::new();
        };
        let digits = if largest < 10.0 { 2 } else { 0 };
        let inputs = if self.is_random {
            " on random inputs"
        } else {
            ""
        };
        format!(
            "residual streams: {largest:.digits$} is the largest number on them{inputs}; {by}\n"
        )
    }
}
