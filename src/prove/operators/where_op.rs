//! Where, and Trilu.

use ndarray::{ArcArray, ArrayD, IxDyn, Zip};

use super::broadcast::combine;
use super::{Call, NotEvaluated, OpResult};
use crate::prove::field::Arithmetic;
use crate::prove::field_value::{Elements, FieldValue, Integers, slice};
use crate::recipe::broadcast;

/// Where. A known condition selects elements. An unknown condition `c` gives `c·a + (1 − c)·b`,
/// which equals `a` if `c` is 1, and `b` if `c` is 0.
pub(super) fn choose(call: &Call) -> OpResult {
    if let (FieldValue::Varying(condition), FieldValue::Field(one), FieldValue::Field(other)) =
        (call.value(0)?, call.value(1)?, call.value(2)?)
    {
        let shape = broadcast(one.shape(), other.shape())
            .and_then(|shape| broadcast(condition.shape(), &shape))
            .ok_or(NotEvaluated::Misfit)?;
        call.allowance.room(&shape)?;
        let mixed = mixed(condition, one, other).ok_or(NotEvaluated::Misfit)?;
        return Ok(vec![FieldValue::field(mixed)]);
    }
    // Integers cannot be mixed, so the parity of the image decides an unknown condition.
    let condition = call.indices(0)?;
    let condition = &match call.value(0)? {
        FieldValue::Varying(_) => condition.mapv(|number| number % 2).into_shared(),
        _ => condition,
    };
    let shape = broadcast(call.shape(1)?, call.shape(2)?)
        .and_then(|shape| broadcast(condition.shape(), &shape));
    let shape = shape.ok_or(NotEvaluated::Misfit)?;
    call.allowance.room(&shape)?;
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
    Ok(vec![made.ok_or(NotEvaluated::Uncovered)?])
}

/// Computes `c·a + (1 − c)·b` for the condition `c` and the operands `a` and `b`. `None` if the
/// shapes do not broadcast.
fn mixed(condition: &Elements, one: &Elements, other: &Elements) -> Option<ArrayD<u32>> {
    let apart = combine(Arithmetic::Sub, one, other)?.into_shared();
    let part = combine(Arithmetic::Mul, condition, &apart)?.into_shared();
    combine(Arithmetic::Add, &part, other)
}

/// The elements of `one` where the condition is not 0, and the elements of `other` elsewhere.
/// `None` if one of the arrays does not broadcast to `shape`.
fn chosen<T: Copy>(
    condition: &Integers,
    [one, other]: [&ArcArray<T, IxDyn>; 2],
    shape: &[usize],
) -> Option<ArrayD<T>> {
    let condition = condition.broadcast(shape)?;
    let (one, other) = (one.broadcast(shape)?, other.broadcast(shape)?);
    let pairs = Zip::from(&condition).and(&one).and(&other);
    Some(pairs.map_collect(|&holds, &one, &other| if holds != 0 { one } else { other }))
}

/// Trilu.
pub(super) fn triangle(call: &Call) -> OpResult {
    let shape = call.shape(0)?;
    let upper = call.flag("upper", true)?;
    let k = call
        .ints(1)?
        .map_or(Some(0), |k| k.first().copied())
        .ok_or(NotEvaluated::Uncovered)?;
    let &[.., rows, columns] = shape else {
        return Err(NotEvaluated::Uncovered);
    };
    call.allowance.room(shape)?;
    let mut mask = vec![];
    for row in 0..rows as i64 {
        for column in 0..columns as i64 {
            let above = column.saturating_sub(row);
            mask.push(if upper { above >= k } else { above <= k });
        }
    }
    let made = match call.value(0)? {
        FieldValue::Field(elements) => FieldValue::field(masked(elements, &mask)),
        FieldValue::Int(integers) => FieldValue::int(masked(integers, &mask)),
        _ => return Err(NotEvaluated::Uncovered),
    };
    Ok(vec![made])
}

/// Keeps the elements where a mask over the last two axes is true, and sets all others to 0.
fn masked<T: Copy + Default>(array: &ArcArray<T, IxDyn>, mask: &[bool]) -> ArrayD<T> {
    let elements = slice(array).iter().zip(mask.iter().cycle());
    let elements = elements.map(|(&element, &stays)| if stays { element } else { T::default() });
    ArrayD::from_shape_vec(array.shape(), elements.collect()).expect("as many elements")
}
