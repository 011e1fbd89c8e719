//! The one abstraction behind every fold: `y = scale * x + shift`, with constants that broadcast.

pub mod apply;
pub mod fold;
pub mod growth;
pub(crate) mod item;
pub mod linear;
pub mod materialize;
pub mod plan;
pub mod planner;
pub mod propagate;
pub mod recognize;
pub mod rounding;
pub(crate) mod row_stochastic;

use crate::recipe::Numbers;

/// An affine map on a value: `y = scale ⊙ x + shift`.
///
/// Both arrays have the rank of the value; an extent is 1 where the map is the same along that axis
/// and the value's own extent where it is not. A normalizer of `C` channels on the last axis of a
/// `[B, N, C]` tensor has arrays of shape `[1, 1, C]`. Extents that are symbolic in the model are
/// always 1 here: no constant can follow them.
///
/// ```
/// use ndarray::array;
/// use unfold::affine::Affine;
/// use unfold::recipe::Numbers;
///
/// let numbers = |name, numbers: [f64; 2]| Numbers::constant(name, array![numbers[0], numbers[1]].into_dyn());
/// let bn = Affine::new(numbers("s", [2.0, 3.0]), numbers("t", [1.0, 0.0]));
/// let scaled = bn.then(&Affine::scale(Numbers::number(10.0, 1)));
/// assert_eq!(*scaled.shift, array![10.0, 0.0].into_dyn());
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Affine {
    /// Multiplies the value.
    pub scale: Numbers,
    /// Is added afterwards.
    pub shift: Numbers,
}

impl Affine {
    /// An affine from its two arrays, which must have one rank.
    pub fn new(scale: Numbers, shift: Numbers) -> Self {
        debug_assert_eq!(scale.ndim(), shift.ndim());
        Affine {
            scale: scale.compact(),
            shift: shift.compact(),
        }
    }

    /// The affine that changes nothing, on a value of this rank.
    pub fn identity(rank: usize) -> Self {
        Affine {
            scale: Numbers::number(1.0, rank),
            shift: Numbers::number(0.0, rank),
        }
    }

    /// A scale with no shift.
    pub fn scale(scale: Numbers) -> Self {
        let shift = Numbers::number(0.0, scale.ndim());
        Affine::new(scale, shift)
    }

    /// A shift with no scale.
    pub fn shift(shift: Numbers) -> Self {
        let scale = Numbers::number(1.0, shift.ndim());
        Affine::new(scale, shift)
    }

    /// Rank of the value it acts on.
    pub fn rank(&self) -> usize {
        self.scale.ndim()
    }

    /// Whether `y = x`.
    pub fn is_identity(&self) -> bool {
        self.has_no_scale() && self.has_no_shift()
    }

    /// Whether it is a scale by one number.
    pub fn is_number(&self) -> bool {
        self.scale.len() == 1 && self.has_no_shift()
    }

    /// Whether the scale is 1 everywhere, and not for want of bits.
    pub fn has_no_scale(&self) -> bool {
        self.scale.are_all(1.0)
    }

    /// Whether the shift is 0 everywhere, and not for want of bits.
    pub fn has_no_shift(&self) -> bool {
        self.shift.are_all(0.0)
    }

    /// Whether there is no shift and every factor is a power of two: nothing that is multiplied by it loses a digit.
    pub fn is_only_exponents(&self) -> bool {
        let digits = (1_u64 << (f64::MANTISSA_DIGITS - 1)) - 1;
        self.has_no_shift()
            && self
                .scale
                .iter()
                .all(|s| s.is_normal() && s.to_bits() & digits == 0)
    }

    /// Whether the affine makes any number smaller.
    pub fn shrinks(&self) -> bool {
        self.scale.iter().any(|s| s.abs() < 1.0)
    }

    /// Whether every number in it is finite.
    pub fn is_finite(&self) -> bool {
        self.scale
            .iter()
            .chain(self.shift.iter())
            .all(|v| v.is_finite())
    }

    /// The inverse, `(y − t)/s`; `None` if a scale is 0, or too small.
    pub fn inverse(&self) -> Option<Affine> {
        let scale = &Numbers::number(1.0, self.rank()) / &self.scale;
        let inverse = Affine::new(scale, -&(&self.shift / &self.scale));
        inverse.is_finite().then_some(inverse)
    }

    /// Whether neither array varies along `axis`.
    pub fn is_uniform_along(&self, axis: usize) -> bool {
        self.scale.shape()[axis] == 1 && self.shift.shape()[axis] == 1
    }

    /// The axes along which it varies.
    pub fn axes(&self) -> Vec<usize> {
        (0..self.rank())
            .filter(|&axis| !self.is_uniform_along(axis))
            .collect()
    }

    /// The affine on a value of this rank, whose axes at these `places` are the axes along which it varies; `None` where it
    /// varies along others, too.
    pub fn placed(&self, axes: &[usize], places: &[usize], rank: usize) -> Option<Affine> {
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

    /// Whether one can follow the other: those of a model that contradicts itself may not.
    pub fn broadcasts_with(&self, other: &Affine) -> bool {
        let own = [&self.scale, &self.shift];
        own.iter().all(|numbers| {
            numbers.broadcasts_with(&other.scale) && numbers.broadcasts_with(&other.shift)
        })
    }

    /// `next ∘ self`: this map first, `next` on its result.
    pub fn then(&self, next: &Affine) -> Affine {
        let shift = match self.shift.is_number(0.0) {
            true => next.shift.clone(),
            false => &(&self.shift * &next.scale) + &next.shift,
        };
        Affine::new(&self.scale * &next.scale, shift)
    }

    /// Applies one array operation to both arrays (a transpose, a slice, a reshape).
    ///
    /// # Errors
    /// Where `f` fails on one of them.
    pub fn try_map<E>(
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
}
