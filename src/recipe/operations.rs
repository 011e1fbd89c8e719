//! The operations on recipes. An operation without effect adds no step.

use std::sync::Arc;

use super::{Op, Recipe, Windows, broadcast};
use crate::onnx::tensor::DataType;

impl Recipe {
    /// `self + other`. All operations return `None` if the shapes do not fit.
    pub fn add(&self, other: &Recipe) -> Option<Self> {
        self.zip(Op::Add, other)
    }

    /// `self − other`
    pub fn sub(&self, other: &Recipe) -> Option<Self> {
        self.zip(Op::Sub, other)
    }

    /// `self · other`
    pub fn mul(&self, other: &Recipe) -> Option<Self> {
        self.zip(Op::Mul, other)
    }

    /// `self / other`
    pub fn div(&self, other: &Recipe) -> Option<Self> {
        self.zip(Op::Div, other)
    }

    pub(super) fn zip(&self, op: Op, other: &Recipe) -> Option<Self> {
        let shape = broadcast(self.shape(), other.shape())?;
        // An operation without effect adds no step.
        let unchanged = match op {
            Op::Mul | Op::Div if other.is_number(1.0) => Some(self),
            Op::Add | Op::Sub if other.is_number(0.0) => Some(self),
            Op::Mul if self.is_number(1.0) => Some(other),
            Op::Add if self.is_number(0.0) => Some(other),
            _ => None,
        };
        if let Some(same) = unchanged.filter(|recipe| recipe.shape() == shape) {
            return Some(same.clone());
        }
        Some(Self::new(op, vec![self.clone(), other.clone()], shape))
    }

    /// `−self`
    pub fn neg(&self) -> Self {
        if let Some(number) = self.everywhere() {
            return Self::filled(-number, self.shape());
        }
        Self::new(Op::Neg, vec![self.clone()], self.shape().to_vec())
    }

    /// `√self`
    pub fn sqrt(&self) -> Self {
        Self::new(Op::Sqrt, vec![self.clone()], self.shape().to_vec())
    }

    /// `e` to the power of each number.
    pub fn exp(&self) -> Self {
        Self::new(Op::Exp, vec![self.clone()], self.shape().to_vec())
    }

    /// The logistic function of each number.
    pub fn sigmoid(&self) -> Self {
        Self::new(Op::Sigmoid, vec![self.clone()], self.shape().to_vec())
    }

    /// Replaces numbers of a magnitude below `below` by 0.
    pub fn flushed(&self, below: f64) -> Self {
        Self::new(Op::Flush(below), vec![self.clone()], self.shape().to_vec())
    }

    /// The softmax along an axis. `None` if there is no such axis.
    pub fn softmax(&self, axis: usize) -> Option<Self> {
        let shape = self.shape().to_vec();
        (axis < self.rank()).then(|| Self::new(Op::Softmax(axis), vec![self.clone()], shape))
    }

    /// Rounds each number to an element type.
    pub fn rounded(&self, data_type: DataType) -> Self {
        Self::new(
            Op::Round(data_type),
            vec![self.clone()],
            self.shape().to_vec(),
        )
    }

    /// The elements in another shape. `None` if the shape has a different number of elements.
    pub fn reshape(&self, shape: &[usize]) -> Option<Self> {
        if shape == self.shape() {
            return Some(self.clone());
        }
        // Two reshapes in a row are one.
        let from = if self.op() == &Op::Reshape {
            &self.inputs()[0]
        } else {
            self
        };
        if shape == from.shape() {
            return Some(from.clone());
        }
        let fits = count(shape) == Some(self.len());
        fits.then(|| match self.everywhere() {
            Some(number) => Self::filled(number, shape),
            None => Self::new(Op::Reshape, vec![from.clone()], shape.to_vec()),
        })
    }

    /// The axes in another order. `None` if `perm` is not a permutation of the axes.
    pub fn transpose(&self, perm: &[usize]) -> Option<Self> {
        let mut sorted = perm.to_vec();
        sorted.sort_unstable();
        if !sorted.into_iter().eq(0..self.rank()) {
            return None;
        }
        let shape: Vec<usize> = perm.iter().map(|&axis| self.shape()[axis]).collect();
        // If only axes of extent 1 move, the elements keep their order.
        if perm
            .iter()
            .filter(|&&axis| self.shape()[axis] != 1)
            .is_sorted()
            || self.everywhere().is_some()
        {
            return self.reshape(&shape);
        }
        Some(Self::new(
            Op::Transpose(perm.to_vec()),
            vec![self.clone()],
            shape,
        ))
    }

    /// Adds axes of extent 1 before the first axis, up to rank `rank`, as broadcasting does. `None`
    /// if there are more than `rank` axes already.
    pub fn align(&self, rank: usize) -> Option<Self> {
        let missing = rank.checked_sub(self.rank())?;
        self.reshape(&[&vec![1; missing][..], self.shape()].concat())
    }

    /// Swaps the last two axes. `None` below rank 2.
    pub fn turned(&self) -> Option<Self> {
        self.transpose(&turn(self.rank())?)
    }

