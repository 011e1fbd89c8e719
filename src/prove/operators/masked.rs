//! Operators on masks: floats, some of which are −∞, or count as −∞ in a softmax.
//!
//! The place of such an element is called hidden. There, the result of a softmax is exactly 0, and
//! no other result depends on the element. Movements, additions, multiplications by 1 and
//! selections keep places hidden on the way to the softmax. All other operators treat hidden
//! elements as ordinary ones.

use ndarray::ArrayD;

use super::broadcast::zip;
use super::{Call, NotEvaluated, OpResult, interpret};
use crate::prove::field;
use crate::prove::field_value::{Elements, FieldValue, HIDDEN};

/// Operators that only move elements, if their indices and conditions are known.
const MOVEMENTS: &[&str] = &[
    "Cast",
    "Concat",
    "Expand",
    "Flatten",
    "Gather",
    "Identity",
    "Pad",
    "Reshape",
    "Slice",
    "Split",
    "Squeeze",
    "Tile",
    "Transpose",
    "Trilu",
    "Unsqueeze",
    "Where",
];

/// Whether an input of a call is a mask.
pub(crate) fn reads_mask(call: &Call) -> bool {
    let mut inputs = call.inputs.iter().flatten();
    inputs.any(|input| matches!(input, FieldValue::Masked(_)))
}

/// The results of an operator that keeps the places of a mask hidden.
///
/// # Errors
/// [`NotEvaluated::Uncovered`] for every other operator.
pub(crate) fn carried(call: &Call) -> OpResult {
    match call.node.op() {
        ("", "Add") => element_wise(call, sum),
        ("", "Mul") => element_wise(call, product),
        ("", op) if MOVEMENTS.contains(&op) && is_directed(call) => moved(call),
        _ => Err(NotEvaluated::Uncovered),
    }
}

/// The inputs of a call, with masks turned into ordinary elements, except for a softmax.
pub(crate) fn as_fields(call: &Call) -> Vec<Option<FieldValue>> {
    if call.node.op() == ("", "Softmax") {
        return call.inputs.clone();
    }
    let inputs = call.inputs.iter();
    inputs
        .map(|input| input.as_ref().map(FieldValue::unmasked))
        .collect()
}

/// Whether no input is unknown. Unknown integers and opaque values count as unknown.
fn is_directed(call: &Call) -> bool {
    let mut inputs = call.inputs.iter().flatten();
    !inputs.any(|input| matches!(input, FieldValue::Varying(_) | FieldValue::Opaque(_)))
}

/// The results of a movement, which treats elements with the bit [`HIDDEN`] like all others.
fn moved(call: &Call) -> OpResult {
    let inputs = call.inputs.iter().map(|input| match input {
        Some(FieldValue::Masked(elements)) => Some(FieldValue::Field(elements.clone())),
        input => input.clone(),
    });
    let plain = Call {
        inputs: inputs.collect(),
        ..*call
    };
    let made = interpret(&plain)?.into_iter().map(|made| match made {
        FieldValue::Field(elements) => FieldValue::masked(elements.into_owned()),
        made => made,
    });
    Ok(made.collect())
}

/// The sum of two elements, hidden if one of them is hidden.
pub(crate) fn sum(a: u32, b: u32) -> u32 {
    field::add(a & !HIDDEN, b & !HIDDEN) | (a | b) & HIDDEN
}

/// The product of two elements. A hidden element stays hidden only if it is multiplied by 1.
pub(crate) fn product(a: u32, b: u32) -> u32 {
    match (a, b) {
        (1, other) | (other, 1) => other,
        _ => field::mul(a & !HIDDEN, b & !HIDDEN),
    }
}

fn element_wise(call: &Call, f: fn(u32, u32) -> u32) -> OpResult {
    super::arithmetic::room(call)?;
    let made: Option<ArrayD<u32>> = zip(elements(call, 0)?, elements(call, 1)?, f);
    Ok(vec![FieldValue::masked(made.ok_or(NotEvaluated::Misfit)?)])
}

/// The elements of an input, in which the bit [`HIDDEN`] marks hidden places.
pub(super) fn elements<'c>(call: &'c Call, slot: usize) -> Result<&'c Elements, NotEvaluated> {
    match call.value(slot)? {
        FieldValue::Field(elements) | FieldValue::Masked(elements) => Ok(elements),
        _ => Err(NotEvaluated::Uncovered),
    }
}
