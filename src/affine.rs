//! The one abstraction behind every fold: `y = scale * x + shift`, with constants that broadcast.

use ndarray::{ArrayD, Axis, Dimension, IxDyn, Zip};

/// An affine map on a value: `y = scale ⊙ x + shift`.
///
/// Both arrays have the rank of the value; an extent is 1 where the map is the same along that axis
/// and the value's own extent where it is not. A normalizer of `C` channels on the last axis of a
/// `[B, N, C]` tensor has arrays of shape `[1, 1, C]`. Extents that are symbolic in the model are
/// always 1 here: no constant can follow them.
///
/// ```
/// use ndarray::{arr1, array};
/// use unfold::affine::Affine;
/// let bn = Affine::new(arr1(&[2.0, 3.0]).into_dyn(), arr1(&[1.0, 0.0]).into_dyn());
/// let scaled = bn.then(&Affine::scale(arr1(&[10.0, 10.0]).into_dyn()));
/// assert_eq!(scaled.shift, arr1(&[10.0, 0.0]).into_dyn());
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Affine {
    /// Multiplies the value.
    pub scale: ArrayD<f64>,
    /// Is added afterwards.
    pub shift: ArrayD<f64>,
}

impl Affine {
    /// An affine from its two arrays, which must have one rank.
    pub fn new(scale: ArrayD<f64>, shift: ArrayD<f64>) -> Self {
        debug_assert_eq!(scale.ndim(), shift.ndim());
        Affine { scale: compact(scale), shift: compact(shift) }
    }

    /// The affine that changes nothing, on a value of this rank.
    pub fn identity(rank: usize) -> Self {
        let ones = vec![1; rank];
        Affine { scale: ArrayD::ones(ones.clone()), shift: ArrayD::zeros(ones) }
    }

    /// A scale with no shift.
    pub fn scale(scale: ArrayD<f64>) -> Self {
        let shift = ArrayD::zeros(vec![1; scale.ndim()]);
        Affine::new(scale, shift)
    }

    /// A shift with no scale.
    pub fn shift(shift: ArrayD<f64>) -> Self {
        let scale = ArrayD::ones(vec![1; shift.ndim()]);
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

    /// Whether the scale is 1 everywhere.
    pub fn has_no_scale(&self) -> bool {
        self.scale.iter().all(|&s| s == 1.0)
    }

    /// Whether the shift is 0 everywhere.
    pub fn has_no_shift(&self) -> bool {
        self.shift.iter().all(|&t| t == 0.0)
    }

    /// Whether every number in it is finite.
    pub fn is_finite(&self) -> bool {
        self.scale.iter().chain(&self.shift).all(|v| v.is_finite())
    }

    /// Whether neither array varies along `axis`.
    pub fn is_uniform_along(&self, axis: usize) -> bool {
        self.scale.shape()[axis] == 1 && self.shift.shape()[axis] == 1
    }

    /// The axes along which it varies.
    pub fn axes(&self) -> Vec<usize> {
        (0..self.rank()).filter(|&axis| !self.is_uniform_along(axis)).collect()
    }

    /// `next ∘ self`: this map first, `next` on its result.
    pub fn then(&self, next: &Affine) -> Affine {
        Affine::new(&self.scale * &next.scale, &self.shift * &next.scale + &next.shift)
    }

    /// Applies one array operation to both arrays (a transpose, a slice, a reshape).
    pub fn try_map<E>(&self, mut f: impl FnMut(&ArrayD<f64>) -> Result<ArrayD<f64>, E>) -> Result<Affine, E> {
        Ok(Affine::new(f(&self.scale)?, f(&self.shift)?))
    }
}

/// Shrinks every axis along which the array is constant to extent 1.
fn compact(mut array: ArrayD<f64>) -> ArrayD<f64> {
    for axis in 0..array.ndim() {
        let extent = array.len_of(Axis(axis));
        if extent > 1 {
            let first = array.index_axis(Axis(axis), 0).to_owned();
            let same = array
                .axis_iter(Axis(axis))
                .all(|lane| Zip::from(&lane).and(&first).all(|a, b| a.to_bits() == b.to_bits()));
            if same {
                array.collapse_axis(Axis(axis), 0);
            }
        }
    }
    array.as_standard_layout().into_owned()
}

/// Whether two arrays broadcast: those of a model whose shapes contradict each other may not.
pub fn broadcast_together(a: &ArrayD<f64>, b: &ArrayD<f64>) -> bool {
    let mut extents = a.shape().iter().rev().zip(b.shape().iter().rev());
    extents.all(|(&a, &b)| a == b || a == 1 || b == 1)
}

/// Gives `array` the rank `rank` by prepending axes of extent 1, as broadcasting does.
///
/// Returns `None` where the array has more axes than that.
pub fn align(array: &ArrayD<f64>, rank: usize) -> Option<ArrayD<f64>> {
    let missing = rank.checked_sub(array.ndim())?;
    let mut shape = vec![1; missing];
    shape.extend_from_slice(array.shape());
    array.to_shape(IxDyn(&shape)).ok().map(|a| a.into_owned())
}

/// Repeats `array` along its axes of extent 1 to `shape`.
///
/// Returns `None` where an axis is neither 1 nor the wanted extent.
pub fn expand(array: &ArrayD<f64>, shape: &[usize]) -> Option<ArrayD<f64>> {
    debug_assert_eq!(array.raw_dim().ndim(), shape.len());
    array.broadcast(IxDyn(shape)).map(|a| a.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::array;

    #[test]
    fn composes_in_reading_order() {
        let first = Affine::new(array![2.0, -1.0].into_dyn(), array![1.0, 3.0].into_dyn());
        let second = Affine::new(array![5.0, 7.0].into_dyn(), array![0.5, 0.0].into_dyn());
        let both = first.then(&second);
        for (channel, x) in [(0, 3.0), (1, -2.0)] {
            let once = first.scale[channel] * x + first.shift[channel];
            let twice = second.scale[channel] * once + second.shift[channel];
            assert_eq!(both.scale[channel] * x + both.shift[channel], twice);
        }
    }

    #[test]
    fn shrinks_what_does_not_vary() {
        let affine = Affine::scale(ArrayD::from_elem(vec![2, 3], 4.0));
        assert_eq!(affine.scale.shape(), [1, 1]);
        assert_eq!(affine.axes(), Vec::<usize>::new());
    }

    #[test]
    fn broadcasting_needs_equal_extents_or_one() {
        let together = |a: &[usize], b: &[usize]| broadcast_together(&ArrayD::ones(a), &ArrayD::ones(b));
        assert!(together(&[2, 3], &[3]) && together(&[2, 1], &[5, 1, 3]) && together(&[], &[4]));
        assert!(!together(&[2, 3], &[2]) && !together(&[4, 3], &[2, 3]));
    }

    #[test]
    fn aligns_like_broadcasting() {
        let a = align(&array![1.0, 2.0].into_dyn(), 3).unwrap();
        assert_eq!(a.shape(), [1, 1, 2]);
        assert!(align(&a, 2).is_none());
    }
}
