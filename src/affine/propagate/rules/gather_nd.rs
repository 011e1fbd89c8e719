//! GatherND: an affine passes if it varies only along axes that are not indexed.
//!
//! In `y[b…, i…, c…] = x[b…, indices[b…, i…]…, c…]`, such an affine varies only along `b` and `c`,
//! so the values of the indices do not matter.

use std::ops::Range;

use crate::affine::Affine;
use crate::affine::rule::{At, Rule, Step};
use crate::refusal::Reason;
use crate::shape::facts::extent;

/// GatherND.
pub(super) struct GatherND;

impl Rule for GatherND {
    fn ops(&self) -> &'static [&'static str] {
        &["GatherND"]
    }

    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        let affine = at.only(inputs, 0)?;
        let (indexed, picks) = axes(at)?;
        Ok(Step::pass_on(0, replaced(affine, indexed, picks)?))
    }

    fn backward(&self, at: &At, _: usize, affine: &Affine) -> Result<Step, Reason> {
        let (indexed, picks) = axes(at)?;
        Ok(Step::pass_on(0, replaced(affine, picks, indexed)?))
    }
}

/// The axes of the value that are indexed, and the axes of the result that replace them.
///
/// # Errors
/// The shapes are not known, or `batch_dims` does not fit them.
pub(super) fn axes(at: &At) -> Result<(Range<usize>, Range<usize>), Reason> {
    let (rank, indices) = (at.rank(0)?, at.shape(1)?);
    let length = extent(indices.last().ok_or(Reason::UnknownShape)?).ok_or(Reason::UnknownShape)?;
    let batch = usize::try_from(at.attr("batch_dims", 0)?).ok();
    let batch =
        batch.filter(|batch| *batch < indices.len() && batch.saturating_add(length) <= rank);
    let batch = batch.ok_or(Reason::Attribute("batch_dims".into()))?;
    Ok((batch..batch + length, batch..indices.len() - 1))
}

/// Replaces the axes `axes` of an affine, along which it must not vary, by as many axes of extent 1
/// as `others` has.
///
/// # Errors
/// [`Reason::WrongAxis`] if the affine varies along one of `axes`.
pub(super) fn replaced(
    affine: &Affine,
    axes: Range<usize>,
    others: Range<usize>,
) -> Result<Affine, Reason> {
    if axes.clone().any(|axis| !affine.is_uniform_along(axis)) {
        return Err(Reason::WrongAxis);
    }
    affine.try_map(|array| {
        let mut shape = array.shape().to_vec();
        shape.splice(axes.clone(), others.clone().map(|_| 1));
        array.reshape(&shape).ok_or(Reason::UnknownShape)
    })
}
