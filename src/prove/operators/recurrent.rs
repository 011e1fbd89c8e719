//! LSTM, GRU and RNN, and Attention of `com.microsoft`, as uninterpreted functions of interpreted
//! sums.
//!
//! A recurrent operator uses X, its weight W and the first half `Wb` of its biases only in
//! `X·Wᵀ + Wb`. Attention uses X, W and its bias only in `X·W + b`.

use ndarray::ArrayD;

use super::movement::transposed;
use super::products::product;
use super::{Call, NotEvaluated, combine, field};
use crate::prove::field::Arithmetic;
use crate::prove::field_value::{FieldValue, row_major, slice};
use crate::prove::matrices::{Extents, multiply};

/// The inputs of a recurrent operator in which the sums `X·Wᵀ + Wb` replace X, and the second half
/// of the biases replaces all biases. W is removed, because the sums contain it.
///
/// # Errors
/// If an input is unknown or does not fit, or if the sums exceed the limits.
pub(crate) fn of_sums(call: &Call) -> Result<Vec<Option<FieldValue>>, NotEvaluated> {
    let (x, weight) = (call.field(0)?, call.field(1)?);
    let (&[first, second, channels], &[directions, gates, inner]) = (x.shape(), weight.shape())
    else {
        return Err(NotEvaluated::Misfit);
    };
    if inner != channels {
        return Err(NotEvaluated::Misfit);
    }
    let (rows, columns) = (first * second, directions * gates);
    call.allowance.room(&[rows, columns])?;
    call.allowance.products(&[rows, columns, inner])?;
    let matrix = weight
        .clone()
        .into_shape_with_order(vec![columns, inner])
        .map_err(|_| NotEvaluated::Misfit)?;
    let turned = row_major(transposed(&matrix, &[1, 0]));
    let mut sums = multiply(
        slice(x),
        slice(&turned),
        &[(0, 0)],
        Extents {
            rows,
            inner,
            columns,
        },
    );
    let mut of_state = vec![0; columns];
    if let Some(bias) = call.optional_field(3)? {
        if bias.shape() != [directions, 2 * gates] {
            return Err(NotEvaluated::Misfit);
        }
        let halves = slice(bias).chunks(gates.max(1));
        let of_input: Vec<u32> = halves.clone().step_by(2).flatten().copied().collect();
        of_state = halves.skip(1).step_by(2).flatten().copied().collect();
        for row in sums.chunks_mut(columns.max(1)) {
            row.iter_mut()
                .zip(&of_input)
                .for_each(|(sum, &bias)| *sum = field::add(*sum, bias));
        }
    }
    let mut inputs = call.inputs.clone();
    // An initial state of zeros counts as missing, because both mean the same.
    for state in inputs.iter_mut().skip(5).take(2) {
        state.take_if(
            |state| matches!(state, FieldValue::Field(zeros) if zeros.iter().all(|&zero| zero == 0)),
        );
    }
    while inputs.last().is_some_and(Option::is_none) {
        inputs.pop();
    }
    inputs.resize(inputs.len().max(4), None);
    inputs[0] = Some(shaped(&[first, second, columns], sums)?);
    inputs[1] = None;
    inputs[3] = Some(shaped(&[directions, gates], of_state)?);
    Ok(inputs)
}

fn shaped(shape: &[usize], elements: Vec<u32>) -> Result<FieldValue, NotEvaluated> {
    let elements = ArrayD::from_shape_vec(shape, elements).map_err(|_| NotEvaluated::Misfit)?;
    Ok(FieldValue::field(elements))
}

/// The inputs of an Attention in which the projection `X·W + b` replaces X. The weight and the bias
/// are removed, because the projection contains them.
///
/// # Errors
/// The errors of [`product`], or if the bias does not fit.
pub(crate) fn of_projection(call: &Call) -> Result<Vec<Option<FieldValue>>, NotEvaluated> {
    let mut sums = row_major(product(call.field(0)?, call.field(1)?, call.allowance)?);
    if let Some(bias) = call.optional_field(2)? {
        sums = row_major(combine(Arithmetic::Add, &sums, bias).ok_or(NotEvaluated::Misfit)?);
    }
    let mut inputs = call.inputs.clone();
    inputs.resize(inputs.len().max(3), None);
    inputs[..3].clone_from_slice(&[Some(FieldValue::Field(sums)), None, None]);
    Ok(inputs)
}
