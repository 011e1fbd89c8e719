//! The affine map `y = scale * x + shift`, with constants that broadcast. Every fold moves such a
//! map into the constants of other operators.

pub(crate) mod apply;
pub(crate) mod item;
pub(crate) mod linear;
pub(crate) mod materialize;
pub(crate) mod plan;
pub(crate) mod planner;
pub(crate) mod propagate;
pub(crate) mod recognize;
pub(crate) mod rounding;
pub(crate) mod row_stochastic;
pub(crate) mod rule;
pub(crate) mod shared_weights;

use crate::recipe::Numbers;

/// An affine map on a value: `y = scale ⊙ x + shift`.
///
/// Both arrays have the rank of the value. Along each axis, their extent is that of the value, or 1
/// if the map does not vary along the axis. A normalizer of `C` channels on the last axis of a `[B,
/// N, C]` tensor has arrays of shape `[1, 1, C]`. Along an axis whose extent is symbolic in the
/// model, the extent is always 1, because no constant can have a symbolic extent.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Affine {
    /// The factor of the value.
    pub scale: Numbers,
    /// The summand, which is added after the multiplication.
    pub shift: Numbers,
}

impl Affine {
    /// Builds an affine from its two arrays, which must have equal rank.
    pub(crate) fn new(scale: Numbers, shift: Numbers) -> Self {
        debug_assert_eq!(scale.ndim(), shift.ndim());
        Affine {
            scale: scale.compact(),
            shift: shift.compact(),
        }
    }

    /// The identity on a value of this rank.
    pub(crate) fn identity(rank: usize) -> Self {
        Affine {
            scale: Numbers::number(1.0, rank),
            shift: Numbers::number(0.0, rank),
        }
    }

    /// An affine with this scale and no shift.
    pub(crate) fn scale(scale: Numbers) -> Self {
        let shift = Numbers::number(0.0, scale.ndim());
        Affine::new(scale, shift)
    }

    /// An affine with this shift and no scale.
    pub(crate) fn shift(shift: Numbers) -> Self {
        let scale = Numbers::number(1.0, shift.ndim());
        Affine::new(scale, shift)
    }

    /// The rank of the value to which the affine is applied.
    pub(crate) fn rank(&self) -> usize {
        self.scale.ndim()
    }

    /// Whether the affine is the identity.
    pub(crate) fn is_identity(&self) -> bool {
        self.has_no_scale() && self.has_no_shift()
    }

    /// Whether the affine is a scale by one scalar, without a shift.
    pub(crate) fn is_number(&self) -> bool {
        self.scale.len() == 1 && self.has_no_shift()
    }

    /// Whether the scale is 1 everywhere by its exact formula, not only after rounding.
    pub(crate) fn has_no_scale(&self) -> bool {
        self.scale.are_all(1.0)
    }

    /// Whether the shift is 0 everywhere by its exact formula, not only after rounding.
    pub(crate) fn has_no_shift(&self) -> bool {
        self.shift.are_all(0.0)
    }

    /// Whether the affine is only a scale by powers of two. Multiplying by such a scale rounds
    /// nothing.
    pub(crate) fn is_only_exponents(&self) -> bool {
        let digits = (1_u64 << (f64::MANTISSA_DIGITS - 1)) - 1;
        self.has_no_shift()
            && self
                .scale
                .iter()
                .all(|s| s.is_normal() && s.to_bits() & digits == 0)
    }

    /// Whether some scale of the affine has a magnitude below 1.
    pub(crate) fn shrinks(&self) -> bool {
        self.scale.iter().any(|s| s.abs() < 1.0)
    }

    /// Whether all elements of the scale and the shift are finite.
    pub(crate) fn is_finite(&self) -> bool {
        self.scale.are_finite() && self.shift.are_finite()
    }

    /// The inverse, `(y − t)/s`. `None` if a scale is 0, or too small to be inverted.
    pub(crate) fn inverse(&self) -> Option<Affine> {
        let scale = &Numbers::number(1.0, self.rank()) / &self.scale;
        let inverse = Affine::new(scale, -&(&self.shift / &self.scale));
        inverse.is_finite().then_some(inverse)
    }

    /// Whether neither array varies along `axis`.
    pub(crate) fn is_uniform_along(&self, axis: usize) -> bool {
        self.scale.shape()[axis] == 1 && self.shift.shape()[axis] == 1
    }

    /// The axes along which the affine varies.
    pub(crate) fn axes(&self) -> Vec<usize> {
        (0..self.rank())
            .filter(|&axis| !self.is_uniform_along(axis))
            .collect()
    }

