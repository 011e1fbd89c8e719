//! The granularity of a quantization: which elements share one scale.

use crate::recipe::Numbers;
use crate::refusal::Reason;

/// The size of a group that holds all elements along an axis.
pub(super) const WHOLE: usize = usize::MAX;

/// Returns one factor for each group of elements that share a scale. `groups` holds, for each axis,
/// the number of consecutive elements in a group, which is at least 1.
///
/// # Errors
/// [`Reason::Granularity`] if the factors differ within a group.
pub(super) fn by_group(factors: &Numbers, groups: &[usize]) -> Result<Numbers, Reason> {
    if factors.ndim() != groups.len() {
        return Err(Reason::UnknownShape);
    }
    let mut reduced = factors.clone();
    for (axis, &size) in groups.iter().enumerate() {
        reduced = by_group_along(&reduced, axis, size)?;
    }
    Ok(reduced)
}

/// Keeps the first factor of each group along one axis.
fn by_group_along(factors: &Numbers, axis: usize, size: usize) -> Result<Numbers, Reason> {
    let extent = factors.shape()[axis];
    if extent == 1 || size == 1 {
        return Ok(factors.clone());
    }
    let first = factors.pick(axis, (0..extent).step_by(size).map(Some));
    let first = first.ok_or(Reason::UnknownShape)?;
    let repeated = first.pick(axis, (0..extent).map(|place| Some(place / size)));
    let is_shared = repeated.is_some_and(|repeated| repeated.iter().eq(factors.iter()));
    if is_shared {
        Ok(first)
    } else {
        Err(Reason::Granularity)
    }
}
