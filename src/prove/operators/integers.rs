//! Operators on known integers and booleans, and on extents.

use ndarray::{ArrayD, Dimension, IxDyn, arr0, arr1};

use super::arithmetic::exact;
use super::broadcast::zip;
use super::{Call, NotEvaluated, OpResult};
use crate::onnx::tensor::DataType;
use crate::prove::field;
use crate::prove::field_value::{FieldValue, slice};
use crate::recipe::broadcast;

/// A Cast. Integers become their images in the field if they are cast to floats, and stay if they
/// are cast to an integer type that can represent them.
pub(super) fn cast(call: &Call) -> OpResult {
    let value = call.value(0)?;
    let to = match (call.op(), call.optional(1)) {
        ("CastLike", Some(FieldValue::Field(_))) => DataType::Float,
        ("CastLike", _) => return Err(NotEvaluated::Uncovered),
        _ => call.node.cast_to().ok_or(NotEvaluated::Uncovered)?,
    };
    call.allowance.room(call.shape(0)?)?;
    let made = match value {
        FieldValue::Field(_) if to.is_float() => value.clone(),
        FieldValue::Int(_) | FieldValue::Varying(_) if to.is_float() => {
            FieldValue::Field(value.images().ok_or(NotEvaluated::Uncovered)?)
        }
        FieldValue::Int(integers) if to == DataType::Bool => {
            FieldValue::int(integers.mapv(|n| i64::from(n != 0)))
        }
        FieldValue::Int(integers) => {
            let (low, high) = range_of(to).ok_or(NotEvaluated::Uncovered)?;
            if integers.iter().any(|n| !(low..=high).contains(n)) {
                return Err(NotEvaluated::Uncovered);
            }
            value.clone()
        }
        // A cast to int64 does not change integers.
        FieldValue::Varying(_) if to == DataType::Int64 => value.clone(),
        _ => return Err(NotEvaluated::Uncovered),
    };
    Ok(vec![made])
}

/// Converts known integers to a type. Integers outside of its range wrap around.
pub(crate) fn wrapped(made: FieldValue, data_type: DataType) -> FieldValue {
    let Some((low, high)) = range_of(data_type).filter(|_| data_type.bits() < Some(64)) else {
        return made;
    };
    match made {
        FieldValue::Int(integers) if integers.iter().any(|n| !(low..=high).contains(n)) => {
            FieldValue::Int(
                integers
                    .mapv(|n| low + (n.wrapping_sub(low)).rem_euclid(high - low + 1))
                    .into_shared(),
            )
        }
        made => made,
    }
}

/// An Add or a Mul of int64 numbers, some of which are unknown: adds or multiplies the elements of
/// the field that represent the numbers.
pub(crate) fn of_unknown_integers(call: &Call) -> OpResult {
    let mut images = vec![];
    for slot in 0..2 {
        let value = call.value(slot)?;
        if matches!(value, FieldValue::Field(_)) {
            return Err(NotEvaluated::Uncovered);
        }
        images.push(value.images().ok_or(NotEvaluated::Uncovered)?);
    }
    let operation = match call.op() {
        "Add" => field::add,
        _ => field::mul,
    };
    let made = zip(&images[0], &images[1], operation).ok_or(NotEvaluated::Misfit)?;
    call.allowance.room(made.shape())?;
    Ok(vec![FieldValue::varying(made)])
}

fn range_of(to: DataType) -> Option<(i64, i64)> {
    Some(match to {
        DataType::Int64 => (i64::MIN, i64::MAX),
        DataType::Int32 => (i32::MIN.into(), i32::MAX.into()),
        DataType::Int16 => (i16::MIN.into(), i16::MAX.into()),
        DataType::Int8 => (i8::MIN.into(), i8::MAX.into()),
        DataType::Uint64 => (0, i64::MAX),
        DataType::Uint32 => (0, u32::MAX.into()),
        DataType::Uint16 => (0, u16::MAX.into()),
        DataType::Uint8 => (0, u8::MAX.into()),
        _ => return None,
    })
}

