//! Windows of linear operators, and the union of two windows.
//!
//! Each place `o` of the result is a sum over taps `t` of the input at `o·stride + t·dilation −
//! before`, where places outside of the input count as 0. Windows merge if they have equal strides,
//! and if their results have equal extents for any input. The union has a tap wherever either
//! window has a tap. A matrix product is a window without spatial axes.

use crate::recipe::Recipe;

/// The numbers of all attributes of a window must be below this limit.
pub(super) const LARGEST: i64 = 1 << 31;

/// A window along one spatial axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Taps {
    pub kernel: i64,
    pub stride: i64,
    pub dilation: i64,
    /// The zeros before the first place and after the last.
    pub before: i64,
    pub after: i64,
}

impl Taps {
    /// A single tap at the place of the result.
    pub(super) const SAME: Self = Self {
        kernel: 1,
        stride: 1,
        dilation: 1,
        before: 0,
        after: 0,
    };

    /// The distance from the first tap to the last.
    fn reach(self) -> i64 {
        (self.kernel - 1) * self.dilation
    }

    /// The extent of the result minus that of the input, before the division by the stride.
    fn more(self) -> i64 {
        self.before + self.after - self.reach()
    }

    /// The window with the taps of both windows. `None` if the strides or the extents of the
    /// results differ.
    fn joined(self, other: Self) -> Option<Self> {
        if self.stride != other.stride || self.more() != other.more() {
            return None;
        }
        let steps = gcd(self.step(), other.step());
        let dilation = gcd(steps, self.before - other.before).max(1);
        let last = (self.reach() - self.before).max(other.reach() - other.before);
        let before = self.before.max(other.before);
        let kernel = (last + before) / dilation + 1;
        Some(Self {
            kernel,
            stride: self.stride,
            dilation,
            before,
            after: self.more() + last,
        })
    }

    /// The composition of two windows. `None` if both have padding or several taps, or if a number
    /// reaches [`LARGEST`].
    fn then(self, next: Self) -> Option<Self> {
        if next.is_one_place() {
            return Some(Self {
                stride: self.strided(next.stride)?,
                ..self
            });
        }
        // If the next window reads outside of the result of this window, it reads zeros. This
        // window would compute zeros there too.
        self.is_one_place().then_some(Self {
            kernel: next.kernel,
            stride: self.strided(next.stride)?,
            dilation: self.strided(next.dilation)?,
            before: self.strided(next.before)?,
            after: self.strided(next.after)?,
        })
    }

    /// The distance between two taps, or 0 if there is only one.
    fn step(self) -> i64 {
        if self.kernel > 1 { self.dilation } else { 0 }
    }

    /// Whether the window has one tap and no padding.
    fn is_one_place(self) -> bool {
        self.kernel == 1 && self.before == 0 && self.after == 0
    }

    /// Converts a distance in places of the result to one in places of the input. `None` if it
    /// reaches [`LARGEST`].
    fn strided(self, distance: i64) -> Option<i64> {
        distance
            .checked_mul(self.stride)
            .filter(|&distance| distance < LARGEST)
    }

    /// For each tap of the window `all`, the tap of this window at the same place, if there is one.
    fn taps(self, all: Self) -> impl Iterator<Item = Option<usize>> {
        (0..all.kernel).map(move |place| {
            let offset = place * all.dilation - all.before + self.before;
            let tap = offset / self.dilation;
            (offset == tap * self.dilation && (0..self.kernel).contains(&tap))
                .then_some(tap as usize)
        })
    }
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a.abs() } else { gcd(b, a % b) }
}

/// The window of a linear operator with a weight of shape `[channels out, channels in / group,
/// kernel...]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Window {
    /// The numbers of input and output channels.
    pub channels: [usize; 2],
    pub group: usize,
    /// One window for each spatial axis.
    pub axes: Vec<Taps>,
}

impl Window {
    /// The window of the identity on each channel. With no channels, there is one empty group.
    pub(super) fn each(channels: usize, spatial: usize) -> Self {
        Self {
            channels: [channels; 2],
            group: channels.max(1),
            axes: vec![Taps::SAME; spatial],
        }
    }

    /// The extents of the weight.
    pub(super) fn shape(&self) -> Vec<usize> {
        let [inner, outer] = self.channels;
        let kernel = self.axes.iter().map(|axis| axis.kernel as usize);
        [outer, inner / self.group]
            .into_iter()
            .chain(kernel)
            .collect()
    }

    /// The number of multiplications for each place of the result.
    pub(super) fn work(&self) -> usize {
        self.shape().into_iter().fold(1, usize::saturating_mul)
    }

    /// The window with the taps of both windows. `None` if the channels, the strides or the extents
    /// of the results differ.
    pub(super) fn joined(&self, other: &Self) -> Option<Self> {
        if self.channels != other.channels || self.axes.len() != other.axes.len() {
            return None;
        }
        let axes = self
            .axes
            .iter()
            .zip(&other.axes)
            .map(|(one, other)| one.joined(*other));
        let group = gcd(self.group as i64, other.group as i64) as usize;
        Some(Self {
            channels: self.channels,
            group,
            axes: axes.collect::<Option<_>>()?,
        })
    }

