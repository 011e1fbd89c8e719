//! AveragePool and GlobalAveragePool: means over places, which pass an affine of channels.
//!
//! If the zeros of a border count in the mean, a shift cannot pass. If they do not count, each
//! result is a mean of places of the image, provided that its window contains such a place.
//! [`meet_the_image`] checks this, because the last windows may reach beyond the end.

use crate::affine::Affine;
use crate::affine::propagate::rules::window::{is_by_place, meet_the_image};
use crate::affine::rule::{At, Rule};
use crate::onnx::operator::AVERAGE_POOL;
use crate::refusal::Reason;

/// Average pooling over the spatial axes of `[B, C, ...]`.
pub(super) struct Pool;

impl Rule for Pool {
    fn ops(&self) -> &'static [&'static str] {
        &["AveragePool", "GlobalAveragePool"]
    }

    fn check_unchanged(&self, at: &At, affine: &Affine) -> Result<(), Reason> {
        for axis in affine.axes() {
            if !is_by_place(at, axis)? {
                return Err(Reason::ReducedAxis);
            }
        }
        if at.proto().op_type() == "GlobalAveragePool" {
            return Ok(());
        }
        at.only_attributes(AVERAGE_POOL)?;
        let is_padded = at
            .attr_ints("pads")?
            .is_some_and(|pads| pads.iter().any(|&pad| pad != 0))
            || !matches!(at.attr_text("auto_pad", "NOTSET")?, "NOTSET" | "VALID");
        let rounds_up = at.flag("ceil_mode", false)?;
        // Engines disagree on which places count if a window reaches beyond the border, so rounding
        // up counts like padding.
        let counts_border = at.flag("count_include_pad", false)? && (is_padded || rounds_up);
        if !affine.has_no_shift() && (counts_border || !meet_the_image(at)?) {
            return Err(Reason::Padding);
        }
        Ok(())
    }
}
