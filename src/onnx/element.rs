//! The elements of a tensor: their type, their number and their location.

use half::{bf16, f16};

use super::proto::{DataLocation, TensorProto};
use crate::error::{Error, Result};

/// The element type of a tensor.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, strum::Display, strum::EnumString, strum::FromRepr,
)]
#[strum(serialize_all = "lowercase")]
#[repr(i32)]
#[allow(missing_docs, reason = "the names are those of the specification")]
pub enum DataType {
    Float = 1,
    Uint8 = 2,
    Int8 = 3,
    Uint16 = 4,
    Int16 = 5,
    Int32 = 6,
    Int64 = 7,
    String = 8,
    Bool = 9,
    Float16 = 10,
    Double = 11,
    Uint32 = 12,
    Uint64 = 13,
    Complex64 = 14,
    Complex128 = 15,
    BFloat16 = 16,
    Float8E4M3FN = 17,
    Float8E4M3FNUZ = 18,
    Float8E5M2 = 19,
    Float8E5M2FNUZ = 20,
    Uint4 = 21,
    Int4 = 22,
    Float4E2M1 = 23,
    Float8E8M0 = 24,
    Uint2 = 25,
    Int2 = 26,
    Float6E2M3 = 27,
    Float6E3M2 = 28,
}

impl DataType {
    /// The element type with this code in the specification, if this version of unfold knows it.
    pub fn from_code(code: i32) -> Option<Self> {
        Self::from_repr(code)
    }

    /// The code of the type in the specification.
    pub fn code(self) -> i32 {
        self as i32
    }

    /// The number of bits of one element; `None` for strings, which have no fixed width.
    pub fn bits(self) -> Option<usize> {
        use DataType::*;
        Some(match self {
            String => return None,
            Uint2 | Int2 => 2,
            Uint4 | Int4 | Float4E2M1 => 4,
            Float6E2M3 | Float6E3M2 => 6,
            Uint8 | Int8 | Bool | Float8E4M3FN | Float8E4M3FNUZ | Float8E5M2 | Float8E5M2FNUZ
            | Float8E8M0 => 8,
            Uint16 | Int16 | Float16 | BFloat16 => 16,
            Float | Int32 | Uint32 => 32,
            Double | Int64 | Uint64 | Complex64 => 64,
            Complex128 => 128,
        })
    }

    /// The number of bytes of `count` elements; elements smaller than a byte are packed.
    pub fn byte_size(self, count: usize) -> Option<usize> {
        let bits = self.bits()?;
        match bits % 8 {
            0 => count.checked_mul(bits / 8),
            _ => Some(count.checked_mul(bits)?.div_ceil(8)),
        }
    }

    /// The name of the type in ONNX's textual syntax.
    pub fn name(self) -> String {
        self.to_string()
    }

    /// Whether the elements can be read and written as `f64`: float16, bfloat16, float, double.
    pub fn is_float(self) -> bool {
        matches!(
            self,
            Self::Float16 | Self::BFloat16 | Self::Float | Self::Double
        )
    }

    /// The lowest finite number of a floating-point type; `None` for other types.
    pub(crate) fn lowest(self) -> Option<f64> {
        match self {
            Self::Float16 => Some(f16::MIN.to_f64()),
            Self::BFloat16 => Some(bf16::MIN.to_f64()),
            Self::Float => Some(f32::MIN.into()),
            Self::Double => Some(f64::MIN),
            _ => None,
        }
    }

    /// The largest relative error when a number is rounded to this floating-point type, if the
    /// result is a normal number.
    pub fn rounding(self) -> f64 {
        match self {
            Self::Float16 => f16::EPSILON.to_f64() / 2.0,
            Self::BFloat16 => bf16::EPSILON.to_f64() / 2.0,
            Self::Float => f64::from(f32::EPSILON) / 2.0,
            _ => f64::EPSILON / 2.0,
        }
    }

