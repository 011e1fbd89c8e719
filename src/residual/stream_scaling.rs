//! Stream scaling: multiplies residual streams by `2^-k`, for types with a smaller range.
//!
//! The writers of a stream are multiplied by `2^-k`, and the ε of its variances by `4^-k`. All
//! readers that are not normalizers absorb `2^k`, in a weight or by a Mul before them. In float32
//! every bit of every output stays the same, as long as no number is subnormal. In float16 the
//! stream stays in range.

use std::collections::HashMap;

use crate::affine::materialize::Failed;
use crate::affine::plan::{Scaling, StreamPlan};
use crate::affine::recognize::{Site, View};
use crate::analysis::Analysis;
use crate::error::{Error, Result};
use crate::refusal::Refusal;
use crate::residual::scaled_operators::{ScaledStreams, scale};
use crate::residual::streams::{AtCodes, Stream, streams};
use crate::residual::{BasisChange, listed, name, stays};

/// The largest k of the scale `2^-k`. With a larger k, squares leave the range of float32.
const LARGEST: u32 = 40;

/// Returns `power` if streams can be scaled by `2^-power`.
///
/// # Errors
/// [`Error::Power`] if they cannot.
pub(crate) fn possible(power: u32) -> Result<u32> {
    match (1..=LARGEST).contains(&power) {
        true => Ok(power),
        false => Err(Error::Power {
            power,
            largest: LARGEST,
        }),
    }
}

/// The streams of a model that contain a sum of varying values.
pub(crate) fn residual(analysis: &Analysis, view: &View, sites: &[Site]) -> Vec<Stream> {
    streams(analysis, view, sites, AtCodes::Continues)
        .into_iter()
        .filter(|stream| stream.sums > 0)
        .collect()
}

/// Plans to scale the residual streams of a model by `2^-power`. `refused` returns the reason why a
/// stream or site stays, by its name or kind.
pub(crate) fn scaled(
    analysis: &Analysis,
    view: &View,
    sites: &[Site],
    power: u32,
    refused: &dyn Fn(&str) -> Option<Refusal>,
) -> BasisChange {
    let found = residual(analysis, view, sites);
    let mut kept = HashMap::new();
    for (place, stream) in found.iter().enumerate() {
        let refusal = stays(&name(analysis, stream), stream, sites, refused);
        kept.extend(refusal.map(|refusal| (place, refusal)));
    }
    let mut done = scaled_without(analysis, &found, power, &mut kept);
    let mut streams = vec![];
    for (place, stream) in found.iter().enumerate() {
        let scaling = match kept.remove(&place) {
            Some(why) => Scaling::Kept { why },
            None => Scaling::Scaled {
                power,
                into: done.into.remove(&place).unwrap_or_default(),
                multiplied: done.multiplied.remove(&place).unwrap_or_default(),
            },
        };
        streams.push(StreamPlan {
            scaling: Some(scaling),
            ..listed(analysis, sites, stream)
        });
    }
    BasisChange {
        streams,
        edits: done.edits,
    }
}

/// Scales all streams that can be scaled, and records in `kept` why the others cannot. Each failed
/// attempt refuses at least one more stream.
fn scaled_without(
    analysis: &Analysis,
    streams: &[Stream],
    power: u32,
    kept: &mut HashMap<usize, Refusal>,
) -> ScaledStreams {
    for _ in 0..streams.len() {
        let places = (0..streams.len()).filter(|place| !kept.contains_key(place));
        let left: Vec<(usize, &Stream)> = places.map(|place| (place, &streams[place])).collect();
        if left.is_empty() {
            break;
        }
        let failed = match scale(analysis, &left, power) {
            Ok(scaled) => return scaled,
            Err(failed) => failed,
        };
        for Failed { sites, refusal } in failed {
            kept.extend(sites.into_iter().map(|site| (site, refusal.clone())));
        }
    }
    ScaledStreams::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_within_the_range_are_possible() {
        assert_eq!(possible(5).unwrap(), 5);
        assert!(possible(0).is_err() && possible(41).is_err());
    }
}