    /// Moves the axes `axes` of the affine to the axes `places` of a value of rank `rank`. `None`
    /// if the affine varies along an axis that is not in `axes`.
    pub(crate) fn placed(&self, axes: &[usize], places: &[usize], rank: usize) -> Option<Affine> {
        let mut pairs: Vec<(usize, usize)> =
            places.iter().copied().zip(axes.iter().copied()).collect();
        pairs.sort_unstable();
        let others = (0..self.rank()).filter(|axis| !axes.contains(axis));
        let order: Vec<usize> = pairs.iter().map(|&(_, axis)| axis).chain(others).collect();
        let placed = [&self.scale, &self.shift].map(|numbers| {
            let mut shape = vec![1; rank];
            for &(place, axis) in &pairs {
                shape[place] = numbers.shape()[axis];
            }
            numbers.transpose(&order)?.reshape(&shape)
        });
        let [scale, shift] = placed;
        Some(Affine::new(scale?, shift?))
    }

    /// Whether both affines can be broadcast together. In a model with contradictory shapes this
    /// may be impossible.
    pub(crate) fn broadcasts_with(&self, other: &Affine) -> bool {
        let own = [&self.scale, &self.shift];
        own.iter().all(|numbers| {
            numbers.broadcasts_with(&other.scale) && numbers.broadcasts_with(&other.shift)
        })
    }

    /// The composition `next ∘ self`: applies `self` first, then `next` to its result.
    pub(crate) fn then(&self, next: &Affine) -> Affine {
        let shift = match self.shift.is_number(0.0) {
            true => next.shift.clone(),
            false => &(&self.shift * &next.scale) + &next.shift,
        };
        Affine::new(&self.scale * &next.scale, shift)
    }

    /// Applies an array operation, such as a transpose, a slice or a reshape, to both arrays.
    ///
    /// # Errors
    /// The error of `f`, if it fails on one of the arrays.
    pub(crate) fn try_map<E>(
        &self,
        mut f: impl FnMut(&Numbers) -> Result<Numbers, E>,
    ) -> Result<Affine, E> {
        Ok(Affine::new(f(&self.scale)?, f(&self.shift)?))
    }
}

#[cfg(test)]
mod tests {
    use ndarray::array;

    use super::*;

    fn numbers(numbers: [f64; 2]) -> Numbers {
        Numbers::constant("numbers", array![numbers[0], numbers[1]].into_dyn())
    }

    #[test]
    fn then_composes_affines_in_reading_order() {
        let first = Affine::new(numbers([2.0, -1.0]), numbers([1.0, 3.0]));
        let second = Affine::new(numbers([5.0, 7.0]), numbers([0.5, 0.0]));
        let both = first.then(&second);
        for (channel, x) in [(0, 3.0), (1, -2.0)] {
            let once = first.scale[channel] * x + first.shift[channel];
            let twice = second.scale[channel] * once + second.shift[channel];
            assert_eq!(both.scale[channel] * x + both.shift[channel], twice);
        }
    }

    #[test]
    fn scale_drops_axes_without_variation() {
        let affine = Affine::scale(numbers([4.0, 4.0]).align(2).unwrap());
        assert_eq!(affine.scale.shape(), [1, 1]);
        assert_eq!(affine.axes(), Vec::<usize>::new());
    }

    #[test]
    fn placed_moves_an_affine_to_other_axes() {
        let matrix = Numbers::constant("matrix", array![[[1.0, 2.0], [3.0, 4.0]]].into_dyn());
        let affine = Affine::scale(matrix);
        let placed = affine.placed(&[1, 2], &[3, 0], 4).unwrap();
        assert_eq!(placed.scale.shape(), [2, 1, 1, 2]);
        assert!(placed.scale.iter().eq(&[1.0, 3.0, 2.0, 4.0]));
        assert_eq!(placed.axes(), [0, 3]);
        assert!(affine.placed(&[1], &[0], 2).is_none());
    }

    #[test]
    fn align_prepends_axes_like_broadcasting() {
        let wide = numbers([1.0, 2.0]).align(3).unwrap();
        assert_eq!(wide.shape(), [1, 1, 2]);
        assert!(wide.align(2).is_none());
    }

    #[test]
    fn one_affine_after_another_multiplies_scale_and_shift() {
        let numbers = |name, numbers: [f64; 2]| {
            Numbers::constant(name, array![numbers[0], numbers[1]].into_dyn())
        };
        let bn = Affine::new(numbers("s", [2.0, 3.0]), numbers("t", [1.0, 0.0]));
        let scaled = bn.then(&Affine::scale(Numbers::number(10.0, 1)));
        assert_eq!(*scaled.shift, array![10.0, 0.0].into_dyn());
    }
}
