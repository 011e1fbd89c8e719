//! Compress: the remaining places of an axis carry the same affine.

use crate::affine::Affine;
use crate::affine::rule::{At, Rule, Step};
use crate::ir::axes::axis;
use crate::refusal::Reason;

/// Compress.
pub(crate) struct Compress;

impl Rule for Compress {
    fn ops(&self) -> &'static [&'static str] {
        &["Compress"]
    }

    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        let affine = at.only(inputs, 0)?;
        check(at, affine)?;
        Ok(Step::pass_on(0, affine.clone()))
    }

    fn backward(&self, at: &At, _: usize, affine: &Affine) -> Result<Step, Reason> {
        check(at, affine)?;
        Ok(Step::pass_on(0, affine.clone()))
    }
}

/// Which places stay is not known, so the affine must be the same at all of them.
fn check(at: &At, affine: &Affine) -> Result<(), Reason> {
    at.only_attributes(&["axis"])?;
    // Without an axis all elements come in one row.
    let named = at.attr("axis", i64::MAX)?;
    match affine.is_uniform_along(axis(named, affine.rank())?) {
        true => Ok(()),
        false => Err(Reason::ReducedAxis),
    }
}