/// Comparisons and logical operators.
pub(super) fn compare(call: &Call) -> OpResult {
    let holds: fn(i64, i64) -> bool = match call.op() {
        "Equal" => |a, b| a == b,
        "Greater" => |a, b| a > b,
        "GreaterOrEqual" => |a, b| a >= b,
        "Less" => |a, b| a < b,
        "LessOrEqual" => |a, b| a <= b,
        "And" => |a, b| a != 0 && b != 0,
        "Or" => |a, b| a != 0 || b != 0,
        _ => |a, b| (a != 0) != (b != 0),
    };
    let (a, b) = (call.integers(0)?, call.integers(1)?);
    call.allowance
        .room(&broadcast(a.shape(), b.shape()).ok_or(NotEvaluated::Uncovered)?)?;
    let made = zip(a, b, |a, b| i64::from(holds(a, b)));
    Ok(vec![FieldValue::int(made.ok_or(NotEvaluated::Uncovered)?)])
}

/// Not, Abs and Sign.
pub(super) fn one(call: &Call) -> OpResult {
    let f: fn(i64) -> Option<i64> = match call.op() {
        "Not" => |n| Some(i64::from(n == 0)),
        "Abs" => i64::checked_abs,
        _ => |n| Some(n.signum()),
    };
    Ok(vec![FieldValue::int(exact(Some(
        call.integers(0)?.mapv(f),
    ))?)])
}

/// A remainder with the sign of the divisor, or of the dividend if the attribute `fmod` is set.
pub(super) fn modulo(call: &Call) -> OpResult {
    let (a, b) = (call.integers(0)?, call.integers(1)?);
    call.allowance
        .room(&broadcast(a.shape(), b.shape()).ok_or(NotEvaluated::Uncovered)?)?;
    let of_dividend = call.attr("fmod", 0)? != 0;
    let rests = if of_dividend {
        zip(a, b, i64::checked_rem)
    } else {
        zip(a, b, rest_of_divisor)
    };
    Ok(vec![FieldValue::int(exact(rests)?)])
}

/// The remainder of a division, with the sign of the divisor. `None` if the divisor is 0, or if the
/// division overflows.
fn rest_of_divisor(a: i64, b: i64) -> Option<i64> {
    let rest = a.checked_rem(b)?;
    let turns = rest != 0 && (rest < 0) != (b < 0);
    Some(if turns { rest + b } else { rest })
}

/// Min and Max.
pub(super) fn extreme(call: &Call) -> OpResult {
    let f: fn(i64, i64) -> i64 = if call.op() == "Min" {
        i64::min
    } else {
        i64::max
    };
    let mut made = call.integers(0)?.clone();
    for slot in 1..call.inputs.len() {
        let other = call.integers(slot)?;
        call.allowance
            .room(&broadcast(made.shape(), other.shape()).ok_or(NotEvaluated::Uncovered)?)?;
        made = zip(&made, other, f)
            .ok_or(NotEvaluated::Uncovered)?
            .into_shared();
    }
    Ok(vec![FieldValue::int(made.into_owned())])
}

/// Clip: applies the lower bound first, followed by the upper one.
pub(super) fn clip(call: &Call) -> OpResult {
    let mut made = call.integers(0)?.clone();
    for (slot, f) in [(1, i64::max as fn(i64, i64) -> i64), (2, i64::min)] {
        let bound = call
            .optional(slot)
            .map(|_| call.integers(slot))
            .transpose()?;
        let Some(bound) = bound.map(|bound| bound.iter().copied().next()) else {
            continue;
        };
        let bound = bound.ok_or(NotEvaluated::Uncovered)?;
        made = made.mapv(|n| f(n, bound)).into_shared();
    }
    Ok(vec![FieldValue::Int(made)])
}

