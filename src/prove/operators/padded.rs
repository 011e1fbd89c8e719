//! Pad.

use ndarray::{ArrayD, IxDyn};

use super::movement::pick;
use super::{Call, NotEvaluated, OpResult, axes};
use crate::onnx::operator::input_at;
use crate::prove::field_value::FieldValue;

/// Pad. Fills the border with one number or with elements of the value, depending on the mode.
/// Negative padding crops.
pub(super) fn pad(call: &Call) -> OpResult {
    let mode = call.text("mode", "constant")?;
    let rank = call.shape(0)?.len();
    let pads = call.list("pads")?.ok_or(NotEvaluated::Uncovered)?;
    let fill = match input_at("Pad", "value", call.opset) {
        Some(slot) => call.optional(slot).cloned(),
        None => {
            let number = call.float("value", 0.0)?;
            Some(FieldValue::field(ArrayD::from_elem(IxDyn(&[]), number)))
        }
    };
    let named = match input_at("Pad", "axes", call.opset) {
        Some(slot) => call.ints(slot)?,
        None => None,
    };
    let named = named.unwrap_or_else(|| (0..rank as i64).collect());
    if pads.len() != 2 * named.len() {
        return Err(NotEvaluated::Uncovered);
    }
    let mut value = call.value(0)?.clone();
    for (place, along) in axes(&named, rank)?.into_iter().enumerate() {
        let (before, after) = (pads[place], pads[place + named.len()]);
        let mut shape = value.shape().ok_or(NotEvaluated::Uncovered)?.to_vec();
        let extent = shape[along];
        let length = (extent as i64)
            .checked_add(before)
            .and_then(|length| length.checked_add(after));
        let length = usize::try_from(length.ok_or(NotEvaluated::Beyond)?)
            .map_err(|_| NotEvaluated::Uncovered)?;
        shape[along] = length;
        call.allowance.room(&shape)?;
        let last = extent as i64 - 1;
        if mode != "constant"
            && (last < 0 || (mode == "reflect" && (before > last || after > last)))
        {
            return Err(NotEvaluated::Misfit);
        }
        if !["constant", "edge", "reflect", "wrap"].contains(&mode) {
            return Err(NotEvaluated::Uncovered);
        }
        let places: Vec<Option<usize>> = (0..length)
            .map(|to| inside(mode, to as i64 - before, extent))
            .collect();
        value = filled(&value, along, &places, &fill)?;
    }
    Ok(vec![value])
}

/// The place inside an axis whose element a Pad with this mode writes to `place`. `place` may be
/// outside of the axis. `None` if the mode writes the fill value there.
fn inside(mode: &str, place: i64, extent: usize) -> Option<usize> {
    let last = extent as i64 - 1;
    let place = match mode {
        "edge" => place.clamp(0, last),
        "wrap" => place.rem_euclid(last + 1),
        "reflect" if place.abs() > last => 2 * last - place.abs(),
        "reflect" => place.abs(),
        _ => place,
    };
    usize::try_from(place).ok().filter(|&place| place < extent)
}

/// The elements of a value at these places along an axis. A place that is `None` gets `fill`, or 0
/// if there is no fill value.
fn filled(
    value: &FieldValue,
    along: usize,
    places: &[Option<usize>],
    fill: &Option<FieldValue>,
) -> Result<FieldValue, NotEvaluated> {
    match (value, fill) {
        (FieldValue::Field(array), None) => Ok(FieldValue::field(pick(array, along, places, 0))),
        (FieldValue::Field(array), Some(FieldValue::Field(fill))) => {
            let fill = *fill.first().ok_or(NotEvaluated::Uncovered)?;
            Ok(FieldValue::field(pick(array, along, places, fill)))
        }
        (FieldValue::Int(array), None) => Ok(FieldValue::int(pick(array, along, places, 0))),
        (FieldValue::Int(array), Some(FieldValue::Int(fill))) => {
            let fill = *fill.first().ok_or(NotEvaluated::Uncovered)?;
            Ok(FieldValue::int(pick(array, along, places, fill)))
        }
        _ => Err(NotEvaluated::Uncovered),
    }
}
