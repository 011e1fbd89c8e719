//! Reads and encodes the elements of tensors. Only this folder knows how element types are stored.

mod encode;
mod floats;

use std::fmt;
use std::mem;

use bytes::Bytes;
use ndarray::{ArrayD, ArrayViewD, IxDyn};

use super::data::Data;
pub(crate) use super::element::DataType;
pub use super::element::data_type;
use super::element::error;
pub(crate) use super::element::without_elements;
pub(crate) use super::element::{byte_size, count, float_type, is_held, shape};
use super::external_data::Externals;
use super::proto::{TensorProto, ValueInfoProto};
use crate::error::{Error, Result};
pub(crate) use encode::{append, encode_f64, encode_into, rounded, underflow};
pub(crate) use floats::{Floats, Runs};

/// Reads the elements of a tensor of fixed-width type in the format of `raw_data`: little-endian,
/// row-major.
///
/// The elements are copied only if they are in a file, or in the field for their type.
///
/// # Errors
/// If the elements are missing or in two places, if their size contradicts the shape and the type,
/// if the tensor is a segment, or if the elements cannot be read.
pub fn raw(tensor: &TensorProto, externals: &Externals) -> Result<Bytes> {
    data(tensor, externals)?
        .all()
        .map_err(|reason| externals.error(tensor, reason))
}

/// Finds the bytes that [`raw`] returns, without reading them.
///
/// # Errors
/// If the elements are missing or in two places, if their size contradicts the shape and the type,
/// or if the tensor is a segment.
pub(crate) fn data(tensor: &TensorProto, externals: &Externals) -> Result<Data> {
    if tensor.segment.is_some() {
        return Err(error(
            tensor,
            "it is a segment of a tensor, which cannot be read",
        ));
    }
    let inline = tensor.raw_data.clone().unwrap_or_default();
    let typed = has_typed_data(tensor);
    let elsewhere = tensor.is_external() || is_held(tensor);
    let data = match (elsewhere, inline.is_empty(), typed) {
        (true, true, false) => externals.data(tensor)?,
        (false, _, false) => Data::Here(inline),
        (false, true, true) => Data::Here(typed_data(tensor)?),
        _ => return Err(error(tensor, "it keeps elements in two places")),
    };
    expect_size(tensor, data.len())?;
    Ok(data)
}

pub(super) fn has_typed_data(tensor: &TensorProto) -> bool {
    let TensorProto {
        float_data,
        int32_data,
        string_data,
        int64_data,
        double_data,
        uint64_data,
        ..
    } = tensor;
    !(float_data.is_empty()
        && int32_data.is_empty()
        && string_data.is_empty()
        && int64_data.is_empty()
        && double_data.is_empty()
        && uint64_data.is_empty())
}

/// The elements in the field for their type, as bytes.
fn typed_data(tensor: &TensorProto) -> Result<Bytes> {
    use DataType::*;
    let data_type = data_type(tensor)?;
    let bytes = match data_type {
        Float | Complex64 => concat(&tensor.float_data, |value| value.to_le_bytes()),
        Double | Complex128 => concat(&tensor.double_data, |value| value.to_le_bytes()),
        Int64 => concat(&tensor.int64_data, |value| value.to_le_bytes()),
        Uint64 => concat(&tensor.uint64_data, |value| value.to_le_bytes()),
        Uint32 => concat(
            &narrow(tensor, &tensor.uint64_data, u32::try_from)?,
            |value| value.to_le_bytes(),
        ),
        Int32 => concat(&tensor.int32_data, |value| value.to_le_bytes()),
        Int16 => concat(
            &narrow(tensor, &tensor.int32_data, i16::try_from)?,
            |value| value.to_le_bytes(),
        ),
        Uint16 | Float16 | BFloat16 => concat(
            &narrow(tensor, &tensor.int32_data, u16::try_from)?,
            |value| value.to_le_bytes(),
        ),
        Int8 => concat(
            &narrow(tensor, &tensor.int32_data, i8::try_from)?,
            |value| value.to_le_bytes(),
        ),
        Uint8 | Bool | Float8E4M3FN | Float8E4M3FNUZ | Float8E5M2 | Float8E5M2FNUZ | Float8E8M0
        | Uint4 | Float4E2M1 | Uint2 => narrow(tensor, &tensor.int32_data, u8::try_from)?,
        // The values are packed bytes, which some writers sign-extend.
        Int4 | Int2 => narrow(tensor, &tensor.int32_data, |value| {
            u8::try_from(value).or_else(|_| i8::try_from(value).map(|value| value as u8))
        })?,
        Float6E2M3 | Float6E3M2 | String => {
            return Err(error(
                tensor,
                format!("elements of {data_type} cannot be read"),
            ));
        }
    };
    Ok(bytes.into())
}

