//! How much precision a folded number may lose when it is stored.
//!
//! A fold rounds each number once, to its element type. Numbers below the normal range of the type
//! have fewer digits, so one rounding can change such a number by any fraction. Whether this does
//! harm depends on the operators that read the number.
//!
//! - **A summand, or a value that is passed on**, is rounded to multiples of the smallest positive
//!   number of the type. The model computes a sum or product instead, and rounds it to the same
//!   multiples, so the fold loses nothing that the model keeps.
//! - **A weight** `w` that is scaled to `v = s·w` and stored as `v + e` acts like the weight `w +
//!   e/s` in the model. A weight is one of many whose products are summed. So the error `e/s` may
//!   be as large as one rounding of the largest of these weights: `|e/s| ≤ u·max|w|`, where `u` is
//!   the relative error of one rounding to the type. So the few weights of a half-precision network
//!   that happen to be subnormal do no harm, but a scale that makes many weights subnormal does.
//! - **A factor** that multiplies a single value may lose no more than one rounding of itself: `|e|
//!   ≤ u·|v|`.
//!
//! Exact zeros, and subnormal numbers that the type represents exactly, lose nothing.

use ndarray::{ArrayD, Axis, Zip};

use crate::onnx::proto::TensorProto;
use crate::onnx::tensor::{self, DataType};
use crate::onnx::value_range::ValueRange;
use crate::recipe::{Promise, Read, Recipe, evaluate};
use crate::refusal::{Reason, Refusal};

/// The use of a tensor's numbers, which decides the allowed loss.
#[derive(Debug, Clone)]
pub(crate) enum Rounding {
    /// Summands, or values that are passed on.
    Sum,
    /// Factors, each of which multiplies a single value.
    Factor,
    /// A weight, with its formula before the fold and the axes along which products contract it.
    Weight(Recipe, Vec<usize>),
}

/// Returns the element type in which numbers are stored.
///
/// # Errors
/// The type is unknown, or is not a float type.
pub(crate) fn float(data_type: Option<DataType>) -> Result<DataType, Reason> {
    let data_type = data_type.filter(|data_type| data_type.is_float());
    data_type.ok_or(Reason::Constant("its element type is not known".into()))
}

/// The smallest and the largest magnitude in a part of a tensor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extremes {
    magnitudes: ValueRange,
    /// Whether some number of the part is below the normal range of the type, and so loses digits.
    loses: bool,
}

impl Extremes {
    /// The extremes of an empty part.
    const NONE: Self = Self {
        magnitudes: ValueRange::NONE,
        loses: false,
    };

    /// The extremes of numbers within these bounds. `None` if such a number may be subnormal or
    /// overflow in the type.
    fn between(bounds: ValueRange, data_type: DataType) -> Option<Self> {
        let fit = bounds.least() >= data_type.least_normal()
            && bounds.are_finite()
            && tensor::rounded(data_type, bounds.largest()).is_finite();
        fit.then_some(Self {
            magnitudes: bounds,
            loses: false,
        })
    }
}

/// Derives the extremes of a promised tensor from the bounds of its formula. `None` if the bounds
/// are unknown, or if they leave open whether the type holds the numbers. Also `None` if the
/// elements are costly, because costly elements are computed and kept before the model is written,
/// which gives their exact extremes.
pub(crate) fn foreseen(promise: &Promise) -> Option<Extremes> {
    let bounds = promise.bounds().filter(|_| !promise.is_costly())?;
    Extremes::between(bounds, promise.data_type())
}

/// Finds the extremes of a part of a promised tensor. Appends the bytes of the part to `keep`, if
/// it is given.
///
/// # Errors
/// The part cannot be computed.
pub(crate) fn extremes(
    promise: &Promise,
    part: usize,
    mut keep: Option<&mut Vec<u8>>,
) -> Result<Extremes, Reason> {
    if keep.is_none()
        && let Some(bounds) = promise.bounds_in(part).map_err(|refusal| refusal.reason)?
        && let Some(found) = Extremes::between(bounds, promise.data_type())
    {
        return Ok(found);
    }
    let mut found = Extremes::NONE;
    let least = promise.data_type().least_normal();
    let looked = promise.each(part, &mut |numbers| {
        let magnitudes = ValueRange::from_numbers(numbers);
        found.magnitudes = found.magnitudes.and(magnitudes);
        found.loses |= magnitudes.least() < least
            && numbers
                .iter()
                .any(|&number| tensor::underflow(promise.data_type(), number) != 0.0);
        if let Some(bytes) = &mut keep {
            tensor::append(promise.data_type(), numbers, bytes);
        }
        Ok(())
    });
    looked.map_err(|refusal| refusal.reason)?;
    Ok(found)
}

fn too_large(data_type: DataType, largest: f64) -> Reason {
    Reason::Overflow(format!("{largest:.1e} in {data_type}"))
}

