//! GridSample: every place of the result is a weighted mean of places, which a grid selects for all
//! channels alike.
//!
//! The weights add up to 1 in every mode, except if zeros surround the image. Then a shift cannot
//! pass.

use crate::affine::Affine;
use crate::affine::rule::{At, Rule};
use crate::refusal::Reason;

/// GridSample.
pub(super) struct Sample;

impl Rule for Sample {
    fn ops(&self) -> &'static [&'static str] {
        &["GridSample"]
    }

    fn is_scale_transparent(&self) -> bool {
        true
    }

    fn check_unchanged(&self, at: &At, affine: &Affine) -> Result<(), Reason> {
        at.only_attributes(&["align_corners", "mode", "padding_mode"])?;
        if !["bicubic", "bilinear", "cubic", "linear", "nearest"]
            .contains(&at.attr_text("mode", "linear")?)
        {
            return Err(Reason::Attribute("mode".into()));
        }
        // Each sample of the batch has its own image and grid, so an affine may vary only along the
        // axis of channels.
        if affine.axes().iter().any(|&axis| axis != 1) {
            return Err(Reason::ReducedAxis);
        }
        match at.attr_text("padding_mode", "zeros")? {
            "border" | "reflection" => Ok(()),
            "zeros" if affine.has_no_shift() => Ok(()),
            "zeros" => Err(Reason::Padding),
            _ => Err(Reason::Attribute("padding_mode".into())),
        }
    }
}
