//! Operations on the elements of two operands, with broadcasting.

use ndarray::{ArcArray, ArrayD, IxDyn};

use crate::prove::field_value::slice;
use crate::recipe::broadcast;

/// Applies `f` element by element, with broadcasting, in row-major order. `None` if the shapes do
/// not broadcast.
///
/// The last axes form a run if each operand has the result's extents along all of them, or extent 1
/// along all of them. Each run is one loop over slices.
pub(crate) fn zip<A: Copy, B: Copy, C>(
    a: &ArcArray<A, IxDyn>,
    b: &ArcArray<B, IxDyn>,
    f: impl Fn(A, B) -> C,
) -> Option<ArrayD<C>> {
    let shape = broadcast(a.shape(), b.shape())?;
    let count: usize = shape.iter().product();
    let [one, other] = [a.shape(), b.shape()].map(|extents| padded(extents, shape.len()));
    let first = first_of_run(&shape, &one).max(first_of_run(&shape, &other));
    let run: usize = shape[first..].iter().product();
    let is_repeated = [&one, &other].map(|extents| extents[first..] != shape[first..]);
    let starts = [&one, &other].map(|extents| starts(&shape[..first], extents, count));
    let (one, other) = (slice(a), slice(b));
    let mut elements = Vec::with_capacity(count);
    for (&at, &to) in starts[0].iter().zip(&starts[1]) {
        match is_repeated {
            [false, false] => {
                let pairs = one[at..at + run].iter().zip(&other[to..to + run]);
                elements.extend(pairs.map(|(&a, &b)| f(a, b)));
            }
            [false, true] => {
                let b = other[to];
                elements.extend(one[at..at + run].iter().map(|&a| f(a, b)));
            }
            [true, _] => {
                let a = one[at];
                elements.extend(other[to..to + run].iter().map(|&b| f(a, b)));
            }
        }
    }
    ArrayD::from_shape_vec(shape, elements).ok()
}

/// The extents of an operand, preceded by extents of 1 up to rank `rank`.
fn padded(extents: &[usize], rank: usize) -> Vec<usize> {
    let mut padded = vec![1; rank - extents.len()];
    padded.extend(extents);
    padded
}

/// The first axis of the longest run of one operand. From this axis to the last one, the operand
/// has all extents of the result, or only extents of 1.
fn first_of_run(shape: &[usize], extents: &[usize]) -> usize {
    let ends_whole = |&first: &usize| extents[first..] == shape[first..];
    let whole = (0..=shape.len()).find(ends_whole);
    let single = extents.iter().rposition(|&extent| extent != 1);
    whole
        .unwrap_or(shape.len())
        .min(single.map_or(0, |last| last + 1))
}

/// The offset in an operand at which each run begins. Empty if the result has no elements.
fn starts(outer: &[usize], extents: &[usize], count: usize) -> Vec<usize> {
    if count == 0 {
        return vec![];
    }
    let mut starts = vec![0];
    for (&extent, &own) in outer.iter().zip(extents) {
        let step = usize::from(own != 1);
        starts = starts
            .iter()
            .flat_map(|start| (0..extent).map(move |place| start * own + place * step))
            .collect();
    }
    let run: usize = extents[outer.len()..].iter().product();
    starts.iter_mut().for_each(|start| *start *= run);
    starts
}

#[cfg(test)]
mod tests {
    use ndarray::ArrayD;

    use super::*;

    /// Compares [`zip`] with the broadcasting of `ndarray`, for all pairs of shapes of rank 3 or
    /// less with extents of 0 to 3.
    #[test]
    fn runs_match_broadcasting_by_index() {
        let shapes: Vec<Vec<usize>> = ndarray::indices((4, 4, 4))
            .into_iter()
            .flat_map(|(x, y, z)| [vec![x, y, z], vec![y, z], vec![z], vec![]])
            .collect();
        for one in &shapes {
            for other in &shapes {
                let [a, b] = [one, other].map(|shape| {
                    let count: usize = shape.iter().product();
                    let numbers = (0..count as u32).collect();
                    ArrayD::from_shape_vec(shape.clone(), numbers)
                        .expect("as many elements")
                        .into_shared()
                });
                let found = zip(&a, &b, |a, b| (a, b));
                let shape = broadcast(one, other);
                assert_eq!(found.is_some(), shape.is_some());
                let (Some(found), Some(shape)) = (found, shape) else {
                    continue;
                };
                let a = a.broadcast(&shape[..]).expect("they broadcast");
                let b = b.broadcast(&shape[..]).expect("they broadcast");
                let expected: Vec<(u32, u32)> = a.iter().copied().zip(b.iter().copied()).collect();
                assert_eq!(found.shape(), shape);
                assert_eq!(found.into_raw_vec_and_offset().0, expected);
            }
        }
    }
}
