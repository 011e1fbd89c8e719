//! Element-wise operations on the elements of two operands, with broadcasting.

use ndarray::{ArcArray, ArrayD, IxDyn};
use rayon::prelude::*;

use crate::prove::field::Arithmetic;
use crate::prove::field_value::{Elements, slice};
use crate::recipe::BroadcastRuns;

/// The number of elements that one core computes at a time.
const PART: usize = 1 << 16;

/// Applies `f` element by element, with broadcasting, in row-major order. `None` if the shapes do
/// not broadcast.
pub(crate) fn zip<A: Copy, B: Copy, C>(
    a: &ArcArray<A, IxDyn>,
    b: &ArcArray<B, IxDyn>,
    f: impl Fn(A, B) -> C,
) -> Option<ArrayD<C>> {
    let runs = BroadcastRuns::new(a.shape(), b.shape())?;
    let elements = runs.map(slice(a), slice(b), f);
    ArrayD::from_shape_vec(runs.shape, elements).ok()
}

/// Computes sums, differences or products of elements of the field, with broadcasting. `None` if
/// the shapes do not broadcast.
pub(crate) fn combine(operation: Arithmetic, a: &Elements, b: &Elements) -> Option<ArrayD<u32>> {
    let runs = BroadcastRuns::new(a.shape(), b.shape())?;
    let length = runs.length.max(1);
    let mut elements = vec![0; runs.shape.iter().product()];
    elements
        .par_chunks_mut(length)
        .enumerate()
        .with_min_len(PART.div_ceil(length))
        .for_each(|(run, made)| {
            let (a, b) = runs.operands(run, slice(a), slice(b));
            operation.compute(a, b, made);
        });
    ArrayD::from_shape_vec(runs.shape, elements).ok()
}
