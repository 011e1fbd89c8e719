//! Element-wise sums, products, quotients, roots and powers.

use ndarray::ArrayD;

use super::broadcast::{combine, zip};
use super::{Call, NotEvaluated, OpResult};
use crate::prove::field::{self, Arithmetic};
use crate::prove::field_value::{Elements, FieldValue, slice};
use crate::recipe::broadcast;

/// The exponents for which a power is computed by multiplication.
const POWERS: std::ops::RangeInclusive<i64> = -8..=8;

/// Counts the elements of the broadcast result of two operands against the limits.
pub(super) fn room(call: &Call) -> Result<(), NotEvaluated> {
    let shape = broadcast(call.shape(0)?, call.shape(1)?).ok_or(NotEvaluated::Misfit)?;
    call.allowance.room(&shape)
}

fn two(call: &Call, field: Arithmetic, int: fn(i64, i64) -> Option<i64>) -> OpResult {
    room(call)?;
    let made = match (call.value(0)?, call.value(1)?) {
        (FieldValue::Field(a), FieldValue::Field(b)) => {
            FieldValue::field(combine(field, a, b).ok_or(NotEvaluated::Uncovered)?)
        }
        (FieldValue::Int(a), FieldValue::Int(b)) => FieldValue::int(exact(zip(a, b, int))?),
        _ => return Err(NotEvaluated::Uncovered),
    };
    Ok(vec![made])
}

/// Unwraps the integers of a result, where `None` is an undefined element.
///
/// # Errors
/// If there is no result, or if an element is undefined, for example after an overflow.
pub(super) fn exact(integers: Option<ArrayD<Option<i64>>>) -> Result<ArrayD<i64>, NotEvaluated> {
    let integers = integers
        .filter(|integers| integers.iter().all(Option::is_some))
        .ok_or(NotEvaluated::Uncovered)?;
    Ok(integers.mapv(Option::unwrap_or_default))
}

pub(super) fn add(call: &Call) -> OpResult {
    two(call, Arithmetic::Add, i64::checked_add)
}

pub(super) fn sub(call: &Call) -> OpResult {
    two(call, Arithmetic::Sub, i64::checked_sub)
}

pub(super) fn mul(call: &Call) -> OpResult {
    two(call, Arithmetic::Mul, i64::checked_mul)
}

/// Div. A quotient of integers is rounded towards 0, and computed only if no operand is negative,
/// because engines disagree on negative ones.
pub(super) fn div(call: &Call) -> OpResult {
    match (call.value(0)?, call.value(1)?) {
        (FieldValue::Field(a), FieldValue::Field(b)) => {
            room(call)?;
            let quotients = combine(Arithmetic::Mul, a, &inverses(b)?);
            Ok(vec![FieldValue::field(
                quotients.ok_or(NotEvaluated::Uncovered)?,
            )])
        }
        _ => two(call, Arithmetic::Mul, |a, b| {
            (a >= 0 && b > 0).then(|| a / b)
        }),
    }
}

/// The inverse `1/x` of each element `x`.
///
/// # Errors
/// [`NotEvaluated::Zero`] if an element is 0.
pub(crate) fn inverses(elements: &Elements) -> Result<Elements, NotEvaluated> {
    let mut inverses = slice(elements).to_vec();
    field::invert(&mut inverses).ok_or(NotEvaluated::Zero)?;
    let inverses =
        ArrayD::from_shape_vec(elements.shape(), inverses).map_err(|_| NotEvaluated::Uncovered)?;
    Ok(inverses.into_shared())
}

pub(super) fn neg(call: &Call) -> OpResult {
    call.allowance.room(call.shape(0)?)?;
    let made = match call.value(0)? {
        FieldValue::Field(elements) => FieldValue::field(elements.mapv(field::neg)),
        FieldValue::Int(integers) => FieldValue::int(exact(Some(integers.mapv(i64::checked_neg)))?),
        _ => return Err(NotEvaluated::Uncovered),
    };
    Ok(vec![made])
}

/// Sum and Mean.
pub(super) fn several(call: &Call) -> OpResult {
    let mut sum = call.field(0)?.clone();
    for slot in 1..call.inputs.len() {
        call.allowance
            .room(&broadcast(sum.shape(), call.shape(slot)?).ok_or(NotEvaluated::Misfit)?)?;
        sum = combine(Arithmetic::Add, &sum, call.field(slot)?)
            .ok_or(NotEvaluated::Uncovered)?
            .into_shared();
    }
    if call.op() == "Mean" {
        let part =
            field::inverse(field::of_int(call.inputs.len() as i64)).ok_or(NotEvaluated::Zero)?;
        sum = sum.mapv(|element| field::mul(element, part)).into_shared();
    }
    Ok(vec![FieldValue::Field(sum)])
}

pub(super) fn reciprocal(call: &Call) -> OpResult {
    call.allowance.room(call.shape(0)?)?;
    Ok(vec![FieldValue::Field(inverses(call.field(0)?)?)])
}

pub(super) fn sqrt(call: &Call) -> OpResult {
    call.allowance.room(call.shape(0)?)?;
    Ok(vec![FieldValue::Field(call.roots.of(call.field(0)?))])
}

/// A power with one exponent for all elements. The exponent is recognized by its image: other
/// exponents and random elements are very unlikely to have the image of a small integer or of a
/// half.
pub(super) fn pow(call: &Call) -> OpResult {
    let base = call.field(0)?;
    let exponents = call.value(1)?.images().ok_or(NotEvaluated::Uncovered)?;
    let first = *exponents.iter().next().ok_or(NotEvaluated::Uncovered)?;
    let widened =
        broadcast(base.shape(), exponents.shape()).is_none_or(|shape| shape != base.shape());
    if widened || exponents.iter().any(|&other| other != first) {
        return Err(NotEvaluated::Uncovered);
    }
    call.allowance.room(base.shape())?;
    let half = field::inverse(2).ok_or(NotEvaluated::Zero)?;
    let made = match POWERS
        .into_iter()
        .find(|&power| field::of_int(power) == first)
    {
        Some(power) => {
            let raised = base
                .mapv(|element| field::pow(element, power.unsigned_abs()))
                .into_shared();
            if power < 0 {
                inverses(&raised)?
            } else {
                raised
            }
        }
        None if first == half => call.roots.of(base),
        None if first == field::neg(half) => inverses(&call.roots.of(base))?,
        None => return Err(NotEvaluated::Uncovered),
    };
    Ok(vec![FieldValue::Field(made)])
}
