//! Operators that move elements. An integer tensor gives the places.

use ndarray::{ArcArray, ArrayD, Axis, IxDyn, Zip};

use super::arithmetic::zip;
use super::{Call, Made, Unmade, axes};
use crate::ir::axes::permutation;
use crate::onnx::external::Externals;
use crate::onnx::operator::{factors_at, input_at};
use crate::prove::field;
use crate::prove::field_value::{FieldValue, either, of_tensor, slice};
use crate::recipe::broadcast;

/// The attributes of Resize that are looked at, or that mean nothing to the nearest place.
pub(super) const RESIZE: &[&str] = &[
    "antialias",
    "axes",
    "coordinate_transformation_mode",
    "cubic_coeff_a",
    "exclude_outside",
    "extrapolation_value",
    "keep_aspect_ratio_policy",
    "mode",
    "nearest_mode",
];

/// The elements in another shape.
///
/// # Errors
/// [`Unmade::Misfit`] where it has room for more or fewer, and [`Unmade::Uncovered`] where its shape is not known.
pub fn reshaped(value: &FieldValue, shape: &[usize]) -> Result<FieldValue, Unmade> {
    let fits = value
        .shape()
        .is_some_and(|from| from.iter().product::<usize>() == shape.iter().product::<usize>());
    if !fits {
        return Err(if value.shape().is_some() {
            Unmade::Misfit
        } else {
            Unmade::Uncovered
        });
    }
    let shaped = match value.clone() {
        FieldValue::Field(elements) => FieldValue::Field(
            elements
                .into_shape_with_order(shape)
                .expect("as many elements"),
        ),
        FieldValue::Varying(elements) => FieldValue::Varying(
            elements
                .into_shape_with_order(shape)
                .expect("as many elements"),
        ),
        FieldValue::Int(integers) => FieldValue::Int(
            integers
                .into_shape_with_order(shape)
                .expect("as many elements"),
        ),
        opaque => opaque,
    };
    Ok(shaped)
}

/// The places along an axis in this order; nothing is `fill`.
pub fn pick<T: Copy>(
    array: &ArcArray<T, IxDyn>,
    axis: usize,
    places: &[Option<usize>],
    fill: T,
) -> ArrayD<T> {
    let (from, mut shape) = (slice(array), array.shape().to_vec());
    let extent = std::mem::replace(&mut shape[axis], places.len());
    let (outer, inner) = (
        shape[..axis].iter().product::<usize>(),
        shape[axis + 1..].iter().product::<usize>(),
    );
    let mut picked = Vec::with_capacity(outer * places.len() * inner);
    for block in 0..outer {
        for place in places {
            match place {
                Some(place) => {
                    picked.extend_from_slice(&from[(block * extent + place) * inner..][..inner])
                }
                None => picked.extend(std::iter::repeat_n(fill, inner)),
            }
        }
    }
    ArrayD::from_shape_vec(shape, picked).expect("as many elements")
}

/// One behind the other along an axis.
pub fn concatenated<T: Copy>(arrays: &[&ArcArray<T, IxDyn>], axis: usize) -> Option<ArrayD<T>> {
    let views: Vec<_> = arrays.iter().map(|array| array.view()).collect();
    ndarray::concatenate(Axis(axis), &views).ok()
}

/// The axes in another order.
pub fn transposed<T: Copy>(array: &ArcArray<T, IxDyn>, perm: &[usize]) -> ArrayD<T> {
    array
        .view()
        .permuted_axes(perm)
        .as_standard_layout()
        .into_owned()
}

/// A value with some places of an axis.
fn picked(
    call: &Call,
    value: &FieldValue,
    axis: usize,
    places: &[Option<usize>],
) -> Result<FieldValue, Unmade> {
    let mut shape = value.shape().ok_or(Unmade::Uncovered)?.to_vec();
    shape[axis] = places.len();
    call.allowance.room(&shape)?;
    Ok(either!(value, array => pick(array, axis, places, 0), else return Err(Unmade::Uncovered)))
}

