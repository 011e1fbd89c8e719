//! Whether the windows of a pooling meet the image: a window over the border alone has no maximum,
//! and no mean. And along which axes they have one place each.
//!
//! Extents may be open, so this asks what holds for all: the first window ends inside, and the last one begins inside.

use crate::affine::fold::At;
use crate::refusal::Reason;

/// Whether every window is known to meet a place of the image, whatever its extents.
///
/// # Errors
/// [`Reason::Attribute`] of the first one that is not understood.
pub fn meet_the_image(at: &At) -> Result<bool, Reason> {
    let list = |name: &str, absent: Vec<i64>, least: i64| -> Result<Vec<i64>, Reason> {
        let count = absent.len();
        let list = at.attr_ints(name)?.unwrap_or(absent);
        let fits = list.len() == count && list.iter().all(|&number| number >= least);
        if fits {
            Ok(list)
        } else {
            Err(Reason::Attribute(name.into()))
        }
    };
    let axes = at
        .attr_ints("kernel_shape")?
        .map_or(0, |kernel| kernel.len());
    let kernel = list("kernel_shape", vec![0; axes], 1)?;
    let (strides, dilations) = (
        list("strides", vec![1; axes], 1)?,
        list("dilations", vec![1; axes], 1)?,
    );
    let pads = list("pads", vec![0; 2 * axes], 0)?;
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
    let of = |name: &str, place: usize, absent: i64| -> Result<i64, Reason> {
        Ok(at
            .attr_ints(name)?
            .map_or(Some(absent), |list| list.get(place).copied())
            .unwrap_or(-1))
    };
    let axes = at
        .attr_ints("kernel_shape")?
        .map_or(0, |kernel| kernel.len());
    let is_one = |name: &str, absent| Ok(of(name, place, absent)? == 1);
    let is_padded = of("pads", place, 0)? != 0 || of("pads", axes + place, 0)? != 0;
    Ok(is_one("kernel_shape", 0)? && is_one("strides", 1)? && !is_padded)
}
