//! RotaryEmbedding: rotates pairs of channels of each token, by angles from tables.
//!
//! The operator is linear along the last axis, for all pairs and angles. So a scale that is
//! constant along that axis passes.

use crate::affine::Affine;
use crate::affine::rule::{At, Rule};
use crate::refusal::Reason;

/// RotaryEmbedding, of ONNX and of `com.microsoft`.
pub(super) struct Rotary;

impl Rule for Rotary {
    fn ops(&self) -> &'static [&'static str] {
        &["RotaryEmbedding", "com.microsoft.RotaryEmbedding"]
    }

    fn is_scale_transparent(&self) -> bool {
        true
    }

    fn check_unchanged(&self, at: &At, affine: &Affine) -> Result<(), Reason> {
        at.only_attributes(&[
            "interleaved",
            "is_packed_batching",
            "num_heads",
            "rotary_embedding_dim",
            "scale",
        ])?;
        let last = affine.rank().checked_sub(1).ok_or(Reason::UnknownShape)?;
        // The rotation would turn a shift by a different angle for each token, so only a scale
        // passes.
        if !affine.has_no_shift() {
            return Err(at.not_linear());
        }
        match affine.is_uniform_along(last) {
            true => Ok(()),
            false => Err(Reason::DifferentScales),
        }
    }
}