pub(super) fn identity(call: &Call) -> Made {
    Ok(vec![call.value(0)?.clone()])
}

/// Out of training, in which it does nothing and its mask is true everywhere.
pub(super) fn dropout(call: &Call) -> Made {
    let trains = match call.optional(2) {
        Some(_) => call
            .ints(2)?
            .is_none_or(|mode| mode.iter().any(|&mode| mode != 0)),
        None => call.opset < 7 && !call.flag("is_test", false)?,
    };
    if trains {
        return Err(Unmade::Uncovered);
    }
    let mask = ArrayD::from_elem(call.shape(0)?, 1);
    Ok(vec![call.value(0)?.clone(), FieldValue::int(mask)])
}

pub(super) fn reshape(call: &Call) -> Made {
    let (from, wanted) = (call.shape(0)?, call.ints(1)?.ok_or(Unmade::Uncovered)?);
    let keeps_zero = call.flag("allowzero", false)?;
    let mut shape = vec![];
    for (place, &extent) in wanted.iter().enumerate() {
        shape.push(match extent {
            -1 => 1,
            0 if !keeps_zero => *from.get(place).ok_or(Unmade::Uncovered)?,
            extent => usize::try_from(extent).map_err(|_| Unmade::Uncovered)?,
        });
    }
    if let Some(open) = wanted.iter().position(|&extent| extent == -1) {
        let product = |shape: &[usize]| {
            shape
                .iter()
                .try_fold(1_usize, |n, &extent| n.checked_mul(extent))
        };
        let (there, rest) = product(from)
            .zip(product(&shape))
            .ok_or(Unmade::Uncovered)?;
        shape[open] = there.checked_div(rest).ok_or(Unmade::Misfit)?;
    }
    call.allowance.room(&shape)?;
    Ok(vec![reshaped(call.value(0)?, &shape)?])
}

pub(super) fn flatten(call: &Call) -> Made {
    let shape = call.shape(0)?;
    let named = call.attr("axis", 1)?;
    let at = if named < 0 {
        named + shape.len() as i64
    } else {
        named
    };
    let at = usize::try_from(at)
        .ok()
        .filter(|&at| at <= shape.len())
        .ok_or(Unmade::Uncovered)?;
    let flat = [&shape[..at], &shape[at..]].map(|part| part.iter().product());
    Ok(vec![reshaped(call.value(0)?, &flat)?])
}

/// Squeeze and Unsqueeze.
pub(super) fn squeeze(call: &Call) -> Made {
    let shape = call.shape(0)?;
    let named = call.list("axes")?;
    if call.op() == "Squeeze" {
        let gone = match named {
            Some(named) => axes(&named, shape.len())?,
            None => (0..shape.len()).filter(|&axis| shape[axis] == 1).collect(),
        };
        let left: Vec<usize> = (0..shape.len())
            .filter(|axis| !gone.contains(axis))
            .map(|axis| shape[axis])
            .collect();
        return Ok(vec![reshaped(call.value(0)?, &left)?]);
    }
    let named = named.ok_or(Unmade::Uncovered)?;
    let rank = shape.len() + named.len();
    let new = axes(&named, rank)?;
    let mut rest = shape.iter().copied();
    let extents = (0..rank).map(|axis| {
        if new.contains(&axis) {
            Some(1)
        } else {
            rest.next()
        }
    });
    let wide: Vec<usize> = extents.collect::<Option<_>>().ok_or(Unmade::Uncovered)?;
    Ok(vec![reshaped(call.value(0)?, &wide)?])
}

pub(super) fn transpose(call: &Call) -> Made {
    let shape = call.shape(0)?;
    let perm = permutation(call.attr_ints("perm")?.as_deref(), shape.len())
        .map_err(|_| Unmade::Uncovered)?;
    call.allowance.room(shape)?;
    let value = call.value(0)?;
    Ok(vec![
        either!(value, array => transposed(array, &perm), else return Err(Unmade::Uncovered)),
    ])
}