impl Rounding {
    /// Rounds these numbers and stores them in a tensor.
    ///
    /// # Errors
    /// A number is not finite, is too large for the type, or loses more than is allowed.
    pub(crate) fn store(
        &self,
        data_type: DataType,
        numbers: &ArrayD<f64>,
        read: Read,
    ) -> Result<TensorProto, Reason> {
        if numbers.iter().any(|number| !number.is_finite()) {
            return Err(Reason::NotFinite);
        }
        let stored = tensor::make("", data_type, &numbers.view());
        let stored = stored.map_err(|_| {
            too_large(
                data_type,
                numbers.fold(0.0, |most: f64, number| most.max(number.abs())),
            )
        })?;
        self.keeps(data_type, numbers, read).map(|()| stored)
    }

    /// Checks that no number loses more than is allowed.
    fn keeps(&self, data_type: DataType, numbers: &ArrayD<f64>, read: Read) -> Result<(), Reason> {
        match self.lost(data_type, numbers, read)? {
            None => Ok(()),
            // The message gives no percentage: the numbers are computed in double too, so the lost
            // fraction is unknown.
            Some((number, _)) if data_type == DataType::Double => {
                Err(Reason::Underflow(format!("{number:.1e} in double")))
            }
            Some((number, part)) => {
                let percent = 100.0 * part;
                Err(Reason::Underflow(format!(
                    "{number:.1e} in {data_type}, which is off by {percent:.2} %"
                )))
            }
        }
    }

    /// Checks that a promised tensor can be stored, from the [`extremes`] of its parts. Accepts the
    /// same tensors as [`Rounding::store`].
    ///
    /// # Errors
    /// The errors of [`Rounding::store`], or that the numbers cannot be computed.
    pub(crate) fn check(
        &self,
        promise: &Promise,
        parts: impl IntoIterator<Item = Extremes>,
    ) -> Result<(), Reason> {
        let data_type = promise.data_type();
        let mut all = Extremes::NONE;
        for part in parts {
            all.magnitudes = all.magnitudes.and(part.magnitudes);
            all.loses |= part.loses;
        }
        if !all.magnitudes.are_finite() {
            return Err(Reason::NotFinite);
        }
        let largest = all.magnitudes.largest();
        if tensor::rounded(data_type, largest).is_infinite() {
            return Err(too_large(data_type, largest));
        }
        if !all.loses || matches!(self, Rounding::Sum) {
            return Ok(());
        }
        let numbers = promise.numbers().map_err(|refusal| refusal.reason)?;
        self.keeps(data_type, &numbers, &|name| promise.constant(name))
    }

    /// Whether [`Rounding::store`] accepts these numbers. Only for summands and factors, because
    /// the check of a weight would read constants.
    pub(crate) fn fits(&self, data_type: Option<DataType>, numbers: &ArrayD<f64>) -> bool {
        float(data_type).is_ok_and(|data_type| self.store(data_type, numbers, &unreadable).is_ok())
    }

    /// Finds the number that loses the largest fraction of itself, among the numbers that lose more
    /// than is allowed. Also returns this fraction. `None` if no number loses more than is allowed.
    fn lost(
        &self,
        data_type: DataType,
        numbers: &ArrayD<f64>,
        read: Read,
    ) -> Result<Option<(f64, f64)>, Reason> {
        let mut losses = numbers
            .iter()
            .map(|&number| tensor::underflow(data_type, number));
        if matches!(self, Rounding::Sum) || losses.all(|loss| loss == 0.0) {
            return Ok(None);
        }
        let (before, axes) = match self {
            Rounding::Weight(before, axes) => (
                evaluate(before, read).map_err(|refusal| refusal.reason)?,
                axes.as_slice(),
            ),
            _ => (numbers.clone(), &[][..]),
        };
        let mut largest = before.mapv(f64::abs);
        for &axis in axes {
            let most = largest.map_axis(Axis(axis), |lane| {
                lane.fold(0.0, |most: f64, &number| most.max(number))
            });
            largest = most.insert_axis(Axis(axis));
        }
        // The folded weight may vary along an axis along which the weight before the fold was
        // constant, so all arrays are broadcast to the shape of the folded weight.
        let [before, largest] = [&before, &largest].map(|array| array.broadcast(numbers.shape()));
        let (before, largest) = before.zip(largest).ok_or(Reason::UnknownShape)?;
        let mut worst = None;
        Zip::from(numbers)
            .and(before)
            .and(largest)
            .for_each(|&number, &before, &largest| {
                let loss = tensor::underflow(data_type, number);
                if loss != 0.0 && loss * (before / number).abs() > data_type.rounding() * largest {
                    let part = loss / number.abs();
                    worst = worst
                        .filter(|&(_, most)| most >= part)
                        .or(Some((number, part)));
                }
            });
        Ok(worst)
    }
}

/// Fails for every constant, because storing summands and factors reads none.
fn unreadable(name: &str) -> Result<ArrayD<f64>, Refusal> {
    Err(Refusal::new(Reason::NotConstant, name))
}