    /// The smallest normal number of this floating-point type.
    pub fn least_normal(self) -> f64 {
        match self {
            Self::Float16 => f16::MIN_POSITIVE.to_f64(),
            Self::BFloat16 => bf16::MIN_POSITIVE.to_f64(),
            Self::Float => f32::MIN_POSITIVE.into(),
            _ => f64::MIN_POSITIVE,
        }
    }

    /// Whether the elements can be read as `i64`: the integers and bool.
    pub fn is_integer(self) -> bool {
        use DataType::*;
        matches!(
            self,
            Uint2
                | Int2
                | Uint4
                | Int4
                | Uint8
                | Int8
                | Uint16
                | Int16
                | Uint32
                | Int32
                | Uint64
                | Int64
                | Bool
        )
    }
}

/// The element type of a tensor.
///
/// # Errors
/// If the type is missing or unknown.
pub fn data_type(tensor: &TensorProto) -> Result<DataType> {
    let code = tensor.data_type();
    DataType::from_code(code)
        .ok_or_else(|| error(tensor, format!("its element type {code} is unknown")))
}

/// The element type of a tensor, if it is a [floating-point type](DataType::is_float).
pub(crate) fn float_type(tensor: &TensorProto) -> Option<DataType> {
    DataType::from_code(tensor.data_type()).filter(|data_type| data_type.is_float())
}

/// The shape of a tensor.
///
/// # Errors
/// If an extent is negative, or if the number of elements overflows.
pub(crate) fn shape(tensor: &TensorProto) -> Result<Vec<usize>> {
    let dims: Option<Vec<usize>> = tensor
        .dims
        .iter()
        .map(|&dim| usize::try_from(dim).ok())
        .collect();
    let dims =
        dims.ok_or_else(|| error(tensor, format!("its shape {:?} is negative", tensor.dims)))?;
    // Extents of 0 are left out of the product, because `ndarray` also refuses a shape whose other
    // extents overflow.
    let product = dims
        .iter()
        .filter(|&&dim| dim != 0)
        .try_fold(1_usize, |product, &dim| product.checked_mul(dim));
    match product {
        Some(product) if isize::try_from(product).is_ok() => Ok(dims),
        _ => Err(error(
            tensor,
            format!("its shape {:?} is too large", tensor.dims),
        )),
    }
}

/// The number of elements of a tensor.
///
/// # Errors
/// The errors of [`shape`].
pub(crate) fn count(tensor: &TensorProto) -> Result<usize> {
    Ok(shape(tensor)?.iter().product())
}

/// The number of bytes of a tensor's elements, computed from its shape and element type.
///
/// # Errors
/// The errors of [`data_type`] and [`shape`], or if the type has no fixed width, or the number of
/// bytes overflows.
pub(crate) fn byte_size(tensor: &TensorProto) -> Result<usize> {
    let (data_type, count) = (data_type(tensor)?, count(tensor)?);
    data_type.byte_size(count).ok_or_else(|| {
        error(
            tensor,
            format!("{count} elements of {data_type} have no size"),
        )
    })
}

/// The first character of locations that are not files. This character cannot occur in a path. Only
/// the model of the tensor can resolve a location that begins with it. When the model is written,
/// the data moves back into the message.
pub(super) const HELD: char = '\0';

impl TensorProto {
    /// Whether the elements are in another file.
    pub fn is_external(&self) -> bool {
        self.data_location() == DataLocation::External && !is_held(self)
    }
}

/// Whether the model holds the elements of a tensor outside of its message.
pub(crate) fn is_held(tensor: &TensorProto) -> bool {
    let mut entries = tensor.external_data.iter();
    entries.any(|entry| entry.key() == "location" && entry.value().starts_with(HELD))
}

/// A tensor with a type and a shape, but no elements.
pub(crate) fn without_elements(data_type: DataType, shape: &[usize]) -> TensorProto {
    TensorProto {
        dims: shape.iter().map(|&dim| dim as i64).collect(),
        data_type: Some(data_type.code()),
        ..Default::default()
    }
}

/// An error about a tensor.
pub(super) fn error(tensor: &TensorProto, reason: impl Into<String>) -> Error {
    Error::Tensor {
        tensor: tensor.name().to_owned(),
        reason: reason.into(),
    }
}