pub(super) fn slice_of(call: &Call) -> Made {
    let rank = call.shape(0)?.len();
    let starts = call.list("starts")?.ok_or(Unmade::Uncovered)?;
    let ends = call.list("ends")?.ok_or(Unmade::Uncovered)?;
    let named = call
        .list("axes")?
        .unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = match input_at("Slice", "steps", call.opset) {
        Some(slot) => call.ints(slot)?,
        None => None,
    };
    let steps = steps.unwrap_or_else(|| vec![1; starts.len()]);
    if [ends.len(), named.len(), steps.len()] != [starts.len(); 3] {
        return Err(Unmade::Uncovered);
    }
    let mut value = call.value(0)?.clone();
    for (place, along) in axes(&named, rank)?.into_iter().enumerate() {
        let (extent, step) = (
            value.shape().ok_or(Unmade::Uncovered)?[along] as i64,
            steps[place],
        );
        if step < 0 && starts[place] < -extent {
            // The specification takes the first place here, and its reference none.
            return Err(Unmade::Uncovered);
        }
        let (low, high) = if step > 0 {
            (0, extent)
        } else {
            (-1, extent - 1)
        };
        let bound = |at: i64| {
            (if at < 0 {
                at.saturating_add(extent)
            } else {
                at
            })
            .clamp(low, high.max(low))
        };
        let (start, end) = (bound(starts[place]), bound(ends[place]));
        let step_size = usize::try_from(step.unsigned_abs()).map_err(|_| Unmade::Uncovered)?;
        let places: Vec<Option<usize>> = match step {
            0 => return Err(Unmade::Uncovered),
            1.. => (start..end)
                .step_by(step_size)
                .map(|at| Some(at as usize))
                .collect(),
            _ => (end + 1..=start)
                .rev()
                .step_by(step_size)
                .map(|at| Some(at as usize))
                .collect(),
        };
        value = picked(call, &value, along, &places)?;
    }
    Ok(vec![value])
}

pub(super) fn split(call: &Call) -> Made {
    let shape = call.shape(0)?;
    let along = call.axis(0, shape.len())?;
    let (whole, parts) = (shape[along], call.node.output.len());
    let lengths = match call.list("split")? {
        Some(lengths) => lengths
            .into_iter()
            .map(|n| usize::try_from(n).map_err(|_| Unmade::Uncovered))
            .collect(),
        None => {
            let wide = whole.div_ceil(parts.max(1));
            Ok((0..parts)
                .map(|part| wide.min(whole.saturating_sub(part * wide)))
                .collect::<Vec<_>>())
        }
    }?;
    let sum = lengths
        .iter()
        .try_fold(0_usize, |sum, &length| sum.checked_add(length));
    if lengths.len() != parts || sum != Some(whole) {
        return Err(Unmade::Misfit);
    }
    let mut start = 0;
    let part = |length: usize| {
        let places: Vec<Option<usize>> = (start..start + length).map(Some).collect();
        start += length;
        picked(call, call.value(0)?, along, &places)
    };
    lengths.into_iter().map(part).collect()
}

