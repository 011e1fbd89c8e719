//! GridSample: every place of the result is a mean of places, at a grid that is no business of the channels.
//!
//! The weights add up to 1 in every mode, except with zeros around the image: there a shift does
//! not pass.

use crate::affine::Affine;
use crate::affine::fold::{At, Rule};
use crate::refusal::Reason;

/// GridSample.
pub struct Sample;

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
        // With an image of its own for each item, and one grid for it.
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
