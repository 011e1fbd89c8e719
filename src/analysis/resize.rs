//! The axes that a Resize does not scale.

use crate::analysis::node_view::At;
use crate::refusal::Reason;

/// Whether a Resize leaves the axes with a factor of 1 unchanged.
///
/// `tf_crop_and_resize` crops every axis. `tf_half_pixel_for_nn` adds half a place to each
/// coordinate of every axis, and only two rounding modes then select the same place. Every other
/// transformation maps the coordinates of an unscaled axis to themselves.
///
/// # Errors
/// If an attribute has a wrong type.
pub(crate) fn keeps_unscaled_axes(at: &At) -> Result<bool, Reason> {
    let coordinates = at.attr_text("coordinate_transformation_mode", "half_pixel")?;
    let mode = at.attr_text("mode", "nearest")?;
    let nearest = at.attr_text("nearest_mode", "round_prefer_floor")?;
    let rounds_down = mode == "nearest" && ["floor", "round_prefer_floor"].contains(&nearest);
    Ok(match coordinates {
        "tf_crop_and_resize" => false,
        "tf_half_pixel_for_nn" => rounds_down,
        _ => true,
    })
}
