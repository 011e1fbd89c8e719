//! Normalizers of a runtime with the residual sum inside: `LN(x + y + b)`.
//!
//! The sum is where an affine stops that only one of its operands carries.

use crate::affine::Affine;
use crate::affine::fold::{At, Rule, Step};
use crate::refusal::Reason;

/// SkipLayerNormalization and SkipSimplifiedLayerNormalization.
pub struct Skip;

impl Rule for Skip {
    fn ops(&self) -> &'static [&'static str] {
        &[
            "com.microsoft.SkipLayerNormalization",
            "com.microsoft.SkipSimplifiedLayerNormalization",
        ]
    }

    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        match inputs {
            [x, y, ..] if x != y => Err(Reason::ResidualStream),
            _ => Err(at.not_linear()),
        }
    }

    fn backward(&self, at: &At, _: usize, _: &Affine) -> Result<Step, Reason> {
        Err(at.not_linear())
    }
}