    /// The composition with another window. `None` if the composition is not a window.
    pub(super) fn then(&self, next: &Self) -> Option<Self> {
        if self.channels[1] != next.channels[0] || self.axes.len() != next.axes.len() {
            return None;
        }
        let axes = self
            .axes
            .iter()
            .zip(&next.axes)
            .map(|(one, next)| one.then(*next));
        let group = gcd(self.group as i64, next.group as i64) as usize;
        let channels = [self.channels[0], next.channels[1]];
        Some(Self {
            channels,
            group,
            axes: axes.collect::<Option<_>>()?,
        })
    }

    /// The axis of the channels in a value of rank `rank`: axis 1 if the window has spatial axes,
    /// or else the last axis.
    pub(super) fn channel_axis(&self, rank: usize) -> Option<usize> {
        if self.axes.is_empty() {
            rank.checked_sub(1)
        } else {
            Some(1)
        }
    }

    /// Whether the window reads no place outside of the input.
    pub(super) fn stays_inside(&self) -> bool {
        self.axes
            .iter()
            .all(|axis| axis.before == 0 && axis.after == 0)
    }

    /// Extends a weight of this window to the window `all`, with 0 at all other taps.
    pub(super) fn widened(&self, weight: &Recipe, all: &Self) -> Option<Recipe> {
        let mut weight = in_groups(weight, self.group, all.group)?;
        for (axis, (own, all)) in self.axes.iter().zip(&all.axes).enumerate() {
            weight = weight.pick(axis + 2, own.taps(*all))?;
        }
        Some(weight)
    }
}

/// Converts the weight of a grouped operator to one with fewer groups, with the blocks on the
/// diagonal.
pub(super) fn in_groups(weight: &Recipe, from: usize, to: usize) -> Option<Recipe> {
    let blocks = from / to;
    if blocks == 1 {
        return Some(weight.clone());
    }
    let [outer, inner, kernel @ ..] = weight.shape() else {
        return None;
    };
    let (outer, inner, taps) = (outer / from, *inner, kernel.iter().product::<usize>());
    // Each row is one block followed by as many blocks of zeros as there are blocks. If the same
    // numbers are cut into rows that are one block shorter, the block of each row is one place
    // further to the right than that of the row before.
    let block = outer * inner * taps;
    let rows = weight.reshape(&[to, blocks, 1, block])?;
    let rows = rows.pick(2, std::iter::once(Some(0)).chain(vec![None; blocks]))?;
    let diagonal = rows
        .reshape(&[to, blocks + 1, blocks, block])?
        .pick(1, (0..blocks).map(Some))?;
    let apart = diagonal.reshape(&[to, blocks, blocks, outer, inner, taps])?;
    let wide = apart.transpose(&[0, 1, 3, 2, 4, 5])?;
    wide.reshape(&[&[to * blocks * outer, blocks * inner], kernel].concat())
}

#[cfg(test)]
mod tests {
    use ndarray::{ArrayD, IxDyn};

    use super::*;
    use crate::recipe::evaluate;

    const WIDE: Taps = Taps {
        kernel: 3,
        stride: 1,
        dilation: 1,
        before: 1,
        after: 1,
    };

    #[test]
    fn centred_windows_join_to_the_larger_one() {
        assert_eq!(Taps::SAME.joined(WIDE), Some(WIDE));
        let sparse = Taps {
            kernel: 3,
            dilation: 2,
            before: 2,
            after: 2,
            ..WIDE
        };
        let both = Taps {
            kernel: 5,
            before: 2,
            after: 2,
            ..WIDE
        };
        assert_eq!(sparse.joined(WIDE), Some(both));
        assert_eq!(
            sparse.taps(both).collect::<Vec<_>>(),
            [Some(0), None, Some(1), None, Some(2)]
        );
        assert_eq!(sparse.joined(Taps::SAME), Some(sparse));
    }

    #[test]
    fn adjacent_windows_join_to_a_window_over_both() {
        let (left, right) = (
            Taps {
                before: 2,
                after: 0,
                ..WIDE
            },
            Taps {
                before: 0,
                after: 2,
                ..WIDE
            },
        );
        let both = Taps {
            kernel: 5,
            before: 2,
            after: 2,
            ..WIDE
        };
        assert_eq!(left.joined(right), Some(both));
        assert_eq!(
            left.taps(both).collect::<Vec<_>>(),
            [Some(0), Some(1), Some(2), None, None]
        );
        assert_eq!(
            right.taps(both).collect::<Vec<_>>(),
            [None, None, Some(0), Some(1), Some(2)]
        );
    }

    #[test]
    fn windows_with_other_strides_or_extents_do_not_join() {
        assert_eq!(WIDE.joined(Taps { stride: 2, ..WIDE }), None);
        assert_eq!(WIDE.joined(Taps { after: 0, ..WIDE }), None);
    }

    #[test]
    fn grouped_weight_becomes_block_diagonal() {
        let weight = Recipe::constant("w", &[4, 1, 2]);
        let numbers = ArrayD::from_shape_fn(IxDyn(&[4, 1, 2]), |at| (at[0] * 2 + at[2] + 1) as f64);
        let wide = in_groups(&weight, 4, 2).unwrap();
        let wide = evaluate(&wide, &|_: &str| Ok(numbers.clone())).unwrap();
        let expected = ArrayD::from_shape_fn(IxDyn(&[4, 2, 2]), |at| match at[0] % 2 == at[1] {
            true => (at[0] * 2 + at[2] + 1) as f64,
            false => 0.0,
        });
        assert_eq!(wide, expected);
    }
}
