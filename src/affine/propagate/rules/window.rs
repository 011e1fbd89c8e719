//! Checks whether each window of a pooling contains a place of the image, and along which axes the
//! windows have only one place. A window that contains only padding has no maximum and no mean.
//!
//! Extents may be unknown, so the conditions must suffice for every extent: the first window ends
//! inside of the image, and the last window begins inside of it.

use crate::affine::linear::geometry::at_least;
use crate::affine::rule::At;
use crate::refusal::Reason;

/// Whether every window is known to contain a place of the image, whatever the extents are.
///
/// # Errors
/// [`Reason::Attribute`] for the first attribute that is not understood.
pub(crate) fn meet_the_image(at: &At) -> Result<bool, Reason> {
    let axes = kernel_axes(at)?;
    let kernel = at_least(at, "kernel_shape", vec![0; axes], 1)?;
    let strides = at_least(at, "strides", vec![1; axes], 1)?;
    let dilations = at_least(at, "dilations", vec![1; axes], 1)?;
    let pads = at_least(at, "pads", vec![0; 2 * axes], 0)?;
    // If the number of windows is rounded up, the last ones reach beyond the end. Engines disagree
    // on windows that begin beyond the end, so no window may begin there.
    let rounds_up = at.flag("ceil_mode", false)?;
    // A small image may lie wholly in a gap of a dilated window, so a dilated pooling must not pad.
    let has_gaps = dilations.iter().any(|&dilation| dilation != 1);
    Ok(match at.attr_text("auto_pad", "NOTSET")? {
        "NOTSET" => (0..axes).all(|axis| {
            let (first, last) = (pads[axis], pads[axes + axis]);
            let is_inside = (first, last) == (0, 0) && !rounds_up;
            let begins_inside = !rounds_up || strides[axis] <= kernel[axis].saturating_sub(last);
            is_inside || !has_gaps && first.max(last) < kernel[axis] && begins_inside
        }),
        "VALID" => !rounds_up,
        // SAME adds less padding than the extent of a window, so each window without gaps meets the
        // image.
        "SAME_LOWER" | "SAME_UPPER" => !rounds_up && !has_gaps,
        _ => return Err(Reason::Attribute("auto_pad".into())),
    })
}

/// Whether a pooling maps each place of an axis to one place. True for the batch and the channels,
/// and for axes along which windows have one place.
///
/// # Errors
/// [`Reason::Attribute`] for the first attribute that is not understood.
pub(crate) fn is_by_place(at: &At, axis: usize) -> Result<bool, Reason> {
    let Some(place) = axis.checked_sub(2) else {
        return Ok(true);
    };
    let before = number_at(at, "pads", place, 0)?;
    let after = number_at(at, "pads", kernel_axes(at)? + place, 0)?;
    Ok(number_at(at, "kernel_shape", place, 0)? == 1
        && number_at(at, "strides", place, 1)? == 1
        && (before, after) == (0, 0))
}

/// The number of axes of the windows, or 0 if the pooling has no kernel.
fn kernel_axes(at: &At) -> Result<usize, Reason> {
    let kernel = at.attr_ints("kernel_shape")?;
    Ok(kernel.map_or(0, |kernel| kernel.len()))
}

/// One element of a list attribute: `absent` if there is no list, and -1 if the list is too short.
fn number_at(at: &At, name: &str, place: usize, absent: i64) -> Result<i64, Reason> {
    Ok(match at.attr_ints(name)? {
        Some(list) => list.get(place).copied().unwrap_or(-1),
        None => absent,
    })
}
