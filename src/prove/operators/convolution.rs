//! Convolutions in the field.

use std::ops::Range;

use rayon::prelude::*;

use super::{Allowance, NotEvaluated};
use crate::prove::matrices::{Extents, multiply};
use crate::recipe::Windows;

/// The maximum number of elements of the matrix of windows that is built at once, so that it fits
/// into a cache.
const LAID_OUT: usize = 1 << 20;

/// The extents of a convolution.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConvolutionExtents {
    pub samples: usize,
    pub group: usize,
    /// The number of output channels of a group.
    pub outer: usize,
    /// The number of input channels of a group.
    pub inner: usize,
}

/// Convolves values `[samples, group·inner, input]` with a weight `[group, outer, inner, taps]`.
/// Both are row-major. Returns the sums `[samples, group·outer, output]`.
///
/// # Errors
/// If a list has the wrong length, or if the sums or the multiplications exceed the limits.
pub(crate) fn convolution(
    weight: &[u32],
    values: &[u32],
    extents: ConvolutionExtents,
    windows: &Windows,
    allowance: &Allowance,
) -> Result<Vec<u32>, NotEvaluated> {
    let ConvolutionExtents {
        samples,
        group,
        outer,
        inner,
    } = extents;
    let [taps, input, places]: [usize; 3] =
        [&windows.kernel, &windows.input, &windows.output].map(|extents| extents.iter().product());
    if weight.len() != group * outer * inner * taps
        || values.len() != samples * group * inner * input
    {
        return Err(NotEvaluated::Uncovered);
    }
    allowance.room(&[samples, group, outer, places])?;
    allowance.room(&[taps, places])?;
    allowance.products(&[samples, group, outer, inner, taps, places])?;
    let mut sums = vec![0; samples * group * outer * places];
    if sums.is_empty() {
        return Ok(sums);
    }
    let lanes = PaddedLanes::new(values, extents, windows);
    let rows = inner * taps;
    let places_at_once = (LAID_OUT / (samples * rows).max(1)).clamp(1, places);
    let groups_at_once = (LAID_OUT / (samples * rows * places_at_once).max(1)).clamp(1, group);
    for first in (0..places).step_by(places_at_once) {
        let last = places.min(first + places_at_once);
        for begin in (0..group).step_by(groups_at_once) {
            let groups = begin..group.min(begin + groups_at_once);
            let products = lanes.multiply(weight, groups, first..last);
            for (at, part) in products.chunks(last - first).enumerate() {
                let (row, sample) = (begin * outer + at / samples, at % samples);
                let lane = sample * group * outer + row;
                sums[lane * places + first..lane * places + last].copy_from_slice(part);
            }
        }
    }
    Ok(sums)
}

/// The input values of a convolution, and the places that its windows read.
struct PaddedLanes {
    extents: ConvolutionExtents,
    /// The length of a lane, with the zero at its end.
    length: usize,
    /// The values `[samples, channels, input]`, with a zero at the end of each lane.
    padded: Vec<u32>,
    /// For each tap and each place of the result, the place in a lane that the tap reads. If the
    /// tap reads padding, this is the place of the zero.
    sources: Vec<Vec<usize>>,
}

impl PaddedLanes {
    fn new(values: &[u32], extents: ConvolutionExtents, windows: &Windows) -> Self {
        let input: usize = windows.input.iter().product();
        let channels = extents.group * extents.inner;
        let mut padded = vec![0; extents.samples * channels * (input + 1)];
        for (padded, lane) in padded
            .chunks_mut(input + 1)
            .zip(values.chunks(input.max(1)))
        {
            padded[..input].copy_from_slice(lane);
        }
        let sources = windows.meets().map(|meets| {
            let places = meets.into_iter();
            places.map(|place| place.unwrap_or(input)).collect()
        });
        Self {
            extents,
            length: input + 1,
            padded,
            sources: sources.collect(),
        }
    }

    /// The sums `[groups, outer, samples, places]` of a range of groups, at a range of places.
    fn multiply(&self, weight: &[u32], groups: Range<usize>, places: Range<usize>) -> Vec<u32> {
        let ConvolutionExtents {
            samples,
            outer,
            inner,
            ..
        } = self.extents;
        let extents = Extents {
            rows: outer,
            inner: inner * self.sources.len(),
            columns: samples * places.len(),
        };
        let laid_out = self.lay_out(groups.start * inner..groups.end * inner, places);
        let kernel = outer * extents.inner;
        let pairs: Vec<(usize, usize)> = (0..groups.len())
            .map(|at| (at * kernel, at * extents.inner * extents.columns))
            .collect();
        multiply(&weight[groups.start * kernel..], &laid_out, &pairs, extents)
    }

    /// The matrix `[channels, taps, samples, places]` of the values that the windows read.
    fn lay_out(&self, channels: Range<usize>, places: Range<usize>) -> Vec<u32> {
        let taps = self.sources.len();
        let ConvolutionExtents {
            samples,
            group,
            inner,
            ..
        } = self.extents;
        let columns = samples * places.len();
        let mut laid_out = vec![0; channels.len() * taps * columns];
        laid_out
            .par_chunks_mut(columns)
            .enumerate()
            .for_each(|(row, columns)| {
                let channel = channels.start + row / taps;
                let sources = &self.sources[row % taps][places.clone()];
                for (sample, columns) in columns.chunks_mut(places.len()).enumerate() {
                    let lane = (sample * group * inner + channel) * self.length;
                    let lane = &self.padded[lane..lane + self.length];
                    columns
                        .iter_mut()
                        .zip(sources)
                        .for_each(|(to, &from)| *to = lane[from]);
                }
            });
        laid_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prove::field;

    /// Compares the convolution with its definition, for two samples, two groups and padding.
    #[test]
    fn convolution_matches_the_definition() {
        let windows = Windows {
            transposed: false,
            kernel: vec![3, 2],
            strides: vec![2, 1],
            dilations: vec![1, 2],
            before: vec![1, 0],
            input: vec![5, 4],
            output: vec![3, 2],
        };
        let extents = ConvolutionExtents {
            samples: 2,
            group: 2,
            outer: 3,
            inner: 2,
        };
        let weight: Vec<u32> = (0..2 * 3 * 2 * 6).map(|i| field::mul(i, 99_991)).collect();
        let values: Vec<u32> = (0..2 * 4 * 20).map(|i| field::mul(i, 77_773)).collect();
        let allowance = Allowance::new(0, 0);
        let found = convolution(&weight, &values, extents, &windows, &allowance);
        let mut expected = vec![];
        for (sample, output, y, x) in ndarray::indices((2, 6, 3, 2)) {
            let mut sum = 0;
            for (channel, tap_y, tap_x) in ndarray::indices((2, 3, 2)) {
                let (row, column) = (2 * y + tap_y, x + 2 * tap_x);
                if (1..6).contains(&row) && column < 4 {
                    let group = output / 3;
                    let value =
                        values[((sample * 4 + group * 2 + channel) * 5 + row - 1) * 4 + column];
                    let factor = weight[((output * 2 + channel) * 3 + tap_y) * 2 + tap_x];
                    sum = field::add(sum, field::mul(value, factor));
                }
            }
            expected.push(sum);
        }
        assert_eq!(found, Ok(expected));
    }
}
