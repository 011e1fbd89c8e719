//! Converts axes from attributes, where they may be negative.

use crate::refusal::Reason;

/// Converts an axis in `-rank..rank` to its index from the front.
///
/// # Errors
/// [`Reason::Attribute`] if the axis is out of range.
pub(crate) fn axis(axis: i64, rank: usize) -> Result<usize, Reason> {
    let counted = if axis < 0 { axis + rank as i64 } else { axis };
    usize::try_from(counted)
        .ok()
        .filter(|&axis| axis < rank)
        .ok_or(Reason::Attribute("axis".into()))
}

/// Converts several axes to their indices from the front.
///
/// # Errors
/// The errors of [`axis`].
pub(crate) fn axes(list: &[i64], rank: usize) -> Result<Vec<usize>, Reason> {
    list.iter().map(|&one| axis(one, rank)).collect()
}

/// The permutation of a Transpose with this `perm`: new axis `i` is old axis `perm[i]`. Without
/// `perm`, the axes are reversed.
///
/// # Errors
/// [`Reason::Attribute`] if `perm` does not contain every axis exactly once.
pub(crate) fn permutation(perm: Option<&[i64]>, rank: usize) -> Result<Vec<usize>, Reason> {
    let perm = match perm {
        Some(perm) => axes(perm, rank)?,
        None => (0..rank).rev().collect(),
    };
    let mut sorted = perm.clone();
    sorted.sort_unstable();
    if sorted != (0..rank).collect::<Vec<_>>() {
        return Err(Reason::Attribute("perm".into()));
    }
    Ok(perm)
}
