//! Normalizers of com.microsoft that contain the residual sum: `LN(x + y + b)`.
//!
//! No affine passes. If the operands of the sum carry different affines, the refusal names the
//! residual stream.

use crate::affine::Affine;
use crate::affine::rule::{At, Rule, Step};
use crate::refusal::Reason;

/// SkipLayerNormalization and SkipSimplifiedLayerNormalization.
pub(super) struct Skip;

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
