//! Reshape, Flatten, Squeeze and Unsqueeze, which keep the order of the elements.

use crate::affine::Affine;
use crate::affine::rule::{At, Rule, Step};
use crate::analysis::broadcast;
use crate::refusal::Reason;

/// Operators that only change the shape.
pub(super) struct Reshape;

impl Rule for Reshape {
    fn ops(&self) -> &'static [&'static str] {
        &["Reshape", "Flatten", "Squeeze", "Unsqueeze"]
    }

    fn is_scale_transparent(&self) -> bool {
        true
    }

    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        let affine = at.only(inputs, 0)?;
        let (from, to) = (at.shape(0)?, at.output_shape(0)?);
        Ok(Step::pass_on(
            0,
            affine.try_map(|array| broadcast::reshape(array, &from, &to))?,
        ))
    }

    fn backward(&self, at: &At, _: usize, affine: &Affine) -> Result<Step, Reason> {
        let (from, to) = (at.shape(0)?, at.output_shape(0)?);
        Ok(Step::pass_on(
            0,
            affine.try_map(|array| broadcast::reshape(array, &to, &from))?,
        ))
    }
}