fn concat<T: Copy, const N: usize>(values: &[T], bytes: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|&value| bytes(value)).collect()
}

fn narrow<T: Copy + fmt::Display, U, E>(
    tensor: &TensorProto,
    values: &[T],
    convert: impl Fn(T) -> std::result::Result<U, E>,
) -> Result<Vec<U>> {
    let mut narrowed = Vec::with_capacity(values.len());
    for &value in values {
        let Ok(value) = convert(value) else {
            let reason = format!("{value} is outside of its element type");
            return Err(error(tensor, reason));
        };
        narrowed.push(value);
    }
    Ok(narrowed)
}

/// Reads the elements of a tensor of float16, bfloat16, float or double exactly.
///
/// # Errors
/// The errors of [`raw`], or if the element type is not a floating-point type.
pub fn read_f64(tensor: &TensorProto, externals: &Externals) -> Result<ArrayD<f64>> {
    Floats::new(tensor, externals)?.all()
}

/// Reads the elements of a tensor of integers or bool exactly.
///
/// # Errors
/// The errors of [`raw`]. Also if the elements are not integers, or if a uint64 exceeds the range
/// of `i64`.
pub fn read_i64(tensor: &TensorProto, externals: &Externals) -> Result<ArrayD<i64>> {
    use DataType::*;
    let data_type = data_type(tensor)?;
    if !data_type.is_integer() {
        return Err(error(
            tensor,
            format!("its elements are {data_type}, and not integers"),
        ));
    }
    let bytes = raw(tensor, externals)?;
    let count = count(tensor)?;
    let values = match data_type {
        Int64 => split(&bytes, i64::from_le_bytes),
        Int32 => split(&bytes, |bytes| i32::from_le_bytes(bytes).into()),
        Int16 => split(&bytes, |bytes| i16::from_le_bytes(bytes).into()),
        Int8 => split(&bytes, |bytes| i8::from_le_bytes(bytes).into()),
        Uint64 => narrow(tensor, &split(&bytes, u64::from_le_bytes), i64::try_from)?,
        Uint32 => split(&bytes, |bytes| u32::from_le_bytes(bytes).into()),
        Uint16 => split(&bytes, |bytes| u16::from_le_bytes(bytes).into()),
        Uint8 => split(&bytes, |bytes| u8::from_le_bytes(bytes).into()),
        Bool => bytes.iter().map(|&byte| i64::from(byte != 0)).collect(),
        Uint4 => unpack(&bytes, count, 4),
        Uint2 => unpack(&bytes, count, 2),
        Int4 => unpack(&bytes, count, 4)
            .into_iter()
            .map(|value| (value ^ 8) - 8)
            .collect(),
        _ => unpack(&bytes, count, 2)
            .into_iter()
            .map(|value| (value ^ 2) - 2)
            .collect(),
    };
    shaped(tensor.name(), &shape(tensor)?, values)
}

fn split<T, const N: usize>(bytes: &[u8], value: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes
        .as_chunks()
        .0
        .iter()
        .map(|&bytes| value(bytes))
        .collect()
}

/// Unpacks unsigned elements of `bits` bits each. The first element is in the lowest bits of a
/// byte.
fn unpack(bytes: &[u8], count: usize, bits: usize) -> Vec<i64> {
    let per_byte = 8 / bits;
    let mask = (1 << bits) - 1;
    let elements = (0..count).map(|index| {
        let byte = bytes[index / per_byte];
        i64::from(byte >> (index % per_byte * bits) & mask)
    });
    elements.collect()
}

