//! Resize and Upsample in the mode `nearest`.

use super::movement::picked;
use super::{Call, NotEvaluated, OpResult, axes};
use crate::onnx::operator::factors_at;
use crate::prove::field_value::slice;

/// The largest factor that counts as an integer. Larger elements of the field are probably images
/// of fractions or random elements.
const MOST_TIMES: u32 = 1 << 16;

/// The first operator set in which a Resize defines the coordinates of its places.
const PLACED: i64 = 11;

/// A Resize or an Upsample in the mode `nearest`, by integer factors or to given sizes.
pub(super) fn resize(call: &Call) -> OpResult {
    let is_upsample = call.op() == "Upsample";
    let is_nearest = call.text("mode", "nearest")? == "nearest"
        && (is_upsample || call.opset >= PLACED)
        && call.text("keep_aspect_ratio_policy", "stretch")? == "stretch"
        && !call.flag("antialias", false)?;
    if !is_nearest {
        return Err(NotEvaluated::Uncovered);
    }
    let [coordinates, rounding] = match is_upsample {
        true => ["asymmetric", "floor"],
        false => [
            call.text("coordinate_transformation_mode", "half_pixel")?,
            call.text("nearest_mode", "round_prefer_floor")?,
        ],
    };
    let mut value = call.value(0)?.clone();
    for (axis, (to, scale)) in resized_to(call)?.into_iter().enumerate() {
        let mut shape = value.shape().ok_or(NotEvaluated::Uncovered)?.to_vec();
        let from = std::mem::replace(&mut shape[axis], to);
        call.allowance.room(&shape)?;
        let places: Option<Vec<Option<usize>>> = (0..to)
            .map(|place| nearest(place, (from, to), scale, coordinates, rounding).map(Some))
            .collect();
        value = picked(call, &value, axis, &places.ok_or(NotEvaluated::Uncovered)?)?;
    }
    Ok(vec![value])
}

/// The extent of an axis after a Resize, and its scale as a fraction.
type ResizedAxis = (usize, (i64, i64));

/// The extent of each axis after a Resize, and its scale as a fraction.
fn resized_to(call: &Call) -> Result<Vec<ResizedAxis>, NotEvaluated> {
    let from = call.shape(0)?.to_vec();
    let named = match call.attr_ints("axes")? {
        Some(list) => axes(&list, from.len())?,
        None => (0..from.len()).collect(),
    };
    let mut made: Vec<ResizedAxis> = from.iter().map(|&extent| (extent, (1, 1))).collect();
    let factors = call.optional_field(factors_at(call.op(), call.opset))?;
    match (call.ints(3)?, factors) {
        (Some(sizes), _) if sizes.len() == named.len() => {
            for (&axis, &size) in named.iter().zip(&sizes) {
                let to = usize::try_from(size)
                    .ok()
                    .filter(|&to| to > 0 && from[axis] > 0);
                made[axis] = (
                    to.ok_or(NotEvaluated::Uncovered)?,
                    (size, from[axis] as i64),
                );
            }
        }
        // The image of an integer factor is that integer.
        (None, Some(factors)) if factors.len() == named.len() => {
            for (&axis, &times) in named.iter().zip(slice(factors)) {
                if !(1..=MOST_TIMES).contains(&times) {
                    return Err(NotEvaluated::Uncovered);
                }
                let to = from[axis]
                    .checked_mul(times as usize)
                    .ok_or(NotEvaluated::Beyond)?;
                made[axis] = (to, (times.into(), 1));
            }
        }
        _ => return Err(NotEvaluated::Uncovered),
    }
    Ok(made)
}

/// The input place that is nearest to an output place of a Resize, by the definition of the
/// operator. `None` if `coordinates` or `rounding` is not supported, or if a product overflows.
fn nearest(
    place: usize,
    (from, to): (usize, usize),
    (scale, part): (i64, i64),
    coordinates: &str,
    rounding: &str,
) -> Option<usize> {
    let place = i64::try_from(place).ok()?;
    let centre = place.checked_mul(2)?.checked_add(1)?.checked_mul(part)?;
    // The coordinate in the input, as a fraction.
    let (above, below) = match coordinates {
        "asymmetric" => (place.checked_mul(part)?, scale),
        "pytorch_half_pixel" if to == 1 => (0, 1),
        "half_pixel" | "half_pixel_symmetric" | "pytorch_half_pixel" => {
            (centre - scale, scale.checked_mul(2)?)
        }
        "tf_half_pixel_for_nn" => (centre, scale.checked_mul(2)?),
        "align_corners" if to == 1 => (0, 1),
        "align_corners" => (place.checked_mul(from as i64 - 1)?, to as i64 - 1),
        _ => return None,
    };
    let index = match rounding {
        "floor" => above.div_euclid(below),
        "ceil" => -(-above).div_euclid(below),
        "round_prefer_floor" => -(below - 2 * above).div_euclid(2 * below),
        "round_prefer_ceil" => (2 * above + below).div_euclid(2 * below),
        _ => return None,
    };
    usize::try_from(index.clamp(0, from as i64 - 1)).ok()
}