pub(super) fn concat(call: &Call) -> Made {
    let first = call.shape(0)?;
    let along = call.axis(0, first.len())?;
    let mut shape = first.to_vec();
    for slot in 1..call.inputs.len() {
        let other = call.shape(slot)?;
        let fits = |axis: usize| axis == along || other[axis] == shape[axis];
        if other.len() != shape.len() || !(0..shape.len()).all(fits) {
            return Err(Unmade::Misfit);
        }
        shape[along] = shape[along].saturating_add(other[along]);
    }
    call.allowance.room(&shape)?;
    let values: Vec<&FieldValue> = (0..call.inputs.len())
        .map(|slot| call.value(slot))
        .collect::<Result<_, _>>()?;
    let joined = match values[0] {
        FieldValue::Int(_)
            if values
                .iter()
                .all(|value| matches!(value, FieldValue::Int(_))) =>
        {
            let parts: Vec<_> = (0..values.len())
                .map(|slot| call.integers(slot))
                .collect::<Result<_, _>>()?;
            concatenated(&parts, along).map(FieldValue::int)
        }
        FieldValue::Field(_) => {
            let parts: Vec<_> = (0..values.len())
                .map(|slot| call.field(slot))
                .collect::<Result<_, _>>()?;
            concatenated(&parts, along).map(FieldValue::field)
        }
        // Known integers concatenated with unknown ones become unknown. A negative index means
        // another place than its image.
        FieldValue::Int(_) | FieldValue::Varying(_)
            if !values
                .iter()
                .any(|value| matches!(value, FieldValue::Field(_))) =>
        {
            let is_negative = |value: &&FieldValue| matches!(value, FieldValue::Int(known) if known.iter().any(|&number| number < 0));
            if values.iter().any(is_negative) {
                return Err(Unmade::Uncovered);
            }
            let parts: Vec<_> = values
                .iter()
                .map(|value| value.images())
                .collect::<Option<_>>()
                .ok_or(Unmade::Uncovered)?;
            concatenated(&parts.iter().collect::<Vec<_>>(), along).map(FieldValue::varying)
        }
        _ => None,
    };
    Ok(vec![joined.ok_or(Unmade::Uncovered)?])
}

/// The place of an index along an axis.
///
/// An index that is given may be any number, and stands for one that is in range: its place is that modulo the extent. A
/// settled index is the number that it is.
///
/// # Errors
/// [`Unmade::Misfit`] for a settled index out of range.
pub(super) fn place(index: i64, extent: usize, is_settled: bool) -> Result<usize, Unmade> {
    let extent = i64::try_from(extent)
        .ok()
        .filter(|&extent| extent > 0)
        .ok_or(Unmade::Uncovered)?;
    if is_settled && !(-extent..extent).contains(&index) {
        return Err(Unmade::Misfit);
    }
    Ok(index.rem_euclid(extent) as usize)
}

pub(super) fn gather(call: &Call) -> Made {
    let (mut shape, indices) = (call.shape(0)?.to_vec(), call.indices(1)?);
    let along = call.axis(0, shape.len())?;
    let is_settled = call.is_settled(1);
    let places = slice(&indices)
        .iter()
        .map(|&index| place(index, shape[along], is_settled).map(Some));
    let taken = picked(
        call,
        call.value(0)?,
        along,
        &places.collect::<Result<Vec<_>, _>>()?,
    )?;
    shape.splice(along..=along, indices.shape().iter().copied());
    Ok(vec![reshaped(&taken, &shape)?])
}

/// The place of a tuple of indices among all places of these axes.
///
/// # Errors
/// As [`place`].
pub(super) fn flat_place(
    tuple: &[i64],
    extents: &[usize],
    is_settled: bool,
) -> Result<usize, Unmade> {
    let mut flat = 0;
    for (&index, &extent) in tuple.iter().zip(extents) {
        flat = flat * extent + place(index, extent, is_settled)?;
    }
    Ok(flat)
}

pub(super) fn gather_nd(call: &Call) -> Made {
    let (shape, indices) = (call.shape(0)?, call.indices(1)?);
    let batch = call.count("batch_dims", 0)?;
    let (&length, outer) = indices.shape().split_last().ok_or(Unmade::Uncovered)?;
    let fits = batch <= outer.len() && length > 0 && batch + length <= shape.len();
    if !fits || outer[..batch] != shape[..batch] {
        return Err(Unmade::Misfit);
    }
    let (indexed, rest) = shape[batch..].split_at(length);
    let made = [outer, rest].concat();
    call.allowance.room(&made)?;
    let per_batch = outer[batch..].iter().product::<usize>().max(1);
    let block: usize = indexed.iter().product();
    let mut places = vec![];
    for (count, tuple) in slice(&indices).chunks(length).enumerate() {
        let flat = flat_place(tuple, indexed, call.is_settled(1))?;
        places.push(Some(count / per_batch * block + flat));
    }
    let flat = [
        shape[..batch].iter().product::<usize>() * block,
        rest.iter().product(),
    ];
    let taken = picked(call, &reshaped(call.value(0)?, &flat)?, 0, &places)?;
    Ok(vec![reshaped(&taken, &made)?])
}