fn shaped<T>(name: &str, shape: &[usize], values: Vec<T>) -> Result<ArrayD<T>> {
    ArrayD::from_shape_vec(IxDyn(shape), values).map_err(|source| Error::Tensor {
        tensor: name.to_owned(),
        reason: source.to_string(),
    })
}

/// The element type that an input, an output or another value declares. `None` if it declares none.
pub(crate) fn declared_type(value: &ValueInfoProto) -> Option<DataType> {
    let declared = value.r#type.as_ref()?.tensor_type.as_ref()?;
    DataType::from_code(declared.elem_type())
}

/// Whether a value is declared to be a sequence or an optional.
pub(crate) fn is_container(value: &ValueInfoProto) -> bool {
    let declared = value.r#type.as_ref();
    declared.is_some_and(|declared| declared.tensor_type.is_none())
}

/// Builds a tensor of float16, bfloat16, float or double. Each element is rounded once, to the
/// nearest, ties to even. Infinities and NaNs are stored as such.
///
/// # Errors
/// If a finite number would become an infinity, or if the type is not one of these.
pub fn make(name: &str, data_type: DataType, values: &ArrayViewD<'_, f64>) -> Result<TensorProto> {
    let bytes = encode_f64(data_type, values).map_err(|reason| Error::Tensor {
        tensor: name.to_owned(),
        reason: reason.to_string(),
    })?;
    Ok(stored(name, data_type, values.shape(), bytes))
}

/// Builds an int64 tensor with one axis, as operators expect for shapes and axes.
pub fn make_i64(name: &str, values: &[i64]) -> TensorProto {
    let bytes = concat(values, |value| value.to_le_bytes());
    stored(name, DataType::Int64, &[values.len()], bytes.into())
}

fn stored(name: &str, data_type: DataType, shape: &[usize], bytes: Bytes) -> TensorProto {
    let name = Some(name.to_owned());
    TensorProto {
        name,
        raw_data: Some(bytes),
        ..without_elements(data_type, shape)
    }
}

/// Replaces the elements of a tensor by `bytes` in the format of [`raw`]. The old elements or their
/// location are dropped.
///
/// # Errors
/// If the number of bytes contradicts the shape and the type. If the type is unknown, any size is
/// accepted.
pub(crate) fn replace(tensor: &mut TensorProto, bytes: Bytes) -> Result<()> {
    if DataType::from_code(tensor.data_type()).is_some() {
        expect_size(tensor, bytes.len())?;
    }
    clear(tensor);
    tensor.raw_data = Some(bytes);
    Ok(())
}

/// Removes the elements of a tensor, or their location.
pub(super) fn clear(tensor: &mut TensorProto) {
    *tensor = TensorProto {
        raw_data: None,
        float_data: Vec::new(),
        int32_data: Vec::new(),
        string_data: Vec::new(),
        int64_data: Vec::new(),
        double_data: Vec::new(),
        uint64_data: Vec::new(),
        external_data: Vec::new(),
        data_location: None,
        ..mem::take(tensor)
    };
}

/// Checks that the elements of a tensor in the message have the size that the shape and the type
/// require, if both are known.
///
/// # Errors
/// If the size differs.
pub(crate) fn check_size(tensor: &TensorProto) -> Result<()> {
    let is_elsewhere = tensor.is_external() || is_held(tensor) || tensor.segment.is_some();
    let bytes = tensor
        .raw_data
        .as_ref()
        .filter(|bytes| !is_elsewhere && !bytes.is_empty());
    match (bytes, byte_size(tensor)) {
        (Some(bytes), Ok(_)) => expect_size(tensor, bytes.len()),
        _ => Ok(()),
    }
}

fn expect_size(tensor: &TensorProto, held: usize) -> Result<()> {
    let (shape, needed) = (&tensor.dims, byte_size(tensor)?);
    if held == needed {
        return Ok(());
    }
    Err(error(
        tensor,
        format!("its shape {shape:?} takes {needed} bytes, and it holds {held}"),
    ))
}

#[cfg(test)]
mod tests {
    use ndarray::{Array1, arr0, arr1};

