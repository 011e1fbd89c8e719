//! Arithmetic on arrays with a bound on their errors.
//!
//! To first order, the bound holds however the formula is evaluated in floats of one type. Each
//! operation counts as two roundings, because both compared numbers are rounded, and because a
//! division may be computed as a product with a reciprocal.

use std::f64::consts::FRAC_2_SQRT_PI;

use multiversion::multiversion;
use ndarray::{ArrayD, Zip};
use rayon::prelude::*;

use crate::onnx::tensor::{DataType, rounded};

/// The error of a library function such as Exp, as a number of roundings. Four roundings are two
/// units in the last place.
pub(super) const FUNCTION: f64 = 4.0;

/// The number of elements that one core compares or bounds at a time.
pub(super) const PART: usize = 1 << 16;

/// The number of roundings that each operation counts as.
pub(super) const ROUNDINGS: f64 = 2.0;

/// The rounding to a float type.
#[derive(Debug, Clone, Copy)]
pub(super) struct FloatRounding {
    to: DataType,
    /// The largest relative error of one rounding.
    pub unit: f64,
}

impl FloatRounding {
    /// `None` if ONNX has no float arithmetic in the type.
    pub(super) fn new(to: DataType) -> Option<Self> {
        let bits = match to {
            DataType::Float16 => 11,
            DataType::BFloat16 => 8,
            DataType::Float => 24,
            DataType::Double => 53,
            _ => return None,
        };
        let unit = 0.5_f64.powi(bits);
        Some(Self { to, unit })
    }

    /// Whether the type represents a number exactly.
    pub(super) fn holds(self, number: f64) -> bool {
        rounded(self.to, number) == number
    }
}

/// A bound on the errors of all elements of an array. The error of each element is at most the
/// smaller of its relative and its absolute bound.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ErrorBound {
    /// The bound relative to the magnitude of the element.
    pub relative: f64,
    /// The absolute bound.
    pub absolute: f64,
}

impl ErrorBound {
    /// The bound of exact elements: 0.
    pub(super) const EXACT: Self = Self {
        relative: 0.0,
        absolute: 0.0,
    };

    /// Whether the elements are exact.
    pub(super) fn is_exact(self) -> bool {
        self == Self::EXACT
    }

    /// The bound on the error of one element.
    #[inline(always)]
    pub(super) fn at(self, element: f64) -> f64 {
        // If an element is 0 and the relative bound infinite, the product is NaN, and `min` returns
        // the absolute bound.
        (self.relative * element.abs()).min(self.absolute)
    }

    /// The bound on the error of one element of a type. Below the least normal number of the type,
    /// each rounding has the absolute error that it has at this number.
    pub(super) fn at_element_of(self, data_type: DataType, element: f64) -> f64 {
        self.at(element.abs().max(data_type.least_normal()))
    }

    /// The smallest bound that covers `self` and `other`.
    pub(super) fn or(self, other: Self) -> Self {
        Self {
            relative: self.relative.max(other.relative),
            absolute: self.absolute.max(other.absolute),
        }
    }

    /// The error of each element relative to its magnitude, if it is the same for all elements.
    /// `None` if the absolute bound is smaller for an element, or if an element is not finite.
    pub(super) fn proportional_to(self, values: &ArrayD<f64>) -> Option<f64> {
        if self.is_exact() {
            return Some(0.0);
        }
        let is_relative = self.relative * largest_magnitude(values)? <= self.absolute;
        is_relative.then_some(self.relative)
    }

    /// The smallest bound that covers all pairs, each of which is an element and its error.
    pub(super) fn covering<'e>(pairs: impl Iterator<Item = (&'e f64, &'e f64)>) -> Self {
        let mut bound = Self::EXACT;
        for (&element, &error) in pairs {
            bound.cover(element, error);
        }
        bound
    }

    /// Raises the bound so that it covers the error of an element.
    pub(super) fn cover(&mut self, element: f64, error: f64) {
        let error = if error.is_nan() { f64::INFINITY } else { error };
        if error > 0.0 {
            self.relative = self.relative.max(error / element.abs());
            self.absolute = self.absolute.max(error);
        }
    }
}

/// An array with a bound on the errors of its elements.
#[derive(Debug, Clone)]
pub(super) struct Rounded {
    pub values: ArrayD<f64>,
    pub error: ErrorBound,
}

/// Reshapes an array and keeps its bound. `None` if the numbers of elements differ.
pub(super) fn reshaped(side: Rounded, shape: &[usize]) -> Option<Rounded> {
    let error = side.error;
    let values = side.values.into_shape_with_order(shape.to_vec()).ok()?;
    Some(Rounded { values, error })
}

/// Exchanges the first two axes. `None` if there are fewer.
pub(super) fn exchanged(side: Rounded) -> Option<Rounded> {
    let (mut values, error) = (side.values, side.error);
    if values.ndim() < 2 {
        return None;
    }
    values.swap_axes(0, 1);
    let values = values.as_standard_layout().into_owned();
    Some(Rounded { values, error })
}

