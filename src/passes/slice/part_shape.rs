//! The target shape of a Reshape or an Expand that runs part by part.
//!
//! A known extent is written as a number. If the cut axis has a known extent, the writer replaces
//! it by the extent of the part. A Reshape infers one open extent as `-1` and copies all other open
//! extents as `0`. An Expand keeps the open extents of its operand as `1`.

use super::axes::PartRead;
use crate::analysis::node_view::At;
use crate::shape::facts::{Shape, extent, same};

/// The shape that a node reads to compute a part along an axis of its output. The inner `None`
/// means that the node reads no shape, the outer `None` that its shape cannot be written.
#[allow(clippy::option_option)]
pub(super) fn part_shape(at: &At, axis: usize, reads: &[PartRead]) -> Option<Option<Vec<i64>>> {
    let op = at.graph.op(at.node);
    if !matches!(op, Some("Reshape" | "Expand")) {
        return Some(None);
    }
    let (before, behind) = (at.shape(0).ok()?, at.output_shape(0).ok()?);
    let from = match reads.first() {
        Some(PartRead::Same(from)) => Some(*from),
        _ => None,
    };
    let target = PartTarget {
        before,
        behind,
        axis,
        from,
    };
    let shape = match op {
        Some("Reshape") => target.reshaped(at.attr("allowzero", 0) == Ok(0))?,
        _ => target.expanded()?,
    };
    Some(Some(shape))
}

/// The shapes around a Reshape or an Expand.
struct PartTarget {
    before: Shape,
    behind: Shape,
    /// The axis of the output that is cut.
    axis: usize,
    /// The axis of the operand that is cut. `None` if each part reads the whole operand.
    from: Option<usize>,
}

impl PartTarget {
    /// The target of a Reshape. `None` if it cannot be written by these rules: a single open extent
    /// is `-1`. Of several open extents, all that can be copied are `0`, and one other extent may
    /// be `-1`. If the cut axis is open, only the extent of this axis may be `-1`.
    fn reshaped(&self, copies_zeros: bool) -> Option<Vec<i64>> {
        let open: Vec<usize> = (0..self.behind.len())
            .filter(|&place| extent(&self.behind[place]).is_none())
            .collect();
        let rest: Vec<usize> = match open[..] {
            [_] => open.clone(),
            _ => open
                .iter()
                .copied()
                .filter(|&place| !self.is_copied(place))
                .collect(),
        };
        // If the cut axis is open, a part may have no elements, and then no other extent can be
        // inferred.
        let is_cut_inferred = rest.iter().all(|&place| place == self.axis);
        let is_fixed = extent(&self.behind[self.axis]).is_some();
        let can_be_written = rest.len() <= 1 && (is_fixed || is_cut_inferred);
        let is_copying = rest.len() < open.len();
        (can_be_written && (copies_zeros || !is_copying)).then_some(())?;
        let mut shape = self.numbers(0)?;
        rest.iter().for_each(|&place| shape[place] = -1);
        Some(shape)
    }

    /// The target of an Expand. `None` unless its operand has the open extents.
    fn expanded(&self) -> Option<Vec<i64>> {
        let missing = self.behind.len().checked_sub(self.before.len())?;
        let mut places =
            (0..self.behind.len()).filter(|&place| extent(&self.behind[place]).is_none());
        places
            .all(|place| self.is_kept(place, missing))
            .then(|| self.numbers(1))?
    }

    /// Whether an extent of the result is that of the operand, which has `missing` fewer axes.
    fn is_kept(&self, place: usize, missing: usize) -> bool {
        let from = place.checked_sub(missing);
        from.is_some_and(|from| same(&self.before[from], &self.behind[place]))
    }

    /// The extents of the result, with `open` in place of each unknown extent. `None` if an extent
    /// is 0.
    fn numbers(&self, open: i64) -> Option<Vec<i64>> {
        let extents = self.behind.iter().map(extent);
        let numbers = extents.map(|extent| match extent {
            Some(0) => None,
            Some(extent) => Some(extent as i64),
            None => Some(open),
        });
        numbers.collect()
    }

    /// Whether a Reshape of a part can copy this open extent from its operand.
    fn is_copied(&self, place: usize) -> bool {
        let is_like = self
            .before
            .get(place)
            .is_some_and(|dim| same(dim, &self.behind[place]));
        is_like && (place == self.axis) == (Some(place) == self.from)
    }
}