pub(super) fn shape(call: &Call) -> OpResult {
    let shape = call.shape(0)?;
    let rank = shape.len() as i64;
    let start = axis_bound(call.attr("start", 0)?, rank);
    let end = axis_bound(call.attr("end", rank)?, rank);
    let extents: Vec<i64> = shape[start..end.max(start)]
        .iter()
        .map(|&extent| extent as i64)
        .collect();
    Ok(vec![FieldValue::int(arr1(&extents).into_dyn())])
}

/// The attribute `start` or `end` of a Shape as an axis, clamped to the rank.
fn axis_bound(named: i64, rank: i64) -> usize {
    let bound = if named < 0 {
        named.saturating_add(rank)
    } else {
        named
    };
    bound.clamp(0, rank) as usize
}

pub(super) fn size(call: &Call) -> OpResult {
    let count: usize = call.shape(0)?.iter().product();
    Ok(vec![FieldValue::int(arr0(count as i64).into_dyn())])
}

pub(super) fn range(call: &Call) -> OpResult {
    let mut numbers = [0; 3];
    for (slot, number) in numbers.iter_mut().enumerate() {
        let first = call.integers(slot)?.iter().next();
        *number = i128::from(*first.ok_or(NotEvaluated::Uncovered)?);
    }
    let [start, limit, delta] = numbers;
    let steps = match delta {
        0 => return Err(NotEvaluated::Uncovered),
        1.. => (limit - start + delta - 1).div_euclid(delta),
        _ => (start - limit - delta - 1).div_euclid(-delta),
    };
    let count = usize::try_from(steps.max(0)).map_err(|_| NotEvaluated::Beyond)?;
    call.allowance.room(&[count])?;
    let numbers: Vec<i64> = (0..count)
        .map(|step| (start + step as i128 * delta) as i64)
        .collect();
    Ok(vec![FieldValue::int(arr1(&numbers).into_dyn())])
}

pub(super) fn non_zero(call: &Call) -> OpResult {
    let integers = call.integers(0)?;
    let rank = integers.ndim();
    let there: Vec<_> = integers
        .indexed_iter()
        .filter(|(_, n)| **n != 0)
        .map(|(at, _)| at)
        .collect();
    call.allowance.room(&[rank, there.len()])?;
    let places = (0..rank)
        .flat_map(|axis| there.iter().map(move |at| at[axis] as i64))
        .collect();
    let places = ArrayD::from_shape_vec(IxDyn(&[rank, there.len()]), places);
    Ok(vec![FieldValue::int(
        places.map_err(|_| NotEvaluated::Uncovered)?,
    )])
}

/// OneHot.
pub(super) fn one_hot(call: &Call) -> OpResult {
    let (indices, depth) = (call.integers(0)?, call.integers(1)?);
    let depth = depth
        .iter()
        .next()
        .and_then(|&depth| usize::try_from(depth).ok())
        .ok_or(NotEvaluated::Uncovered)?;
    let rank = indices.ndim() + 1;
    let along = super::axis(call.attr("axis", -1)?, rank)?;
    let mut shape = indices.shape().to_vec();
    shape.insert(along, depth);
    call.allowance.room(&shape)?;
    let choose = ArrayD::from_shape_fn(IxDyn(&shape), |at| {
        let (place, mut rest) = (at[along] as i64, at.slice().to_vec());
        rest.remove(along);
        let index = indices[&rest[..]];
        let index = if index < 0 {
            index + depth as i64
        } else {
            index
        };
        i64::from(index == place)
    });
    let choose = choose.into_shared();
    let made = match call.value(2)? {
        FieldValue::Field(pair) => match *slice(pair) {
            [off, on] => FieldValue::field(choose.mapv(|at| if at == 0 { off } else { on })),
            _ => return Err(NotEvaluated::Uncovered),
        },
        FieldValue::Int(pair) => match *slice(pair) {
            [off, on] => FieldValue::int(choose.mapv(|at| if at == 0 { off } else { on })),
            _ => return Err(NotEvaluated::Uncovered),
        },
        _ => return Err(NotEvaluated::Uncovered),
    };
    Ok(vec![made])
}
