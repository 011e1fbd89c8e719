//! Uninterpreted functions that mix the elements along some axes of a value, and keep the places
//! along its other axes independent. So a selection along another axis may move before them.

use ndarray::ArrayD;

use super::movement::transposed;
use super::{Call, NotEvaluated, OpResult, axes, axis};
use crate::onnx::operator::softmax_axis;
use crate::prove::field_value::{Elements, FieldValue, row_major, slice};
use crate::prove::random::{Digest, Hash, Unknown};

/// The results of a function of each lane, which consists of the elements along the mixed axes. The
/// function has one result for each lane, or as many as the lane has elements.
///
/// # Errors
/// [`NotEvaluated::Uncovered`] if the axes or the shape of the results are unknown.
pub(crate) fn along_axes(call: &Call, function: Digest, shape: Option<&[usize]>) -> OpResult {
    let elements = call.field(0)?;
    let shape = shape.ok_or(NotEvaluated::Uncovered)?;
    call.allowance.room(shape)?;
    let mixed = mixed(call, elements.ndim())?;
    let mut order: Vec<usize> = (0..elements.ndim()).collect();
    order.retain(|axis| !mixed.contains(axis));
    order.extend(&mixed);
    let lanes = row_major(transposed(elements, &order));
    let length: usize = mixed.iter().map(|&axis| elements.shape()[axis]).product();
    let count = elements.len().checked_div(length).unwrap_or(0);
    let all: usize = shape.iter().product();
    let results = all.checked_div(count).ok_or(NotEvaluated::Uncovered)?;
    let made: Vec<u32> = slice(&lanes)
        .chunks(length)
        .flat_map(|lane| of_lane(function, lane, results))
        .collect();
    let made = if results == 1 {
        ArrayD::from_shape_vec(shape, made)
    } else if shape == elements.shape() {
        let behind: Vec<usize> = order.iter().map(|&axis| shape[axis]).collect();
        ArrayD::from_shape_vec(behind, made).map(|made| back(&row_major(made), &order))
    } else {
        return Err(NotEvaluated::Uncovered);
    };
    let made = made.map_err(|_| NotEvaluated::Uncovered)?;
    Ok(vec![FieldValue::field(made)])
}

/// The axes that an operator mixes, in ascending order.
fn mixed(call: &Call, rank: usize) -> Result<Vec<usize>, NotEvaluated> {
    match call.node.op_type() {
        "LpNormalization" => Ok(vec![call.axis(-1, rank)?]),
        "Hardmax" => {
            let (absent, alone) = softmax_axis(call.opset);
            let along = axis(call.attr("axis", absent)?, rank)?;
            let behind = if alone { along + 1 } else { rank };
            Ok((along..behind).collect())
        }
        "MeanVarianceNormalization" => {
            let named = call.attr_ints("axes")?.unwrap_or_else(|| vec![0, 2, 3]);
            let mut mixed = axes(&named, rank)?;
            mixed.sort_unstable();
            mixed.dedup();
            Ok(mixed)
        }
        _ => call.reduced(rank),
    }
}

fn of_lane(function: Digest, lane: &[u32], results: usize) -> impl Iterator<Item = u32> {
    let mut hash = Hash::new(0, "mixed axes");
    hash.digest(function);
    hash.all(lane, u32::to_le_bytes);
    let unknown = Unknown::new(hash.finish());
    (0..results as u64).map(move |place| unknown.value(place))
}

/// Reverses a transposition by `order`.
fn back(made: &Elements, order: &[usize]) -> ArrayD<u32> {
    let mut inverse = vec![0; order.len()];
    for (place, &axis) in order.iter().enumerate() {
        inverse[axis] = place;
    }
    transposed(made, &inverse)
}
