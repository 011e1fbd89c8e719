//! ScatterND and ScatterElements: write elements into a copy of a value or add them to it, one
//! after another.

use ndarray::ArrayD;

use super::gathers::{flat_place, lies_inside, place};
use super::{Call, NotEvaluated, OpResult};
use crate::prove::field;
use crate::prove::field_value::{Elements, FieldValue, slice};

pub(super) fn nd(call: &Call) -> OpResult {
    let (value, written, indices) = (call.field(0)?, call.field(2)?, call.indices(1)?);
    let (&length, outer) = indices
        .shape()
        .split_last()
        .ok_or(NotEvaluated::Uncovered)?;
    if length == 0 || length > value.ndim() {
        return Err(NotEvaluated::Misfit);
    }
    let (indexed, rest) = value.shape().split_at(length);
    if written.shape() != [outer, rest].concat() {
        return Err(NotEvaluated::Misfit);
    }
    let width = rest.iter().product::<usize>();
    let (mut made, put) = copied(call, value)?;
    for (tuple, row) in slice(&indices)
        .chunks(length)
        .zip(slice(written).chunks(width.max(1)))
    {
        let flat = flat_place(tuple, indexed, call.is_settled(1))?;
        made[flat * width..][..width]
            .iter_mut()
            .zip(row)
            .for_each(|(there, &new)| *there = put(*there, new));
    }
    image(value, made)
}

pub(super) fn elements(call: &Call) -> OpResult {
    let (value, written, indices) = (call.field(0)?, call.field(2)?, call.indices(1)?);
    let shape = value.shape();
    let along = call.axis(0, shape.len())?;
    if indices.shape() != written.shape() || !lies_inside(indices.shape(), shape, along) {
        return Err(NotEvaluated::Misfit);
    }
    let (mut made, put) = copied(call, value)?;
    for ((at, &index), &element) in indices.indexed_iter().zip(slice(written)) {
        let mut flat = 0;
        for (axis, &extent) in shape.iter().enumerate() {
            flat = flat * extent
                + if axis == along {
                    place(index, extent, call.is_settled(1))?
                } else {
                    at[axis]
                };
        }
        made[flat] = put(made[flat], element);
    }
    image(value, made)
}

/// Combines a stored element with an update.
type Put = fn(u32, u32) -> u32;

/// A copy of the elements of a value, and the function that combines an element with an update.
fn copied(call: &Call, value: &Elements) -> Result<(Vec<u32>, Put), NotEvaluated> {
    let put: Put = match call.text("reduction", "none")? {
        "none" => |_, new| new,
        "add" => field::add,
        _ => return Err(NotEvaluated::Uncovered),
    };
    call.allowance.room(value.shape())?;
    Ok((slice(value).to_vec(), put))
}

fn image(like: &Elements, made: Vec<u32>) -> OpResult {
    let made = ArrayD::from_shape_vec(like.shape(), made).map_err(|_| NotEvaluated::Uncovered)?;
    Ok(vec![FieldValue::field(made)])
}