pub(super) fn gather_elements(call: &Call) -> Made {
    let (shape, indices) = (call.shape(0)?, call.indices(1)?);
    let along = call.axis(0, shape.len())?;
    let inside = |axis: usize| axis == along || indices.shape()[axis] <= shape[axis];
    if indices.ndim() != shape.len() || !(0..shape.len()).all(inside) {
        return Err(Unmade::Misfit);
    }
    call.allowance.room(indices.shape())?;
    let mut places = vec![];
    for (at, &index) in indices.indexed_iter() {
        let mut flat = 0;
        for (axis, &extent) in shape.iter().enumerate() {
            flat = flat * extent
                + if axis == along {
                    place(index, extent, call.is_settled(1))?
                } else {
                    at[axis]
                };
        }
        places.push(Some(flat));
    }
    let flat = reshaped(call.value(0)?, &[shape.iter().product()])?;
    Ok(vec![reshaped(
        &picked(call, &flat, 0, &places)?,
        indices.shape(),
    )?])
}

pub(super) fn expand(call: &Call) -> Made {
    let wanted = call.ints(1)?.ok_or(Unmade::Uncovered)?;
    let wanted: Vec<usize> = wanted
        .into_iter()
        .map(|extent| usize::try_from(extent).map_err(|_| Unmade::Uncovered))
        .collect::<Result<_, _>>()?;
    let shape = broadcast(call.shape(0)?, &wanted).ok_or(Unmade::Misfit)?;
    call.allowance.room(&shape)?;
    Ok(vec![expanded(call.value(0)?, &shape)?])
}

/// Repeated along axes of extent 1.
///
/// # Errors
/// [`Unmade::Uncovered`] where that does not lead to this shape, or its own is not known.
pub fn expanded(value: &FieldValue, shape: &[usize]) -> Result<FieldValue, Unmade> {
    Ok(either!(
        value,
        array => array.broadcast(shape).ok_or(Unmade::Uncovered)?.as_standard_layout().into_owned(),
        else return Err(Unmade::Uncovered)
    ))
}

pub(super) fn tile(call: &Call) -> Made {
    let repeats = call.ints(1)?.ok_or(Unmade::Uncovered)?;
    let mut value = call.value(0)?.clone();
    if repeats.len() != call.shape(0)?.len() {
        return Err(Unmade::Uncovered);
    }
    for (axis, &times) in repeats.iter().enumerate() {
        let mut shape = value.shape().ok_or(Unmade::Uncovered)?.to_vec();
        let (extent, times) = (
            shape[axis],
            usize::try_from(times).map_err(|_| Unmade::Uncovered)?,
        );
        shape[axis] = extent.checked_mul(times).ok_or(Unmade::Beyond)?;
        call.allowance.room(&shape)?;
        let places: Vec<Option<usize>> =
            (0..shape[axis]).map(|place| Some(place % extent)).collect();
        value = picked(call, &value, axis, &places)?;
    }
    Ok(vec![value])
}

/// Elements of the field beyond this are no numbers of times.
const MOST_TIMES: u32 = 1 << 16;

/// The first operator set in which a Resize says where its places lie.
const PLACED: i64 = 11;

/// A Resize, or an Upsample, to the nearest place, by whole factors or to sizes.
pub(super) fn resize(call: &Call) -> Made {
    let is_upsample = call.op() == "Upsample";
    let is_nearest = call.text("mode", "nearest")? == "nearest"
        && (is_upsample || call.opset >= PLACED)
        && call.text("keep_aspect_ratio_policy", "stretch")? == "stretch"
        && !call.flag("antialias", false)?;
    if !is_nearest {
        return Err(Unmade::Uncovered);
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
        let mut shape = value.shape().ok_or(Unmade::Uncovered)?.to_vec();
        let from = std::mem::replace(&mut shape[axis], to);
        call.allowance.room(&shape)?;
        let place =
            |place: usize| nearest(place, (from, to), scale, coordinates, rounding).map(Some);
        let places: Option<Vec<Option<usize>>> = (0..to).map(place).collect();
        value = picked(call, &value, axis, &places.ok_or(Unmade::Uncovered)?)?;
    }
    Ok(vec![value])
}

