//! Whether the windows of a pooling meet the image: a window over the border alone has no maximum,
//! and no mean. And along which axes they have one place each.
//!
//! Extents may be open, so this asks what holds for all: the first window ends inside, and the last one begins inside.

use crate::affine::fold::At;
use crate::affine::linear::geometry::at_least;
use crate::refusal::Reason;

/// Whether every window is known to meet a place of the image, whatever its extents.
///
/// # Errors
/// [`Reason::Attribute`] of the first one that is not understood.
pub fn meet_the_image(at: &At) -> Result<bool, Reason> {
    let axes = kernel_axes(at)?;
    let kernel = at_least(at, "kernel_shape", vec![0; axes], 1)?;
    let strides = at_least(at, "strides", vec![1; axes], 1)?;
    let dilations = at_least(at, "dilations", vec![1; axes], 1)?;
    let pads = at_least(at, "pads", vec![0; 2 * axes], 0)?;
    // The windows of a result that is rounded up reach over the end; engines do not agree on those that begin there.
    let rounds_up = at.flag("ceil_mode", false)?;
    // A window with gaps may have all of a small image in one.
    let has_gaps = dilations.iter().any(|&dilation| dilation != 1);
    Ok(match at.attr_text("auto_pad", "NOTSET")? {
        "NOTSET" => (0..axes).all(|axis| {
            let (first, last) = (pads[axis], pads[axes + axis]);
            let is_inside = (first, last) == (0, 0) && !rounds_up;
            let begins_inside = !rounds_up || strides[axis] <= kernel[axis].saturating_sub(last);
            is_inside || !has_gaps && first.max(last) < kernel[axis] && begins_inside
        }),
        "VALID" => !rounds_up,
        // Together they are less than a window.
        "SAME_LOWER" | "SAME_UPPER" => !rounds_up && !has_gaps,
        _ => return Err(Reason::Attribute("auto_pad".into())),
    })
}

/// Whether a pooling maps an axis place by place: channels, or an axis whose windows have one
/// place.
///
/// # Errors
/// [`Reason::Attribute`] of the first one that is not understood.
pub fn is_by_place(at: &At, axis: usize) -> Result<bool, Reason> {
    let Some(place) = axis.checked_sub(2) else {
        return Ok(true);
    };
    let before = number_at(at, "pads", place, 0)?;
    let after = number_at(at, "pads", kernel_axes(at)? + place, 0)?;
    Ok(number_at(at, "kernel_shape", place, 0)? == 1
        && number_at(at, "strides", place, 1)? == 1
        && (before, after) == (0, 0))
}

/// The number of axes that the windows have.
fn kernel_axes(at: &At) -> Result<usize, Reason> {
    let kernel = at.attr_ints("kernel_shape")?;
    Ok(kernel.map_or(0, |kernel| kernel.len()))
}

/// One number of a list attribute; -1 where the list is too short.
fn number_at(at: &At, name: &str, place: usize, absent: i64) -> Result<i64, Reason> {
    Ok(match at.attr_ints(name)? {
        Some(list) => list.get(place).copied().unwrap_or(-1),
        None => absent,
    })
}