/// A function of one float.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unary {
    Neg,
    Abs,
    Relu,
    Sqrt,
    Reciprocal,
    Exp,
    Log,
    /// Atan, Cos, Erf, Sigmoid, Sin, Softplus or Tanh. Their derivatives are at most 2/√π, the
    /// derivative of Erf at 0.
    Gentle,
}

impl Unary {
    /// A bound on the error of a result, given the bound on the error of its operand.
    fn error(self, a: f64, result: f64, of_a: f64, to: FloatRounding) -> f64 {
        let carried = match self {
            Self::Relu if a + of_a <= 0.0 => 0.0,
            Self::Neg | Self::Abs | Self::Relu => of_a,
            Self::Gentle => FRAC_2_SQRT_PI * of_a,
            Self::Exp => result.abs() * of_a.exp_m1(),
            Self::Sqrt if of_a <= a => of_a / (a.sqrt() + (a - of_a).sqrt()).max(f64::MIN_POSITIVE),
            Self::Reciprocal if of_a < a.abs() => result.abs() * of_a / (a.abs() - of_a),
            Self::Log if of_a < a => of_a / (a - of_a),
            Self::Sqrt | Self::Reciprocal | Self::Log => f64::INFINITY,
        };
        let is_exact = of_a == 0.0 && to.holds(result) && self.is_exact(a, result);
        let own = if is_exact {
            0.0
        } else {
            self.roundings() * to.unit * result.abs()
        };
        carried + own
    }

    fn roundings(self) -> f64 {
        match self {
            Self::Neg | Self::Abs | Self::Relu => 0.0,
            Self::Sqrt | Self::Reciprocal => ROUNDINGS,
            Self::Exp | Self::Log | Self::Gentle => ROUNDINGS * FUNCTION,
        }
    }

    fn is_exact(self, a: f64, result: f64) -> bool {
        match self {
            Self::Neg | Self::Abs | Self::Relu => true,
            Self::Sqrt => result.mul_add(result, -a) == 0.0,
            Self::Reciprocal => result.mul_add(a, -1.0) == 0.0,
            Self::Exp | Self::Log | Self::Gentle => false,
        }
    }
}

/// The largest magnitude of an element. `None` if an element is not finite.
pub(super) fn largest_magnitude(values: &ArrayD<f64>) -> Option<f64> {
    let parts = values.as_slice()?.par_chunks(PART).map(largest_bits);
    let largest = f64::from_bits(parts.max().unwrap_or(0));
    largest.is_finite().then_some(largest)
}

/// The bits of the largest magnitude. An infinity or a NaN has larger bits than every finite number.
#[multiversion(targets = "simd")]
fn largest_bits(numbers: &[f64]) -> u64 {
    let magnitudes = numbers.iter().map(|number| number.abs().to_bits());
    magnitudes.fold(0, u64::max)
}

/// Bounds the error of an element-wise function of one operand.
pub(super) fn of_unary(
    function: Unary,
    a: &Rounded,
    result: &ArrayD<f64>,
    data_type: DataType,
) -> Option<ErrorBound> {
    let to = FloatRounding::new(data_type)?;
    if a.values.shape() != result.shape() {
        return None;
    }
    let mut bound = ErrorBound::EXACT;
    Zip::from(&a.values).and(result).for_each(|&x, &made| {
        bound.cover(made, function.error(x, made, a.error.at(x), to));
    });
    Some(bound)
}

/// Bounds the error of sums of `terms` products of elements of two arrays. `magnitudes` holds the
/// sums of the products' magnitudes.
pub(super) fn of_products(
    [a, b]: [ErrorBound; 2],
    terms: usize,
    result: &ArrayD<f64>,
    magnitudes: &ArrayD<f64>,
    data_type: DataType,
) -> Option<ErrorBound> {
    let relative = a.relative + b.relative + a.relative * b.relative;
    let carried = magnitudes.mapv(|magnitude| relative * magnitude);
    of_sums(&carried, terms, result, magnitudes, data_type)
}

/// Bounds the error of sums of `terms` terms. `carried` holds the sums of the terms' own errors,
/// and `magnitudes` holds the sums of the terms' magnitudes.
pub(super) fn of_sums(
    carried: &ArrayD<f64>,
    terms: usize,
    result: &ArrayD<f64>,
    magnitudes: &ArrayD<f64>,
    data_type: DataType,
) -> Option<ErrorBound> {
    let to = FloatRounding::new(data_type)?;
    let part = terms as f64 * ROUNDINGS * to.unit;
    let mut bound = ErrorBound::EXACT;
    Zip::from(carried)
        .and(magnitudes)
        .and(result)
        .for_each(|&carried, &magnitude, &made| bound.cover(made, carried + part * magnitude));
    Some(bound)
}