/// An axis, and its extents before and after.
type ResizedAxis = (usize, (i64, i64));

/// The extent of each axis after a Resize, and its scale as a fraction.
fn resized_to(call: &Call) -> Result<Vec<ResizedAxis>, Unmade> {
    let from = call.shape(0)?.to_vec();
    let named = match call.attr_ints("axes")? {
        Some(list) => axes(&list, from.len())?,
        None => (0..from.len()).collect(),
    };
    let mut made: Vec<(usize, (i64, i64))> = from.iter().map(|&extent| (extent, (1, 1))).collect();
    let factors = call.optional_field(factors_at(call.op(), call.opset))?;
    match (call.ints(3)?, factors) {
        (Some(sizes), _) if sizes.len() == named.len() => {
            for (&axis, &size) in named.iter().zip(&sizes) {
                let to = usize::try_from(size)
                    .ok()
                    .filter(|&to| to > 0 && from[axis] > 0);
                made[axis] = (to.ok_or(Unmade::Uncovered)?, (size, from[axis] as i64));
            }
        }
        // The image of a number of times is that number.
        (None, Some(factors)) if factors.len() == named.len() => {
            for (&axis, &times) in named.iter().zip(slice(factors)) {
                if !(1..=MOST_TIMES).contains(&times) {
                    return Err(Unmade::Uncovered);
                }
                let to = from[axis]
                    .checked_mul(times as usize)
                    .ok_or(Unmade::Beyond)?;
                made[axis] = (to, (times.into(), 1));
            }
        }
        _ => return Err(Unmade::Uncovered),
    }
    Ok(made)
}

