//! Broadcasting of two operands, as loops over slices.

/// The shape of the result of an element-wise operation on these shapes. `None` if they do not
/// broadcast.
pub(crate) fn broadcast(left: &[usize], right: &[usize]) -> Option<Vec<usize>> {
    let rank = left.len().max(right.len());
    (0..rank)
        .map(|axis| {
            let left = aligned_extent(left, rank, axis);
            let right = aligned_extent(right, rank, axis);
            match (left, right) {
                (1, n) | (n, 1) => Some(n),
                (n, m) => (n == m).then_some(n),
            }
        })
        .collect()
}

/// The extent of `shape` along `axis` of a result of rank `rank` to which the shape broadcasts. 1
/// if the shape has no such axis.
pub(super) fn aligned_extent(shape: &[usize], rank: usize, axis: usize) -> usize {
    (axis + shape.len())
        .checked_sub(rank)
        .map_or(1, |own| shape[own])
}

/// The runs of two operands that broadcast.
///
/// The last axes form a run if each operand has the result's extents along all of them, or extent 1
/// along all of them. Each run is one loop over slices.
pub(crate) struct BroadcastRuns {
    /// The shape of the result.
    pub shape: Vec<usize>,
    /// The number of elements of the result in each run.
    pub length: usize,
    /// The number of elements of each operand in each run: `length`, or 1 for an element that is
    /// repeated.
    lengths: [usize; 2],
    /// The offset in each operand at which each run begins. Empty if the result has no elements.
    starts: [Vec<usize>; 2],
}

impl BroadcastRuns {
    /// `None` if the shapes do not broadcast.
    pub(crate) fn new(one: &[usize], other: &[usize]) -> Option<Self> {
        let shape = broadcast(one, other)?;
        let count: usize = shape.iter().product();
        let operands = [one, other].map(|extents| padded(extents, shape.len()));
        let firsts = operands.each_ref();
        let [one, other] = firsts.map(|extents| first_of_run(&shape, extents));
        let first = one.max(other);
        let lengths = operands.each_ref();
        let lengths = lengths.map(|extents| extents[first..].iter().product());
        let starts = operands.each_ref();
        let starts = starts.map(|extents| self::starts(&shape[..first], extents, count));
        let length = shape[first..].iter().product();
        Some(Self {
            shape,
            length,
            lengths,
            starts,
        })
    }

    /// The number of runs.
    pub(crate) fn count(&self) -> usize {
        self.starts[0].len()
    }

    /// The elements of both operands in a run. A slice with one element is that element, repeated.
    pub(crate) fn operands<'o, A, B>(
        &self,
        run: usize,
        one: &'o [A],
        other: &'o [B],
    ) -> (&'o [A], &'o [B]) {
        let [at, to] = self.starts.each_ref().map(|starts| starts[run]);
        let [from_one, from_other] = self.lengths;
        (&one[at..at + from_one], &other[to..to + from_other])
    }

    /// The results of `f` on all pairs of elements, in row-major order.
    pub(crate) fn map<A: Copy, B: Copy, C>(
        &self,
        one: &[A],
        other: &[B],
        f: impl Fn(A, B) -> C,
    ) -> Vec<C> {
        let mut results = Vec::with_capacity(self.shape.iter().product());
        for run in 0..self.count() {
            match self.operands(run, one, other) {
                (&[a], b) => results.extend(b.iter().map(|&b| f(a, b))),
                (a, &[b]) => results.extend(a.iter().map(|&a| f(a, b))),
                (a, b) => results.extend(a.iter().zip(b).map(|(&a, &b)| f(a, b))),
            }
        }
        results
    }
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

    /// Compares [`BroadcastRuns::map`] with the broadcasting of `ndarray`, for all pairs of shapes
    /// of rank 3 or less with extents of 0 to 3.
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
                    ArrayD::from_shape_vec(shape.clone(), numbers).expect("as many elements")
                });
                let runs = BroadcastRuns::new(one, other);
                let shape = broadcast(one, other);
                assert_eq!(runs.is_some(), shape.is_some());
                let (Some(runs), Some(shape)) = (runs, shape) else {
                    continue;
                };
                let [one, other] = [&a, &b].map(|array| array.as_slice().expect("row-major"));
                let found = runs.map(one, other, |a, b| (a, b));
                let a = a.broadcast(&shape[..]).expect("they broadcast");
                let b = b.broadcast(&shape[..]).expect("they broadcast");
                let expected: Vec<(u32, u32)> = a.iter().copied().zip(b.iter().copied()).collect();
                assert_eq!(runs.shape, shape);
                assert_eq!(found, expected);
            }
        }
    }
}
