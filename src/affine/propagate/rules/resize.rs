//! Resize and Upsample: every place of the result is a weighted mean of places, with weights that
//! add up to 1.
//!
//! `f(s·x + t) = s·f(x) + t` in every mode, if the affine is constant along the resized axes. An
//! axis with factor 1 is unchanged in most modes, so the affine may vary along it. Cropping is
//! refused, because it writes a constant outside of the input.

use crate::affine::Affine;
use crate::affine::rule::{At, Rule};
use crate::analysis::resize::keeps_unscaled_axes;
use crate::ir::axes::axes;
use crate::onnx::operator::factors_at;
use crate::refusal::Reason;
use crate::shape::facts::same;

/// Resize, and its predecessor Upsample.
pub(super) struct Resize;

impl Rule for Resize {
    fn ops(&self) -> &'static [&'static str] {
        &["Resize", "Upsample"]
    }

    fn is_scale_transparent(&self) -> bool {
        true
    }

    fn check_unchanged(&self, at: &At, affine: &Affine) -> Result<(), Reason> {
        if !["nearest", "linear", "cubic"].contains(&at.attr_text("mode", "nearest")?) {
            return Err(Reason::Attribute("mode".into()));
        }
        if at.attr_text("coordinate_transformation_mode", "half_pixel")? == "tf_crop_and_resize" {
            return Err(Reason::Attribute("coordinate_transformation_mode".into()));
        }
        if at.rank(0)? != affine.rank() {
            return Err(Reason::UnknownShape);
        }
        for axis in affine.axes() {
            if !stays(at, axis, affine.rank())? {
                return Err(Reason::ReducedAxis);
            }
        }
        Ok(())
    }
}

/// Whether the Resize is known to leave an axis unchanged.
fn stays(at: &At, axis: usize, rank: usize) -> Result<bool, Reason> {
    let resized = match at.attr_ints("axes")? {
        Some(list) => axes(&list, rank)?,
        None => (0..rank).collect(),
    };
    let Some(place) = resized.iter().position(|&other| other == axis) else {
        return Ok(true);
    };
    if !keeps_unscaled_axes(at)? {
        return Err(Reason::Attribute("coordinate_transformation_mode".into()));
    }
    let has_sizes = at.graph.input(at.node, 3).is_some();
    if has_sizes && at.extents(3)? == [resized.len()] {
        // Other policies use one factor for all axes, so equal extents do not prove that an axis is
        // unchanged.
        let fits = at.attr_text("keep_aspect_ratio_policy", "stretch")? == "stretch";
        return Ok(fits && same(&at.shape(0)?[axis], &at.output_shape(0)?[axis]));
    }
    // A factor near 1 may keep the extent but move the places, so the factor must be exactly 1.
    let factors = at.numbers(factors_at(at.proto().op_type(), at.opset()))?;
    Ok(factors.shape() == [resized.len()] && factors[place] == 1.0)
}