/// The place that is nearest to one behind a Resize, by the definition of the operator; `None` for other attributes.
fn nearest(
    place: usize,
    (from, to): (usize, usize),
    (scale, part): (i64, i64),
    coordinates: &str,
    rounding: &str,
) -> Option<usize> {
    let place = i64::try_from(place).ok()?;
    let centre = place.checked_mul(2)?.checked_add(1)?.checked_mul(part)?;
    // The coordinate among the places before, as a fraction.
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

/// The border of an axis: one number, or places of the inside. One of fewer than no places cuts.
pub(super) fn pad(call: &Call) -> Made {
    let mode = call.text("mode", "constant")?;
    let rank = call.shape(0)?.len();
    let pads = call.list("pads")?.ok_or(Unmade::Uncovered)?;
    let fill = match input_at("Pad", "value", call.opset) {
        Some(slot) => call.optional(slot).cloned(),
        None => Some(FieldValue::field(ArrayD::from_elem(
            IxDyn(&[]),
            call.float("value", 0.0)?,
        ))),
    };
    let named = match input_at("Pad", "axes", call.opset) {
        Some(slot) => call.ints(slot)?,
        None => None,
    };
    let named = named.unwrap_or_else(|| (0..rank as i64).collect());
    if pads.len() != 2 * named.len() {
        return Err(Unmade::Uncovered);
    }
    let mut value = call.value(0)?.clone();
    for (place, along) in axes(&named, rank)?.into_iter().enumerate() {
        let (before, after) = (pads[place], pads[place + named.len()]);
        let mut shape = value.shape().ok_or(Unmade::Uncovered)?.to_vec();
        let extent = shape[along];
        let length = (extent as i64)
            .checked_add(before)
            .and_then(|length| length.checked_add(after));
        let length =
            usize::try_from(length.ok_or(Unmade::Beyond)?).map_err(|_| Unmade::Uncovered)?;
        shape[along] = length;
        call.allowance.room(&shape)?;
        let last = extent as i64 - 1;
        if mode != "constant"
            && (last < 0 || (mode == "reflect" && (before > last || after > last)))
        {
            return Err(Unmade::Misfit);
        }
        let from = |to: usize| {
            let from = to as i64 - before;
            let from = match mode {
                "edge" => from.clamp(0, last),
                "wrap" => from.rem_euclid(last + 1),
                "reflect" if from.abs() > last => 2 * last - from.abs(),
                "reflect" => from.abs(),
                _ => from,
            };
            usize::try_from(from).ok().filter(|&from| from < extent)
        };
        let places: Vec<Option<usize>> = (0..length).map(from).collect();
        if !["constant", "edge", "reflect", "wrap"].contains(&mode) {
            return Err(Unmade::Uncovered);
        }
        value = match (&value, &fill) {
            (FieldValue::Field(array), None) => FieldValue::field(pick(array, along, &places, 0)),
            (FieldValue::Field(array), Some(FieldValue::Field(fill))) => FieldValue::field(pick(
                array,
                along,
                &places,
                *fill.first().ok_or(Unmade::Uncovered)?,
            )),
            (FieldValue::Int(array), None) => FieldValue::int(pick(array, along, &places, 0)),
            (FieldValue::Int(array), Some(FieldValue::Int(fill))) => FieldValue::int(pick(
                array,
                along,
                &places,
                *fill.first().ok_or(Unmade::Uncovered)?,
            )),
            _ => return Err(Unmade::Uncovered),
        };
    }
    Ok(vec![value])
}

/// DepthToSpace and SpaceToDepth.
pub(super) fn depth(call: &Call) -> Made {
    let &[batch, channels, height, width] = call.shape(0)? else {
        return Err(Unmade::Uncovered);
    };
    let block = call.count("blocksize", 0)?;
    let divide = |extent: usize| {
        if block > 0 && extent.is_multiple_of(block) {
            Ok(extent / block)
        } else {
            Err(Unmade::Uncovered)
        }
    };
    let (split, perm, shape): ([usize; 6], _, [usize; 4]) =
        match (call.op(), call.text("mode", "DCR")?) {
            ("SpaceToDepth", "DCR") => {
                let (h, w) = (divide(height)?, divide(width)?);
                let deep = channels * block * block;
                (
                    [batch, channels, h, block, w, block],
                    [0, 3, 5, 1, 2, 4],
                    [batch, deep, h, w],
                )
            }
            ("DepthToSpace", mode) => {
                let deep = divide(divide(channels)?)?;
                let wide = [batch, deep, height * block, width * block];
                match mode {
                    "DCR" => (
                        [batch, block, block, deep, height, width],
                        [0, 3, 4, 1, 5, 2],
                        wide,
                    ),
                    "CRD" => (
                        [batch, deep, block, block, height, width],
                        [0, 1, 4, 2, 5, 3],
                        wide,
                    ),
                    _ => return Err(Unmade::Uncovered),
                }
            }
            _ => return Err(Unmade::Uncovered),
        };
    call.allowance.room(&shape)?;
    let apart = reshaped(call.value(0)?, &split)?;
    let moved =
        either!(&apart, array => transposed(array, &perm), else return Err(Unmade::Uncovered));
    Ok(vec![reshaped(&moved, &shape)?])
}

/// Where, by truth values that are known; by others `c` it is `c·a + (1 − c)·b`, which is one or the other where `c` is 1 or 0.
pub(super) fn choose(call: &Call) -> Made {
    if let (FieldValue::Varying(condition), FieldValue::Field(one), FieldValue::Field(other)) =
        (call.value(0)?, call.value(1)?, call.value(2)?)
    {
        let shape = broadcast(one.shape(), other.shape())
            .and_then(|shape| broadcast(condition.shape(), &shape))
            .ok_or(Unmade::Misfit)?;
        call.allowance.room(&shape)?;
        let apart = zip(one, other, field::sub)
            .ok_or(Unmade::Misfit)?
            .into_shared();
        let part = zip(condition, &apart, field::mul)
            .ok_or(Unmade::Misfit)?
            .into_shared();
        return Ok(vec![FieldValue::field(
            zip(&part, other, field::add).ok_or(Unmade::Misfit)?,
        )]);
    }
    // An unknown condition is decided by the parity of its image.
    let condition = call.indices(0)?;
    let condition = &match call.value(0)? {
        FieldValue::Varying(_) => condition.mapv(|number| number % 2).into_shared(),
        _ => condition,
    };
    let shape = broadcast(call.shape(1)?, call.shape(2)?)
        .and_then(|shape| broadcast(condition.shape(), &shape));
    let shape = shape.ok_or(Unmade::Misfit)?;
    call.allowance.room(&shape)?;
    fn chosen<T: Copy>(
        condition: &ArcArray<i64, IxDyn>,
        [one, other]: [&ArcArray<T, IxDyn>; 2],
        shape: &[usize],
    ) -> Option<ArrayD<T>> {
        let condition = condition.broadcast(shape)?;
        let (one, other) = (one.broadcast(shape)?, other.broadcast(shape)?);
        let choose =
            |&condition: &i64, &one: &T, &other: &T| if condition != 0 { one } else { other };
        Some(
            Zip::from(&condition)
                .and(&one)
                .and(&other)
                .map_collect(choose),
        )
    }
    let made = match (call.value(1)?, call.value(2)?) {
        (FieldValue::Field(one), FieldValue::Field(other)) => {
            chosen(condition, [one, other], &shape).map(FieldValue::field)
        }
        (FieldValue::Int(one), FieldValue::Int(other)) => {
            chosen(condition, [one, other], &shape).map(FieldValue::int)
        }
        (FieldValue::Varying(one), FieldValue::Varying(other)) => {
            chosen(condition, [one, other], &shape).map(FieldValue::varying)
        }
        _ => None,
    };
    Ok(vec![made.ok_or(Unmade::Uncovered)?])
}

pub(super) fn constant_of_shape(call: &Call) -> Made {
    let extents = call.ints(0)?.ok_or(Unmade::Uncovered)?;
    let shape: Vec<usize> = extents
        .into_iter()
        .map(|extent| usize::try_from(extent).map_err(|_| Unmade::Uncovered))
        .collect::<Result<_, _>>()?;
    call.allowance.room(&shape)?;
    let fill = match call.node.attr_t("value").map_err(|_| Unmade::Uncovered)? {
        Some(tensor) => of_tensor(tensor, &Externals::none(), 0),
        None => FieldValue::field(ArrayD::zeros(IxDyn(&[1]))),
    };
    if fill.len() != 1 {
        return Err(Unmade::Uncovered);
    }
    Ok(vec![expanded(&reshaped(&fill, &[])?, &shape)?])
}

/// Trilu.
pub(super) fn triangle(call: &Call) -> Made {
    let shape = call.shape(0)?;
    let upper = call.flag("upper", true)?;
    let k = call
        .ints(1)?
        .map_or(Some(0), |k| k.first().copied())
        .ok_or(Unmade::Uncovered)?;
    let &[.., rows, columns] = shape else {
        return Err(Unmade::Uncovered);
    };
    call.allowance.room(shape)?;
    let stays = |flat: usize| {
        let (row, column) = ((flat / columns % rows) as i64, (flat % columns) as i64);
        let above = column.saturating_sub(row);
        if upper { above >= k } else { above <= k }
    };
    let mask: Vec<bool> = (0..rows * columns).map(stays).collect();
    fn masked<T: Copy + Default>(array: &ArcArray<T, IxDyn>, mask: &[bool]) -> ArrayD<T> {
        let elements = slice(array).iter().zip(mask.iter().cycle());
        let elements =
            elements.map(|(&element, &stays)| if stays { element } else { T::default() });
        ArrayD::from_shape_vec(array.shape(), elements.collect()).expect("as many elements")
    }
    let made = match call.value(0)? {
        FieldValue::Field(elements) => FieldValue::field(masked(elements, &mask)),
        FieldValue::Int(integers) => FieldValue::int(masked(integers, &mask)),
        _ => return Err(Unmade::Uncovered),
    };
    Ok(vec![made])
}