    use super::*;

    #[test]
    fn infinities_nan_and_negative_zero_survive() {
        for data_type in [
            DataType::Float16,
            DataType::BFloat16,
            DataType::Float,
            DataType::Double,
        ] {
            let values = arr1(&[f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -0.0]).into_dyn();
            let tensor = make("x", data_type, &values.view()).unwrap();
            let read = read_f64(&tensor, &Externals::none()).unwrap();
            assert_eq!((read[0], read[1]), (values[0], values[1]));
            assert!(read[2].is_nan() && read[3] == 0.0 && read[3].is_sign_negative());
        }
    }

    #[test]
    fn float32_overflow_is_refused() {
        let largest = f64::from(f32::MAX);
        let tensor = make("x", DataType::Float, &arr0(largest).into_dyn().view()).unwrap();
        assert_eq!(
            read_f64(&tensor, &Externals::none()).unwrap(),
            arr0(largest).into_dyn()
        );
        let error = make(
            "x",
            DataType::Float,
            &arr0(largest * 1.001).into_dyn().view(),
        )
        .unwrap_err();
        assert!(error.to_string().contains("too large for float"), "{error}");
        assert!(make("x", DataType::Int8, &arr0(1.0).into_dyn().view()).is_err());
    }

    #[test]
    fn make_stores_row_major_order_for_any_layout() {
        let values = Array1::from_iter((0..6).map(f64::from))
            .into_shape_with_order((2, 3))
            .unwrap();
        let transposed = values.t().into_dyn();
        let tensor = make("x", DataType::Double, &transposed).unwrap();
        assert_eq!(tensor.dims, [3, 2]);
        assert_eq!(read_f64(&tensor, &Externals::none()).unwrap(), transposed);
    }

    #[test]
    fn data_type_codes_round_trip() {
        for code in -1..40 {
            assert_eq!(
                DataType::from_code(code).map(DataType::code),
                (1..=28).contains(&code).then_some(code)
            );
        }
    }

    #[test]
    fn byte_sizes_are_packed_and_do_not_overflow() {
        for (data_type, expected) in [
            (DataType::Int2, Some(2)),
            (DataType::Int4, Some(3)),
            (DataType::Float6E2M3, Some(4)),
            (DataType::Bool, Some(5)),
            (DataType::BFloat16, Some(10)),
            (DataType::Float, Some(20)),
            (DataType::Complex128, Some(80)),
            (DataType::String, None),
        ] {
            assert_eq!(data_type.byte_size(5), expected, "{data_type}");
        }
        assert_eq!(DataType::Double.byte_size(usize::MAX / 4), None);
        let cases = [
            (vec![1 << 32, 1 << 32], None),
            (vec![0, i64::MAX, 2], None),
            (vec![-1], None),
            (vec![], Some(vec![])),
        ];
        for (dims, expected) in cases {
            let tensor = TensorProto {
                dims,
                ..Default::default()
            };
            assert_eq!(shape(&tensor).ok(), expected, "{:?}", tensor.dims);
        }
    }

    #[test]
    fn replace_swaps_elements_and_keeps_the_documentation() {
        let mut tensor = TensorProto {
            float_data: vec![1.0, 2.0],
            doc_string: Some("kept".into()),
            ..without_elements(DataType::Float, &[2])
        };
        let numbers = |tensor: &TensorProto| read_f64(tensor, &Externals::none()).unwrap();
        let bytes = |floats: &[f32]| Bytes::from_iter(floats.iter().flat_map(|v| v.to_le_bytes()));
        let error = replace(&mut tensor, bytes(&[3.0])).unwrap_err();
        assert!(error.to_string().contains("holds 4"), "{error}");
        assert_eq!(numbers(&tensor), ndarray::arr1(&[1.0, 2.0]).into_dyn());
        replace(&mut tensor, bytes(&[3.0, 4.0])).unwrap();
        assert_eq!(numbers(&tensor), ndarray::arr1(&[3.0, 4.0]).into_dyn());
        assert_eq!((tensor.float_data.len(), tensor.doc_string()), (0, "kept"));
    }
}
