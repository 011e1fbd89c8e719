//! Compress: the remaining places of an axis carry the same affine.

use crate::affine::Affine;
use crate::affine::rule::{At, Rule};
use crate::ir::axes::axis;
use crate::refusal::Reason;

/// Compress.
pub(crate) struct Compress;

impl Rule for Compress {
    fn ops(&self) -> &'static [&'static str] {
        &["Compress"]
    }

    /// The remaining places are unknown, so the affine must be the same at all of them.
    fn check_unchanged(&self, at: &At, affine: &Affine) -> Result<(), Reason> {
        at.only_attributes(&["axis"])?;
        // Without an axis, Compress selects from the flattened elements.
        let named = at.attr("axis", i64::MAX)?;
        match affine.is_uniform_along(axis(named, affine.rank())?) {
            true => Ok(()),
            false => Err(Reason::ReducedAxis),
        }
    }

    fn is_scale_transparent(&self) -> bool {
        true
    }
}
