//! Operators that move elements independently of their values.

use ndarray::{ArcArray, ArrayD, Axis, IxDyn};

use super::{Call, NotEvaluated, OpResult, axes};
use crate::ir::axes::permutation;
use crate::onnx::external_data::Externals;
use crate::onnx::operator::input_at;
use crate::prove::field_value::{FieldValue, either, of_tensor, slice};
use crate::recipe::broadcast;

/// The elements in another shape.
///
/// # Errors
/// [`NotEvaluated::Misfit`] if the shape has another number of elements, and
/// [`NotEvaluated::Uncovered`] if the value's shape is unknown.
pub(crate) fn reshaped(value: &FieldValue, shape: &[usize]) -> Result<FieldValue, NotEvaluated> {
    let fits = value
        .shape()
        .is_some_and(|from| from.iter().product::<usize>() == shape.iter().product::<usize>());
    if !fits {
        return Err(if value.shape().is_some() {
            NotEvaluated::Misfit
        } else {
            NotEvaluated::Uncovered
        });
    }
    let shaped = match value.clone() {
        FieldValue::Field(elements) => FieldValue::Field(
            elements
                .into_shape_with_order(shape)
                .expect("as many elements"),
        ),
        FieldValue::Masked(elements) => FieldValue::Masked(
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

/// The elements at these places along an axis, in this order. A place that is `None` gets `fill`.
pub(crate) fn pick<T: Copy>(
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

/// Concatenates arrays along an axis. `None` if their other extents differ.
pub(crate) fn concatenated<T: Copy>(
    arrays: &[&ArcArray<T, IxDyn>],
    axis: usize,
) -> Option<ArrayD<T>> {
    let views: Vec<_> = arrays.iter().map(|array| array.view()).collect();
    ndarray::concatenate(Axis(axis), &views).ok()
}

/// The array with its axes in the order `perm`.
pub(crate) fn transposed<T: Copy>(array: &ArcArray<T, IxDyn>, perm: &[usize]) -> ArrayD<T> {
    array
        .view()
        .permuted_axes(perm)
        .as_standard_layout()
        .into_owned()
}

/// The elements of a value at these places along an axis. A place that is `None` gets 0.
pub(super) fn picked(
    call: &Call,
    value: &FieldValue,
    axis: usize,
    places: &[Option<usize>],
) -> Result<FieldValue, NotEvaluated> {
    let mut shape = value.shape().ok_or(NotEvaluated::Uncovered)?.to_vec();
    shape[axis] = places.len();
    call.allowance.room(&shape)?;
    Ok(
        either!(value, array => pick(array, axis, places, 0), else return Err(NotEvaluated::Uncovered)),
    )
}

pub(super) fn identity(call: &Call) -> OpResult {
    Ok(vec![call.value(0)?.clone()])
}

/// A Dropout outside of training mode, which returns its input and a mask that is true everywhere.
/// Refused in training mode.
pub(super) fn dropout(call: &Call) -> OpResult {
    let trains = match call.optional(2) {
        Some(_) => call
            .ints(2)?
            .is_none_or(|mode| mode.iter().any(|&mode| mode != 0)),
        None => call.opset < 7 && !call.flag("is_test", false)?,
    };
    if trains {
        return Err(NotEvaluated::Uncovered);
    }
    let mask = ArrayD::from_elem(call.shape(0)?, 1);
    Ok(vec![call.value(0)?.clone(), FieldValue::int(mask)])
}

pub(super) fn reshape(call: &Call) -> OpResult {
    let (from, wanted) = (
        call.shape(0)?,
        call.ints(1)?.ok_or(NotEvaluated::Uncovered)?,
    );
    let keeps_zero = call.flag("allowzero", false)?;
    let mut shape = vec![];
    for (place, &extent) in wanted.iter().enumerate() {
        shape.push(match extent {
            -1 => 1,
            0 if !keeps_zero => *from.get(place).ok_or(NotEvaluated::Uncovered)?,
            extent => usize::try_from(extent).map_err(|_| NotEvaluated::Uncovered)?,
        });
    }
    if let Some(open) = wanted.iter().position(|&extent| extent == -1) {
        let (there, rest) = product(from)
            .zip(product(&shape))
            .ok_or(NotEvaluated::Uncovered)?;
        shape[open] = there.checked_div(rest).ok_or(NotEvaluated::Misfit)?;
    }
    call.allowance.room(&shape)?;
    Ok(vec![reshaped(call.value(0)?, &shape)?])
}

/// The number of elements. `None` if it overflows.
fn product(shape: &[usize]) -> Option<usize> {
    shape
        .iter()
        .try_fold(1_usize, |n, &extent| n.checked_mul(extent))
}

pub(super) fn flatten(call: &Call) -> OpResult {
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
        .ok_or(NotEvaluated::Uncovered)?;
    let flat = [&shape[..at], &shape[at..]].map(|part| part.iter().product());
    Ok(vec![reshaped(call.value(0)?, &flat)?])
}

/// Squeeze and Unsqueeze.
pub(super) fn squeeze(call: &Call) -> OpResult {
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
    let named = named.ok_or(NotEvaluated::Uncovered)?;
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
    let wide: Vec<usize> = extents
        .collect::<Option<_>>()
        .ok_or(NotEvaluated::Uncovered)?;
    Ok(vec![reshaped(call.value(0)?, &wide)?])
}

pub(super) fn transpose(call: &Call) -> OpResult {
    let shape = call.shape(0)?;
    let perm = permutation(call.attr_ints("perm")?.as_deref(), shape.len())
        .map_err(|_| NotEvaluated::Uncovered)?;
    call.allowance.room(shape)?;
    let value = call.value(0)?;
    Ok(vec![
        either!(value, array => transposed(array, &perm), else return Err(NotEvaluated::Uncovered)),
    ])
}

pub(super) fn slice_of(call: &Call) -> OpResult {
    let rank = call.shape(0)?.len();
    let starts = call.list("starts")?.ok_or(NotEvaluated::Uncovered)?;
    let ends = call.list("ends")?.ok_or(NotEvaluated::Uncovered)?;
    let named = call
        .list("axes")?
        .unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = match input_at("Slice", "steps", call.opset) {
        Some(slot) => call.ints(slot)?,
        None => None,
    };
    let steps = steps.unwrap_or_else(|| vec![1; starts.len()]);
    if [ends.len(), named.len(), steps.len()] != [starts.len(); 3] {
        return Err(NotEvaluated::Uncovered);
    }
    let mut value = call.value(0)?.clone();
    for (place, along) in axes(&named, rank)?.into_iter().enumerate() {
        let extent = value.shape().ok_or(NotEvaluated::Uncovered)?[along] as i64;
        let places = sliced(extent, starts[place], ends[place], steps[place])?;
        value = picked(call, &value, along, &places)?;
    }
    Ok(vec![value])
}

/// The places of an axis that a Slice selects.
fn sliced(
    extent: i64,
    start: i64,
    end: i64,
    step: i64,
) -> Result<Vec<Option<usize>>, NotEvaluated> {
    if step < 0 && start < -extent {
        // Refused: the specification selects the first place here, and its reference implementation
        // selects none.
        return Err(NotEvaluated::Uncovered);
    }
    let (low, high) = if step > 0 {
        (0, extent)
    } else {
        (-1, extent - 1)
    };
    let [start, end] = [start, end].map(|at| {
        let at = if at < 0 {
            at.saturating_add(extent)
        } else {
            at
        };
        at.clamp(low, high.max(low))
    });
    let size = usize::try_from(step.unsigned_abs()).map_err(|_| NotEvaluated::Uncovered)?;
    let places: Vec<i64> = match step {
        0 => return Err(NotEvaluated::Uncovered),
        1.. => (start..end).step_by(size).collect(),
        _ => (end + 1..=start).rev().step_by(size).collect(),
    };
    Ok(places.into_iter().map(|at| Some(at as usize)).collect())
}

pub(super) fn split(call: &Call) -> OpResult {
    let shape = call.shape(0)?;
    let along = call.axis(0, shape.len())?;
    let (whole, parts) = (shape[along], call.node.output.len());
    let lengths = match call.list("split")? {
        Some(lengths) => lengths
            .into_iter()
            .map(|n| usize::try_from(n).map_err(|_| NotEvaluated::Uncovered))
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
        return Err(NotEvaluated::Misfit);
    }
    let mut parts = vec![];
    let mut start = 0;
    for length in lengths {
        let places: Vec<Option<usize>> = (start..start + length).map(Some).collect();
        start += length;
        parts.push(picked(call, call.value(0)?, along, &places)?);
    }
    Ok(parts)
}

pub(super) fn concat(call: &Call) -> OpResult {
    let first = call.shape(0)?;
    let along = call.axis(0, first.len())?;
    let mut shape = first.to_vec();
    for slot in 1..call.inputs.len() {
        let other = call.shape(slot)?;
        if other.len() != shape.len() {
            return Err(NotEvaluated::Misfit);
        }
        for (axis, (one, &other)) in shape.iter_mut().zip(other).enumerate() {
            if axis == along {
                *one = one.saturating_add(other);
            } else if *one != other {
                return Err(NotEvaluated::Misfit);
            }
        }
    }
    call.allowance.room(&shape)?;
    let values: Vec<&FieldValue> = (0..call.inputs.len())
        .map(|slot| call.value(slot))
        .collect::<Result<_, _>>()?;
    Ok(vec![joined(&values, along)?])
}

/// Concatenates values along an axis. All must be floats or all integers.
fn joined(values: &[&FieldValue], along: usize) -> Result<FieldValue, NotEvaluated> {
    let fields: Option<Vec<_>> = values
        .iter()
        .map(|value| match value {
            FieldValue::Field(elements) => Some(elements),
            _ => None,
        })
        .collect();
    let integers: Option<Vec<_>> = values
        .iter()
        .map(|value| match value {
            FieldValue::Int(integers) => Some(integers),
            _ => None,
        })
        .collect();
    let joined = match (fields, integers) {
        (Some(fields), _) => concatenated(&fields, along).map(FieldValue::field),
        (_, Some(integers)) => concatenated(&integers, along).map(FieldValue::int),
        // If known integers are concatenated with unknown integers, all of them become unknown.
        // Negative integers are refused, because a negative index and its image select different
        // places.
        _ => {
            if !values.iter().all(|value| has_integer_images(value)) {
                return Err(NotEvaluated::Uncovered);
            }
            let parts: Vec<_> = values
                .iter()
                .map(|value| value.images())
                .collect::<Option<_>>()
                .ok_or(NotEvaluated::Uncovered)?;
            let parts: Vec<_> = parts.iter().collect();
            concatenated(&parts, along).map(FieldValue::varying)
        }
    };
    joined.ok_or(NotEvaluated::Uncovered)
}

/// Whether a value consists of integers that are equal if and only if their images are.
fn has_integer_images(value: &FieldValue) -> bool {
    match value {
        FieldValue::Int(integers) => integers.iter().all(|&number| number >= 0),
        FieldValue::Varying(_) => true,
        FieldValue::Field(_) | FieldValue::Masked(_) | FieldValue::Opaque(_) => false,
    }
}

pub(super) fn expand(call: &Call) -> OpResult {
    let wanted = call.ints(1)?.ok_or(NotEvaluated::Uncovered)?;
    let wanted: Vec<usize> = wanted
        .into_iter()
        .map(|extent| usize::try_from(extent).map_err(|_| NotEvaluated::Uncovered))
        .collect::<Result<_, _>>()?;
    let shape = broadcast(call.shape(0)?, &wanted).ok_or(NotEvaluated::Misfit)?;
    call.allowance.room(&shape)?;
    Ok(vec![expanded(call.value(0)?, &shape)?])
}

/// Repeats a value along axes of extent 1.
///
/// # Errors
/// [`NotEvaluated::Uncovered`] if the value does not broadcast to the shape, or if the value's
/// shape is unknown.
pub(crate) fn expanded(value: &FieldValue, shape: &[usize]) -> Result<FieldValue, NotEvaluated> {
    Ok(either!(
        value,
        array => array.broadcast(shape).ok_or(NotEvaluated::Uncovered)?.as_standard_layout().into_owned(),
        else return Err(NotEvaluated::Uncovered)
    ))
}

pub(super) fn tile(call: &Call) -> OpResult {
    let repeats = call.ints(1)?.ok_or(NotEvaluated::Uncovered)?;
    let mut value = call.value(0)?.clone();
    if repeats.len() != call.shape(0)?.len() {
        return Err(NotEvaluated::Uncovered);
    }
    for (axis, &times) in repeats.iter().enumerate() {
        let mut shape = value.shape().ok_or(NotEvaluated::Uncovered)?.to_vec();
        let (extent, times) = (
            shape[axis],
            usize::try_from(times).map_err(|_| NotEvaluated::Uncovered)?,
        );
        shape[axis] = extent.checked_mul(times).ok_or(NotEvaluated::Beyond)?;
        call.allowance.room(&shape)?;
        let places: Vec<Option<usize>> =
            (0..shape[axis]).map(|place| Some(place % extent)).collect();
        value = picked(call, &value, axis, &places)?;
    }
    Ok(vec![value])
}

/// DepthToSpace and SpaceToDepth.
pub(super) fn depth(call: &Call) -> OpResult {
    let &[batch, channels, height, width] = call.shape(0)? else {
        return Err(NotEvaluated::Uncovered);
    };
    let block = call.count("blocksize", 0)?;
    let (split, perm, shape): ([usize; 6], _, [usize; 4]) =
        match (call.op(), call.text("mode", "DCR")?) {
            ("SpaceToDepth", "DCR") => {
                let (h, w) = (divided(height, block)?, divided(width, block)?);
                let deep = channels * block * block;
                (
                    [batch, channels, h, block, w, block],
                    [0, 3, 5, 1, 2, 4],
                    [batch, deep, h, w],
                )
            }
            ("DepthToSpace", mode) => {
                let deep = divided(divided(channels, block)?, block)?;
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
                    _ => return Err(NotEvaluated::Uncovered),
                }
            }
            _ => return Err(NotEvaluated::Uncovered),
        };
    call.allowance.room(&shape)?;
    let apart = reshaped(call.value(0)?, &split)?;
    let moved = either!(&apart, array => transposed(array, &perm), else return Err(NotEvaluated::Uncovered));
    Ok(vec![reshaped(&moved, &shape)?])
}

/// An extent divided by the size of a block. Refused if the size does not divide the extent.
fn divided(extent: usize, block: usize) -> Result<usize, NotEvaluated> {
    if block > 0 && extent.is_multiple_of(block) {
        Ok(extent / block)
    } else {
        Err(NotEvaluated::Uncovered)
    }
}

pub(super) fn constant_of_shape(call: &Call) -> OpResult {
    let extents = call.ints(0)?.ok_or(NotEvaluated::Uncovered)?;
    let shape: Vec<usize> = extents
        .into_iter()
        .map(|extent| usize::try_from(extent).map_err(|_| NotEvaluated::Uncovered))
        .collect::<Result<_, _>>()?;
    call.allowance.room(&shape)?;
    let fill = match call
        .node
        .attr_t("value")
        .map_err(|_| NotEvaluated::Uncovered)?
    {
        Some(tensor) => of_tensor(tensor, &Externals::none(), 0),
        None => FieldValue::field(ArrayD::zeros(IxDyn(&[1]))),
    };
    if fill.len() != 1 {
        return Err(NotEvaluated::Uncovered);
    }
    Ok(vec![expanded(&reshaped(&fill, &[])?, &shape)?])
}
