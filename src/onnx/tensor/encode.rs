//! Encodes numbers as elements of a floating-point type. Each number is rounded once.

use bytes::Bytes;
use half::{bf16, f16};
use multiversion::multiversion;
use ndarray::ArrayViewD;

use crate::onnx::tensor::DataType;

/// The reasons why numbers cannot be stored as elements of a type.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub(crate) enum NotRepresentable {
    /// A finite number would become infinite.
    #[error("{value:e} is too large for {data_type}")]
    Overflow {
        /// The number.
        value: f64,
        /// The element type.
        data_type: DataType,
    },
    /// The element type is not float16, bfloat16, float or double.
    #[error("{data_type} is not a floating-point type")]
    NotFloat {
        /// The element type.
        data_type: DataType,
    },
}

/// Encodes numbers as the bytes of a tensor. Each is rounded once, to the nearest, ties to even.
///
/// Infinities and NaNs are encoded as such.
///
/// # Errors
/// If a finite number would become an infinity, or if the element type is not float16, bfloat16,
/// float or double.
pub(crate) fn encode_f64(
    data_type: DataType,
    values: &ArrayViewD<'_, f64>,
) -> Result<Bytes, NotRepresentable> {
    match data_type {
        DataType::Float16 => encode(values, |value| {
            let half = f16::from_f32(to_odd(value));
            (half.to_le_bytes(), half.is_finite())
        }),
        DataType::BFloat16 => encode(values, |value| {
            let half = bf16::from_f32(to_odd(value));
            (half.to_le_bytes(), half.is_finite())
        }),
        DataType::Float => encode(values, |value| {
            let single = value as f32;
            (single.to_le_bytes(), single.is_finite())
        }),
        DataType::Double => encode(values, |value| (value.to_le_bytes(), value.is_finite())),
        _ => return Err(NotRepresentable::NotFloat { data_type }),
    }
    .map(Bytes::from)
    .map_err(|value| NotRepresentable::Overflow { value, data_type })
}

/// Encodes numbers into a buffer. Each is rounded once, as by [`encode_f64`], but may become
/// infinite.
#[multiversion(targets = "simd")]
pub(crate) fn encode_into(data_type: DataType, numbers: &[f64], into: &mut [u8]) {
    #[inline(always)]
    fn each<const N: usize>(numbers: &[f64], into: &mut [u8], store: impl Fn(f64) -> [u8; N]) {
        for (bytes, &number) in into.as_chunks_mut().0.iter_mut().zip(numbers) {
            *bytes = store(number);
        }
    }
    match data_type {
        DataType::Float16 => each(numbers, into, |number| {
            f16::from_f32(to_odd(number)).to_le_bytes()
        }),
        DataType::BFloat16 => each(numbers, into, |number| {
            bf16::from_f32(to_odd(number)).to_le_bytes()
        }),
        DataType::Float => each(numbers, into, |number| (number as f32).to_le_bytes()),
        _ => each(numbers, into, f64::to_le_bytes),
    }
}

/// Encodes all elements in row-major order.
///
/// `store` returns the bytes of an element, and whether the stored number is finite. The error is
/// the first finite element that is stored as an infinity.
fn encode<const N: usize>(
    values: &ArrayViewD<'_, f64>,
    store: impl Fn(f64) -> ([u8; N], bool),
) -> Result<Vec<u8>, f64> {
    let values = values.as_standard_layout();
    let values = values.as_slice().unwrap_or_default();
    let mut out = vec![0; values.len() * N];
    let mut lost = false;
    for (slot, &value) in out.as_chunks_mut().0.iter_mut().zip(values) {
        let (bytes, finite) = store(value);
        *slot = bytes;
        lost |= value.is_finite() && !finite;
    }
    if !lost {
        return Ok(out);
    }
    let first = values
        .iter()
        .find(|&&value| value.is_finite() && !store(value).1);
    first.map_or(Ok(out), |&value| Err(value))
}

/// Rounds to `f32` so that rounding the result again to a shorter type gives the same as rounding
/// the original number to that type.
///
/// This is rounding to odd: a number that is not an `f32` becomes the neighbour whose last bit is
/// set. So it never becomes the midpoint between two shorter numbers, from which the second
/// rounding could go to the wrong side.
#[inline(always)]
fn to_odd(value: f64) -> f32 {
    let nearest = value as f32;
    if value.is_nan() || f64::from(nearest) == value {
        return nearest;
    }
    let away_from_zero = f64::from(nearest).abs() > value.abs();
    let toward_zero = nearest.to_bits() - u32::from(away_from_zero);
    f32::from_bits(toward_zero | 1)
}

