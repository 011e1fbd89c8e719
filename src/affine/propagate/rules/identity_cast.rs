//! Identity, Dropout at inference, and Cast and CastLike between float types.
//!
//! `f(s·x + t) = s·f(x) + t`.

use crate::affine::Affine;
use crate::affine::rule::{At, Rule, Step};
use crate::refusal::Reason;

/// Operators that return their first input.
pub(super) struct PassThrough;

impl Rule for PassThrough {
    fn ops(&self) -> &'static [&'static str] {
        &["Identity", "Dropout", "Cast", "CastLike"]
    }

    fn is_scale_transparent(&self) -> bool {
        true
    }

    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        let affine = at.only(inputs, 0)?;
        at.check_handing_on()?;
        Ok(Step::pass_on(0, affine.clone()))
    }

    fn backward(&self, at: &At, output: usize, affine: &Affine) -> Result<Step, Reason> {
        at.check_handing_on()?;
        if output != 0 {
            return Err(Reason::NotLinear("the mask of Dropout".into()));
        }
        Ok(Step::pass_on(0, affine.clone()))
    }
}
