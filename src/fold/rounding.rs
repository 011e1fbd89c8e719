//! What a folded number may lose when it is stored.
//!
//! A fold rounds a number once, to its type. Below the normal numbers a type has fewer and fewer digits, and
//! at last none: there one rounding can take any part of a number. What that does depends on where the number
//! is read.
//!
//! - **A number that is added, or handed on as a value**, is rounded to the same multiples of the smallest
//!   number of the type as the sum, or the product, that it takes the place of: it loses nothing that the
//!   model would have kept.
//! - **A weight** `w` that is scaled to `v = s·w` and stored as `v + e` acts as the weight `w + e/s` would have
//!   acted in the model. It is among others whose products are added up, and may be off by one rounding of the
//!   largest of those: `|e/s| ≤ u·max|w|`. So the few weights of a half-precision network that are subnormal
//!   by chance do no harm, and a scale that makes many of them so does.
//! - **A factor** that multiplies a value by itself is the only one in its sum: `|e| ≤ u·|v|`.
//!
//! Exact zeros, and subnormal numbers that the type holds, lose nothing.

use ndarray::{ArrayD, Axis, Zip};

use crate::onnx::proto::TensorProto;
use crate::onnx::tensor::{self, DataType};
use crate::refusal::Reason;

/// The tensor of numbers that are added, or are values themselves.
///
/// # Errors
/// Where a number is not finite, or too large for the type; or the type is unknown.
pub fn store(data_type: Option<DataType>, numbers: &ArrayD<f64>) -> Result<TensorProto, Reason> {
    let data_type = data_type.filter(|data_type| data_type.is_float());
    let data_type = data_type.ok_or(Reason::Constant("its element type is not known".into()))?;
    if numbers.iter().any(|number| !number.is_finite()) {
        return Err(Reason::NotFinite);
    }
    tensor::make("", data_type, &numbers.view()).map_err(|_| Reason::Overflow(data_type.name()))
}

/// The tensor of numbers that multiply a value, each by itself.
///
/// # Errors
/// As [`store`], and where a number loses more than one rounding.
pub fn store_factor(data_type: Option<DataType>, numbers: &ArrayD<f64>) -> Result<TensorProto, Reason> {
    store_weight(data_type, numbers, &[], || Ok(numbers.clone()))
}

/// The tensor of a weight whose products are added up along some axes, and which was `before`.
///
/// # Errors
/// As [`store`], and where the weight loses more than one rounding of the largest in the same sum.
pub fn store_weight(
    data_type: Option<DataType>,
    weight: &ArrayD<f64>,
    axes: &[usize],
    before: impl FnOnce() -> Result<ArrayD<f64>, Reason>,
) -> Result<TensorProto, Reason> {
    let stored = store(data_type, weight)?;
    let Some(data_type) = data_type else { return Ok(stored) };
    let loss = |number: f64| tensor::underflow(data_type, number);
    if weight.iter().all(|&number| loss(number) == 0.0) {
        return Ok(stored);
    }
    let before = before()?;
    let mut largest = before.mapv(f64::abs);
    for &axis in axes {
        let most = largest.map_axis(Axis(axis), |lane| lane.fold(0.0, |most: f64, &number| most.max(number)));
        largest = most.insert_axis(Axis(axis));
    }
    // A number that was the same along an axis may differ from place to place now.
    let [before, largest] = [&before, &largest].map(|array| array.broadcast(weight.shape()));
    let (before, largest) = before.zip(largest).ok_or(Reason::UnknownShape)?;
    let is_kept = Zip::from(weight).and(before).and(largest).all(|&number, &before, &largest| {
        let loss = loss(number);
        loss == 0.0 || loss * (before / number).abs() <= data_type.rounding() * largest
    });
    if is_kept { Ok(stored) } else { Err(Reason::Underflow(data_type.name())) }
}
