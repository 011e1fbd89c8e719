//! Operators that select elements at places given by a tensor of integers.

use super::movement::{picked, reshaped};
use super::{Call, NotEvaluated, OpResult};
use crate::prove::field_value::{FieldValue, slice};

/// The place along an axis that an index selects.
///
/// An index that depends on inputs is a random integer here, which represents an index in range. So
/// the index selects the place `index` modulo `extent`. A settled index must be in range.
///
/// # Errors
/// [`NotEvaluated::Misfit`] for a settled index out of range, and [`NotEvaluated::Uncovered`] for
/// an axis without places.
pub(super) fn place(index: i64, extent: usize, is_settled: bool) -> Result<usize, NotEvaluated> {
    let extent = i64::try_from(extent)
        .ok()
        .filter(|&extent| extent > 0)
        .ok_or(NotEvaluated::Uncovered)?;
    if is_settled && !(-extent..extent).contains(&index) {
        return Err(NotEvaluated::Misfit);
    }
    Ok(index.rem_euclid(extent) as usize)
}

pub(super) fn gather(call: &Call) -> OpResult {
    let along = call.axis(0, call.shape(0)?.len())?;
    gathered(call, call.value(0)?, along)
}

/// Takes the parts of a table at the places along an axis that the second input lists.
pub(super) fn gathered(call: &Call, table: &FieldValue, along: usize) -> OpResult {
    let shape = table.shape().ok_or(NotEvaluated::Uncovered)?;
    let (mut shape, indices) = (shape.to_vec(), call.indices(1)?);
    let is_settled = call.is_settled(1);
    let places = slice(&indices)
        .iter()
        .map(|&index| place(index, shape[along], is_settled).map(Some));
    let taken = picked(call, table, along, &places.collect::<Result<Vec<_>, _>>()?)?;
    shape.splice(along..=along, indices.shape().iter().copied());
    Ok(vec![reshaped(&taken, &shape)?])
}

/// The row-major offset of the place that a tuple of indices selects. Each index belongs to the
/// axis with the extent at the same position in `extents`.
///
/// # Errors
/// The errors of [`place`].
pub(super) fn flat_place(
    tuple: &[i64],
    extents: &[usize],
    is_settled: bool,
) -> Result<usize, NotEvaluated> {
    let mut flat = 0;
    for (&index, &extent) in tuple.iter().zip(extents) {
        flat = flat * extent + place(index, extent, is_settled)?;
    }
    Ok(flat)
}

pub(super) fn gather_nd(call: &Call) -> OpResult {
    let (shape, indices) = (call.shape(0)?, call.indices(1)?);
    let batch = call.count("batch_dims", 0)?;
    let (&length, outer) = indices
        .shape()
        .split_last()
        .ok_or(NotEvaluated::Uncovered)?;
    let fits = batch <= outer.len() && length > 0 && batch + length <= shape.len();
    if !fits || outer[..batch] != shape[..batch] {
        return Err(NotEvaluated::Misfit);
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

pub(super) fn gather_elements(call: &Call) -> OpResult {
    let (shape, indices) = (call.shape(0)?, call.indices(1)?);
    let along = call.axis(0, shape.len())?;
    if !lies_inside(indices.shape(), shape, along) {
        return Err(NotEvaluated::Misfit);
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

/// Whether indices of shape `indices` fit a tensor of shape `shape`: the ranks are equal, and no
/// axis except `along` has more indices than places.
pub(super) fn lies_inside(indices: &[usize], shape: &[usize], along: usize) -> bool {
    let mut axes = indices.iter().zip(shape).enumerate();
    indices.len() == shape.len()
        && axes.all(|(axis, (taken, extent))| axis == along || taken <= extent)
}
