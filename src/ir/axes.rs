//! Converts axes as nodes give them.

use crate::refusal::Reason;

/// An axis in `-rank..rank`, counted from the front.
///
/// # Errors
/// [`Reason::Attribute`] if it is out of range.
pub(crate) fn axis(axis: i64, rank: usize) -> Result<usize, Reason> {
    let counted = if axis < 0 { axis + rank as i64 } else { axis };
    usize::try_from(counted)
        .ok()
        .filter(|&axis| axis < rank)
        .ok_or(Reason::Attribute("axis".into()))
}

/// Several axes, counted from the front.
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
/// [`Reason::Attribute`] if it does not name every axis once.
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
