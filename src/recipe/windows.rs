//! The places that a convolution reads.

use serde::{Deserialize, Serialize};

/// The windows of a convolution: the place of its input that each tap of the kernel reads for each
/// place of the result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Windows {
    /// Whether the convolution is transposed: it spreads each place instead of gathering places.
    pub transposed: bool,
    /// The extents of the kernel. This list and those below have one element for each spatial axis.
    pub kernel: Vec<usize>,
    /// The strides, in places of the input, or of the result if the convolution is transposed.
    pub strides: Vec<i64>,
    /// The distances between the taps.
    pub dilations: Vec<i64>,
    /// The number of zeros before the first place.
    pub before: Vec<i64>,
    /// The extents of the input.
    pub input: Vec<usize>,
    /// The extents of the result.
    pub output: Vec<usize>,
}

impl Windows {
    /// For each tap and each place of the result, the place of the input that the tap reads, as a
    /// row-major index. `None` if the tap reads the padding, or falls between the strides of a
    /// transposed convolution.
    pub(crate) fn meets(&self) -> impl Iterator<Item = Vec<Option<usize>>> + '_ {
        indices(&self.kernel).map(|tap| {
            indices(&self.output)
                .map(|place| self.source(&place, &tap))
                .collect()
        })
    }

    fn source(&self, output: &[usize], tap: &[usize]) -> Option<usize> {
        (0..self.input.len()).try_fold(0, |flat, axis| {
            let (place, offset) = (output[axis] as i64, tap[axis] as i64 * self.dilations[axis]);
            let place = match self.transposed {
                false => place * self.strides[axis] + offset - self.before[axis],
                true => {
                    let strided = place + self.before[axis] - offset;
                    (strided % self.strides[axis] == 0).then(|| strided / self.strides[axis])?
                }
            };
            let place = usize::try_from(place)
                .ok()
                .filter(|&place| place < self.input[axis])?;
            Some(flat * self.input[axis] + place)
        })
    }
}

/// All index tuples below `extents`, row-major.
fn indices(extents: &[usize]) -> impl Iterator<Item = Vec<usize>> + '_ {
    let count: usize = extents.iter().product();
    (0..count).map(move |mut flat| {
        let mut index = vec![0; extents.len()];
        for (slot, &extent) in index.iter_mut().zip(extents).rev() {
            *slot = flat % extent;
            flat /= extent;
        }
        index
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(transposed: bool, input: usize, output: usize) -> Windows {
        let (kernel, strides, dilations, before) = (vec![2], vec![2], vec![1], vec![1]);
        Windows {
            transposed,
            kernel,
            strides,
            dilations,
            before,
            input: vec![input],
            output: vec![output],
        }
    }

    #[test]
    fn conv_taps_skip_the_padding() {
        let meets: Vec<_> = windows(false, 4, 3).meets().collect();
        assert_eq!(
            meets,
            [vec![None, Some(1), Some(3)], vec![Some(0), Some(2), None]]
        );
    }

    #[test]
    fn conv_transpose_taps_skip_between_strides() {
        let meets: Vec<_> = windows(true, 2, 3).meets().collect();
        assert_eq!(
            meets,
            [vec![None, Some(1), None], vec![Some(0), None, Some(1)]]
        );
    }
}