    /// Selects places along an axis, with 0 for a place that is `None`. Returns `None` if a place
    /// is past the end.
    pub fn pick(
        &self,
        axis: usize,
        places: impl IntoIterator<Item = Option<usize>>,
    ) -> Option<Self> {
        let places: Arc<[Option<usize>]> = places.into_iter().collect();
        let mut shape = self.shape().to_vec();
        let extent = std::mem::replace(shape.get_mut(axis)?, places.len());
        let inside = places.iter().flatten().all(|&place| place < extent);
        if places.len() == extent
            && places
                .iter()
                .enumerate()
                .all(|(i, &place)| place == Some(i))
        {
            return Some(self.clone());
        }
        if let Some(number) = self
            .everywhere()
            .filter(|&n| n.to_bits() == 0 || !places.contains(&None))
        {
            return inside.then(|| Self::filled(number, &shape));
        }
        inside.then(|| Self::new(Op::Pick { axis, places }, vec![self.clone()], shape))
    }

    /// Repeats the elements along axes of extent 1 up to this shape. `None` if the rank differs, or
    /// if any other axis would change.
    pub fn expand(&self, shape: &[usize]) -> Option<Self> {
        if shape == self.shape() {
            return Some(self.clone());
        }
        let mut pairs = self.shape().iter().zip(shape);
        let fits = shape.len() == self.rank() && pairs.all(|(&from, &to)| from == to || from == 1);
        count(shape)?;
        fits.then(|| match self.everywhere() {
            Some(number) => Self::filled(number, shape),
            None => Self::new(Op::Expand, vec![self.clone()], shape.to_vec()),
        })
    }

    /// Concatenates tensors along an axis. `None` if they differ along another axis.
    pub fn concat(axis: usize, parts: &[Recipe]) -> Option<Self> {
        let mut shape = parts.first()?.shape().to_vec();
        shape.get(axis)?;
        shape[axis] = 0;
        for part in parts {
            let mut pairs = part.shape().iter().zip(&shape).enumerate();
            let fits = part.rank() == shape.len()
                && pairs.all(|(other, (own, all))| other == axis || own == all);
            if !fits {
                return None;
            }
            shape[axis] += part.shape()[axis];
        }
        match common_number(parts) {
            Some(number) => Some(Self::filled(number, &shape)),
            None => Some(Self::new(Op::Concat(axis), parts.to_vec(), shape)),
        }
    }

    /// The sum along an axis, which then has extent 1. `None` if there is no such axis.
    pub fn sum(&self, axis: usize) -> Option<Self> {
        self.reduced(Op::Sum(axis), axis)
    }

    /// The maximum along an axis, which then has extent 1. `None` if there is no such axis.
    pub fn max(&self, axis: usize) -> Option<Self> {
        self.reduced(Op::Max(axis), axis)
    }

    fn reduced(&self, op: Op, axis: usize) -> Option<Self> {
        let mut shape = self.shape().to_vec();
        *shape.get_mut(axis)? = 1;
        Some(Self::new(op, vec![self.clone()], shape))
    }

    /// Matrix products over the last two axes. `None` if the extents do not fit.
    pub fn product(&self, other: &Recipe) -> Option<Self> {
        let (left, right) = (self.rank().checked_sub(2)?, other.rank().checked_sub(2)?);
        let mut shape = broadcast(&self.shape()[..left], &other.shape()[..right])?;
        if self.shape()[left + 1] != other.shape()[right] {
            return None;
        }
        shape.extend([self.shape()[left], other.shape()[right + 1]]);
        Some(Self::new(
            Op::Product,
            vec![self.clone(), other.clone()],
            shape,
        ))
    }

    /// The convolution with this weight `[group, outer, inner, taps]` of values `[group, inner,
    /// places]`. `None` if extents differ.
    pub(crate) fn conv(&self, values: &Recipe, windows: Windows) -> Option<Self> {
        let &[group, outer, inner, taps] = self.shape() else {
            return None;
        };
        let is_of_input = values.shape() == [group, inner, count(&windows.input)?];
        let shape = vec![group, outer, count(&windows.output)?];
        let fits = is_of_input && count(&windows.kernel) == Some(taps) && count(&shape).is_some();
        fits.then(|| {
            Self::new(
                Op::Conv(windows.into()),
                vec![self.clone(), values.clone()],
                shape,
            )
        })
    }
}

/// The number that all elements of all parts equal. `None` if there is no such number.
fn common_number(parts: &[Recipe]) -> Option<f64> {
    let number = parts.first()?.everywhere()?;
    let mut others = parts.iter().map(Recipe::everywhere);
    let is_common =
        others.all(|other| other.is_some_and(|other| other.to_bits() == number.to_bits()));
    is_common.then_some(number)
}

/// The permutation that swaps the last two axes. `None` below rank 2.
pub(super) fn turn(rank: usize) -> Option<Vec<usize>> {
    let mut perm: Vec<usize> = (0..rank).collect();
    perm.swap(rank.checked_sub(2)?, rank - 1);
    Some(perm)
}

/// The number of elements of a shape. `None` if the number does not fit `usize`.
pub(super) fn count(shape: &[usize]) -> Option<usize> {
    shape
        .iter()
        .try_fold(1, |count: usize, &extent| count.checked_mul(extent))
}