/// The rounding error of a number that is stored as a subnormal number or as 0. The result is 0 if
/// it is stored as a normal number.
///
/// A subnormal float64 counts as if it were stored as 0, because its digits were already lost when
/// it was computed.
pub(crate) fn underflow(data_type: DataType, value: f64) -> f64 {
    if value.abs() >= data_type.least_normal() {
        return 0.0;
    }
    let stored = if data_type == DataType::Double {
        0.0
    } else {
        rounded(data_type, value)
    };
    (value - stored).abs()
}

/// Rounds a number to the nearest number of a floating-point type.
pub(crate) fn rounded(data_type: DataType, value: f64) -> f64 {
    match data_type {
        DataType::Float16 => f16::from_f32(to_odd(value)).to_f64(),
        DataType::BFloat16 => bf16::from_f32(to_odd(value)).to_f64(),
        DataType::Float => f64::from(value as f32),
        _ => value,
    }
}

/// Encodes numbers like [`encode_into`], and appends them to the bytes of a tensor.
pub(crate) fn append(data_type: DataType, numbers: &[f64], bytes: &mut Vec<u8>) {
    let at = bytes.len();
    bytes.resize(at + numbers.len() * data_type.byte_size(1).unwrap_or(1), 0);
    encode_into(data_type, numbers, &mut bytes[at..]);
}

#[cfg(test)]
mod tests {
    use ndarray::arr0;

    use super::*;

    fn encoded(data_type: DataType, value: f64) -> Result<u16, NotRepresentable> {
        let bytes = encode_f64(data_type, &arr0(value).into_dyn().view())?;
        Ok(u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    /// Checks every number of a 16-bit type, the midpoint to the next one, and the neighbours of
    /// that midpoint.
    fn rounds_to_nearest_even(data_type: DataType, value: impl Fn(u16) -> f64, largest: u16) {
        for sign in [1.0, -1.0] {
            let flag = if sign < 0.0 { 0x8000 } else { 0 };
            for code in 0..largest {
                let (low, high) = (value(code), value(code + 1));
                let middle = (low + high) / 2.0;
                let even = if code % 2 == 0 { code } else { code + 1 };
                assert_eq!(encoded(data_type, sign * low), Ok(flag | code));
                assert_eq!(
                    encoded(data_type, sign * middle),
                    Ok(flag | even),
                    "{middle:e}"
                );
                assert_eq!(
                    encoded(data_type, sign * middle.next_down()),
                    Ok(flag | code),
                    "{middle:e}"
                );
                assert_eq!(
                    encoded(data_type, sign * middle.next_up()),
                    Ok(flag | (code + 1)),
                    "{middle:e}"
                );
            }
            let last = value(largest);
            let limit = last + (last - value(largest - 1)) / 2.0;
            assert_eq!(
                encoded(data_type, sign * limit.next_down()),
                Ok(flag | largest)
            );
            for value in [limit * sign, f64::MAX * sign] {
                assert_eq!(
                    encoded(data_type, value),
                    Err(NotRepresentable::Overflow { value, data_type })
                );
            }
        }
    }

    #[test]
    fn float16_is_rounded_to_nearest_even() {
        rounds_to_nearest_even(
            DataType::Float16,
            |code| f16::from_bits(code).to_f64(),
            f16::MAX.to_bits(),
        );
    }

    #[test]
    fn bfloat16_is_rounded_to_nearest_even() {
        rounds_to_nearest_even(
            DataType::BFloat16,
            |code| bf16::from_bits(code).to_f64(),
            bf16::MAX.to_bits(),
        );
    }

    #[test]
    fn a_number_beyond_half_precision_is_not_representable() {
        assert_eq!(
            encode_f64(DataType::Float16, &arr0(1.0).into_dyn().view()).unwrap(),
            [0x00, 0x3c][..]
        );
        assert!(encode_f64(DataType::Float16, &arr0(65520.0).into_dyn().view()).is_err());
    }

    #[test]
    fn an_underflow_is_the_difference_from_the_nearest() {
        assert_eq!(underflow(DataType::Float16, 0.1), 0.0);
        assert_eq!(
            underflow(DataType::Float16, 2.25 / f64::from(1 << 24)),
            0.25 / f64::from(1 << 24)
        );
        assert_eq!(underflow(DataType::Float16, 1e-9), 1e-9);
    }

    #[test]
    fn numbers_are_rounded_to_the_nearest() {
        assert_eq!(rounded(DataType::BFloat16, 1.0 + 1.0 / 256.0), 1.0);
        assert_eq!(rounded(DataType::Float, 0.1), f64::from(0.1_f32));
    }
}
