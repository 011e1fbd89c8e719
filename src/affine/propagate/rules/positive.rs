//! Relu and similar functions, and sums of magnitudes: `f(k·x) = k·f(x)` for a scalar `k > 0`.
//!
//! A negative scale does not pass, because a Relu would then select other elements. A scale that
//! differs between channels does not pass, because the terms of a sum would get different factors.

use crate::affine::Affine;
use crate::affine::rule::{At, Rule, Step};
use crate::recipe::Numbers;
use crate::refusal::Reason;

/// Operators that pass a positive scalar.
pub(super) struct Positive;

impl Rule for Positive {
    fn ops(&self) -> &'static [&'static str] {
        &["Abs", "LeakyRelu", "PRelu", "ReduceL1", "Relu"]
    }

    fn is_scale_transparent(&self) -> bool {
        true
    }

    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        let affine = at.only(inputs, 0)?;
        passed(at, affine, at.output_rank(0)?)
    }

    fn backward(&self, at: &At, _: usize, affine: &Affine) -> Result<Step, Reason> {
        passed(at, affine, at.rank(0)?)
    }
}

/// The step that passes a positive scalar scale on to a value of rank `rank`. Any other affine is
/// refused.
pub(crate) fn passed(at: &At, affine: &Affine, rank: usize) -> Result<Step, Reason> {
    let number = affine.scale.first().copied().filter(|_| affine.is_number());
    if !number.is_some_and(|number| number > 0.0) {
        return Err(at.not_linear());
    }
    let scale: Option<Numbers> = affine.scale.reshape(&vec![1; rank]);
    Ok(Step::pass_on(
        0,
        Affine::scale(scale.ok_or(Reason::UnknownShape)?),
    ))
}
