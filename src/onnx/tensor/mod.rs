//! The elements of tensors. Nothing outside this file knows how an element type is stored.

use std::fmt;
use std::mem;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use half::{bf16, f16};
use multiversion::multiversion;
use ndarray::{ArrayD, ArrayViewD, IxDyn};

use super::data::Data;
use super::element::error;
pub use super::element::{
    DataType, byte_size, count, data_type, float_type, is_external, is_held, shape,
};
use super::external::Externals;
use super::proto::TensorProto;
use crate::error::{Error, Result};
use crate::onnx::value_range::ValueRange;

/// Why numbers cannot be stored as elements of a type.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum NotRepresentable {
    /// A finite number would become an infinity.
    #[error("{value:e} is too large for {data_type}")]
    Overflow {
        /// The number.
        value: f64,
        /// The element type.
        data_type: DataType,
    },
    /// The element type is not half, bfloat16, float or double.
    #[error("{data_type} is no type of floats")]
    NotFloat {
        /// The element type.
        data_type: DataType,
    },
}

/// The elements of a tensor of fixed-width type in the format of `raw_data`: little-endian,
/// row-major.
///
/// They are not copied, unless they are in a file, or the tensor keeps them in a field of their type.
///
/// # Errors
/// As [`data`], and where they cannot be read.
pub fn raw(tensor: &TensorProto, externals: &Externals) -> Result<Bytes> {
    data(tensor, externals)?
        .all()
        .map_err(|reason| externals.error(tensor, reason))
}

/// Where the elements of a tensor are, as [`raw`] gives them. They are not read for it.
///
/// # Errors
/// Where they are not there, in two places, or not as many as its shape and type take, and where it is a segment.
pub fn data(tensor: &TensorProto, externals: &Externals) -> Result<Data> {
    if tensor.segment.is_some() {
        return Err(error(
            tensor,
            "it is a segment of a tensor, which cannot be read",
        ));
    }
    let inline = tensor.raw_data.clone().unwrap_or_default();
    let typed = has_typed_data(tensor);
    let elsewhere = is_external(tensor) || is_held(tensor);
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

/// The elements of the one field that the element type has, as bytes.
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
        // Packed bytes, which some writers extend by their sign.
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
    let convert = |&value| {
        convert(value).map_err(|_| error(tensor, format!("{value} is outside of its element type")))
    };
    values.iter().map(convert).collect()
}

/// The elements of a tensor of half, bfloat16, float or double, exactly.
///
/// # Errors
/// As [`Floats::new`], and where they cannot be read.
pub fn read_f64(tensor: &TensorProto, externals: &Externals) -> Result<ArrayD<f64>> {
    Floats::new(tensor, externals)?.all()
}

/// A tensor of floats whose elements are converted on demand.
///
/// ```
/// use ndarray::array;
/// use unfold::onnx::external::Externals;
/// use unfold::onnx::tensor::{self, DataType, Floats};
///
/// let weight = array![[1.0, 2.0], [3.0, 4.0]].into_dyn();
/// let tensor = tensor::make("weight", DataType::Float16, &weight.view())?;
/// assert_eq!(Floats::new(&tensor, &Externals::none())?.all()?, weight);
/// # Ok::<(), unfold::error::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Floats {
    name: String,
    data_type: DataType,
    shape: Vec<usize>,
    data: Data,
    /// The range of all elements, once they have been read.
    seen: Arc<OnceLock<ValueRange>>,
}

impl Floats {
    /// The elements of a tensor of half, bfloat16, float or double.
    ///
    /// # Errors
    /// As [`data`], and where they are no floats.
    pub fn new(tensor: &TensorProto, externals: &Externals) -> Result<Self> {
        let data_type = data_type(tensor)?;
        if !data_type.is_float() {
            return Err(error(
                tensor,
                format!("its elements are {data_type}, and not floats"),
            ));
        }
        let data = data(tensor, externals)?;
        let (name, shape) = (tensor.name().to_owned(), shape(tensor)?);
        Ok(Self {
            name,
            data_type,
            shape,
            data,
            seen: Arc::default(),
        })
    }

    /// The extents.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// All elements.
    ///
    /// # Errors
    /// Where they cannot be read.
    pub fn all(&self) -> Result<ArrayD<f64>> {
        let count = self.shape.iter().product();
        shaped(&self.name, &self.shape, self.numbers(0..count)?)
    }

    /// The elements in a range along an axis. No others are read.
    ///
    /// # Errors
    /// Where they cannot be read, or are not there.
    pub fn places(&self, axis: usize, range: Range<usize>) -> Result<ArrayD<f64>> {
        let Some(&extent) = self.shape.get(axis).filter(|&&extent| range.end <= extent) else {
            return Err(self.error(format!(
                "its shape {:?} has no places {range:?} there",
                self.shape
            )));
        };
        let inner: usize = self.shape[axis + 1..].iter().product();
        let rows: usize = self.shape[..axis].iter().product();
        let of_row =
            |row: usize| (row * extent + range.start) * inner..(row * extent + range.end) * inner;
        let mut values = Vec::with_capacity(rows * range.len() * inner);
        if matches!(self.data, Data::Made(_)) && rows > 1 && !range.is_empty() {
            // Computed data are computed part by part: each part once, and not once for each row.
            for part in self.data.parts() {
                let part = part.start / self.size()..part.end / self.size();
                let row = |at: usize| at / (extent * inner).max(1);
                let wanted = (row(part.start)..=row(part.end - 1))
                    .map(of_row)
                    .filter_map(|of_row| {
                        let (from, to) = (of_row.start.max(part.start), of_row.end.min(part.end));
                        (from < to).then(|| from - part.start..to - part.start)
                    });
                let wanted: Vec<_> = wanted.collect();
                if !wanted.is_empty() {
                    let numbers = self.numbers(part)?;
                    wanted
                        .into_iter()
                        .for_each(|run| values.extend_from_slice(&numbers[run]));
                }
            }
        } else {
            for row in 0..rows {
                values.append(&mut self.numbers(of_row(row))?);
            }
        }
        let mut shape = self.shape.clone();
        shape[axis] = range.len();
        shaped(&self.name, &shape, values)
    }

    fn numbers(&self, range: Range<usize>) -> Result<Vec<f64>> {
        let mut numbers = vec![0.0; range.len()];
        self.read(range.start, &mut Vec::new(), &mut numbers)?;
        Ok(numbers)
    }

    /// Elements in a row from one on, as many as there is room for; the buffer can be used again.
    ///
    /// # Errors
    /// Where they cannot be read.
    pub(crate) fn read(&self, at: usize, buffer: &mut Vec<u8>, into: &mut [f64]) -> Result<()> {
        self.read_bytes(at..at + into.len(), buffer)?;
        self.decode(buffer, into);
        Ok(())
    }

    /// The bytes of elements in a row.
    ///
    /// # Errors
    /// Where they cannot be read.
    pub(crate) fn read_bytes(&self, range: Range<usize>, buffer: &mut Vec<u8>) -> Result<()> {
        let size = self.size();
        buffer.resize(range.len() * size, 0);
        self.data
            .read_into(range.start * size, buffer)
            .map_err(|reason| self.error(reason))
    }

    /// The range of all elements, once they have been [read](Floats::see).
    pub(crate) fn seen(&self) -> Option<ValueRange> {
        self.seen.get().copied()
    }

    /// Tells how small and how large all of them are.
    pub(crate) fn see(&self, all: ValueRange) {
        // An earlier reader has stored the same range.
        let _ = self.seen.set(all);
    }

    /// How many bytes an element takes.
    pub(crate) fn size(&self) -> usize {
        self.data_type.byte_size(1).unwrap_or(1)
    }

    /// The numbers that are stored as these bytes, as many as there is room for.
    pub(crate) fn decode(&self, buffer: &[u8], into: &mut [f64]) {
        decode(self.data_type, buffer, into);
    }

    /// How small and how large the numbers are that are stored as these bytes.
    pub(crate) fn magnitudes(&self, buffer: &[u8]) -> ValueRange {
        magnitudes(self.data_type, buffer)
    }

    fn error(&self, reason: String) -> Error {
        Error::Tensor {
            tensor: self.name.clone(),
            reason,
        }
    }
}

/// The elements of a tensor of integers or bool, exactly.
///
/// # Errors
/// As [`raw`], and where they are no integers, or a uint64 is one that no `i64` holds.
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

#[multiversion(targets = "simd")]
fn decode(data_type: DataType, bytes: &[u8], into: &mut [f64]) {
    #[inline(always)]
    fn each<const N: usize>(bytes: &[u8], into: &mut [f64], value: impl Fn([u8; N]) -> f64) {
        for (number, &bytes) in into.iter_mut().zip(bytes.as_chunks().0) {
            *number = value(bytes);
        }
    }
    match data_type {
        DataType::Float16 => each(bytes, into, |bytes| f16::from_le_bytes(bytes).to_f64()),
        DataType::BFloat16 => each(bytes, into, |bytes| bf16::from_le_bytes(bytes).to_f64()),
        DataType::Float => each(bytes, into, |bytes| f64::from(f32::from_le_bytes(bytes))),
        _ => each(bytes, into, f64::from_le_bytes),
    }
}

/// Of their bits, which are fewer than those of the numbers that they are decoded to, and in the same order.
#[multiversion(targets = "simd")]
fn magnitudes(data_type: DataType, bytes: &[u8]) -> ValueRange {
    macro_rules! of {
        ($float:ty, $bits:ty) => {{
            let (mut least, mut largest) = (<$bits>::MAX, 0);
            for &bytes in bytes.as_chunks().0 {
                let size = <$bits>::from_le_bytes(bytes) & (<$bits>::MAX >> 1);
                largest = largest.max(size);
                // So that 0 is behind all.
                least = least.min(size.wrapping_sub(1));
            }
            [least.wrapping_add(1), largest].map(|bits| f64::from(<$float>::from_bits(bits)))
        }};
    }
    ValueRange::from_numbers(&match data_type {
        DataType::Float16 => of!(f16, u16),
        DataType::BFloat16 => of!(bf16, u16),
        DataType::Float => of!(f32, u32),
        _ => of!(f64, u64),
    })
}

fn split<T, const N: usize>(bytes: &[u8], value: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes
        .as_chunks()
        .0
        .iter()
        .map(|&bytes| value(bytes))
        .collect()
}

/// Unsigned elements of `bits` bits, the first in the lowest bits of a byte.
fn unpack(bytes: &[u8], count: usize, bits: usize) -> Vec<i64> {
    let per_byte = 8 / bits;
    let element =
        |index: usize| bytes[index / per_byte] >> (index % per_byte * bits) & ((1 << bits) - 1);
    (0..count).map(|index| element(index).into()).collect()
}

fn shaped<T>(name: &str, shape: &[usize], values: Vec<T>) -> Result<ArrayD<T>> {
    ArrayD::from_shape_vec(IxDyn(shape), values).map_err(|source| Error::Tensor {
        tensor: name.to_owned(),
        reason: source.to_string(),
    })
}

/// The bytes of a tensor with the given elements, each rounded once, to the nearest, ties to even.
///
/// Infinities and NaNs are kept.
///
/// ```
/// use ndarray::arr0;
/// use unfold::onnx::tensor::{DataType, encode_f64};
///
/// assert_eq!(encode_f64(DataType::Float16, &arr0(1.0).into_dyn().view())?, [0x00, 0x3c][..]);
/// assert!(encode_f64(DataType::Float16, &arr0(65520.0).into_dyn().view()).is_err());
/// # Ok::<(), unfold::onnx::tensor::NotRepresentable>(())
/// ```
///
/// # Errors
/// If a finite number would become an infinity, or if the element type is not half, bfloat16, float
/// or double.
pub fn encode_f64(
    data_type: DataType,
    values: &ArrayViewD<'_, f64>,
) -> std::result::Result<Bytes, NotRepresentable> {
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

/// Numbers as elements of a type of floats, each rounded once as [`encode_f64`] does it.
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

/// The bytes of all elements, in row-major order.
///
/// `store` returns the bytes of an element, and whether the stored number is finite. The error is
/// the first finite element whose stored number is not finite.
fn encode<const N: usize>(
    values: &ArrayViewD<'_, f64>,
    store: impl Fn(f64) -> ([u8; N], bool),
) -> std::result::Result<Vec<u8>, f64> {
    let values = values.as_standard_layout();
    let values = values.as_slice().unwrap_or_default();
    let mut out = vec![0; values.len() * N];
    let mut lost = false;
    for (slot, &value) in out.as_chunks_mut().0.iter_mut().zip(values) {
        let (bytes, finite) = store(value);
        *slot = bytes;
        lost |= value.is_finite() && !finite;
    }
    let first = || {
        values
            .iter()
            .copied()
            .find(|&value| value.is_finite() && !store(value).1)
    };
    lost.then(first).flatten().map_or(Ok(out), Err)
}

/// Rounds to `f32` such that rounding the result to a shorter type is the same as rounding the
/// number itself.
///
/// Rounding to odd: what no `f32` holds becomes the neighbour whose last bit is set, so that it is
/// never mistaken for the middle between two shorter numbers. Rounding to the nearest twice would
/// go astray there.
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

/// The loss of a number beyond one rounding of a normal number when it is stored as a type of
/// floats: its distance from the subnormal number, or the 0, that it becomes.
///
/// A float64 that is subnormal itself has lost its digits where it was computed.
///
/// ```
/// use unfold::onnx::tensor::{DataType, underflow};
///
/// assert_eq!(underflow(DataType::Float16, 0.1), 0.0);
/// assert_eq!(underflow(DataType::Float16, 2.25 / f64::from(1 << 24)), 0.25 / f64::from(1 << 24));
/// assert_eq!(underflow(DataType::Float16, 1e-9), 1e-9);
/// ```
pub fn underflow(data_type: DataType, value: f64) -> f64 {
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

/// A number after it is stored as a type of floats: the nearest representable one.
///
/// ```
/// use unfold::onnx::tensor::{DataType, rounded};
///
/// assert_eq!(rounded(DataType::BFloat16, 1.0 + 1.0 / 256.0), 1.0);
/// assert_eq!(rounded(DataType::Float, 0.1), f64::from(0.1_f32));
/// ```
pub fn rounded(data_type: DataType, value: f64) -> f64 {
    match data_type {
        DataType::Float16 => f16::from_f32(to_odd(value)).to_f64(),
        DataType::BFloat16 => bf16::from_f32(to_odd(value)).to_f64(),
        DataType::Float => f64::from(value as f32),
        _ => value,
    }
}

/// A tensor of floats, as [`encode_f64`] stores them.
///
/// # Errors
/// As [`encode_f64`].
pub fn make(name: &str, data_type: DataType, values: &ArrayViewD<'_, f64>) -> Result<TensorProto> {
    let bytes = encode_f64(data_type, values).map_err(|reason| Error::Tensor {
        tensor: name.to_owned(),
        reason: reason.to_string(),
    })?;
    Ok(stored(name, data_type, values.shape(), bytes))
}

/// A tensor of int64 with one axis, as shapes and axes are given to operators.
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

/// A tensor of which only type and shape are known.
pub(crate) fn without_elements(data_type: DataType, shape: &[usize]) -> TensorProto {
    TensorProto {
        dims: shape.iter().map(|&dim| dim as i64).collect(),
        data_type: Some(data_type.code()),
        ..Default::default()
    }
}

/// Appends numbers to the elements of a tensor, as [`encode_into`] writes them.
pub(crate) fn append(data_type: DataType, numbers: &[f64], bytes: &mut Vec<u8>) {
    let at = bytes.len();
    bytes.resize(at + numbers.len() * data_type.byte_size(1).unwrap_or(1), 0);
    encode_into(data_type, numbers, &mut bytes[at..]);
}

/// Puts other elements into a tensor, as [`raw`] gives them, and forgets where it kept its own.
///
/// # Errors
/// Where they are not as many as its shape and type take. Where the type is unknown, any number is fine.
pub fn replace(tensor: &mut TensorProto, bytes: Bytes) -> Result<()> {
    if DataType::from_code(tensor.data_type()).is_some() {
        expect_size(tensor, bytes.len())?;
    }
    clear(tensor);
    tensor.raw_data = Some(bytes);
    Ok(())
}

/// Takes the elements out of a tensor, and forgets where it kept them.
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

/// Sees to it that a tensor whose bytes are in the message has as many as its shape and type take, where they are known.
///
/// # Errors
/// Where it has others.
pub(crate) fn check_size(tensor: &TensorProto) -> Result<()> {
    let is_elsewhere = is_external(tensor) || is_held(tensor) || tensor.segment.is_some();
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

    fn encoded(data_type: DataType, value: f64) -> std::result::Result<u16, NotRepresentable> {
        let bytes = encode_f64(data_type, &arr0(value).into_dyn().view())?;
        Ok(u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    /// Every number of a 16-bit type, its middle to the next, and what lies just beside that
    /// middle.
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
    fn what_is_stored_is_as_small_and_as_large_as_its_numbers() {
        for data_type in [
            DataType::Float16,
            DataType::BFloat16,
            DataType::Float,
            DataType::Double,
        ] {
            for numbers in [
                &[0.0, -3.0, 0.3, -0.0, 2.0][..],
                &[0.0],
                &[f64::NEG_INFINITY, 1.0],
                &[1e-7, 0.0],
            ] {
                let mut bytes = vec![0; data_type.byte_size(numbers.len()).unwrap()];
                encode_into(data_type, numbers, &mut bytes);
                let stored: Vec<f64> = numbers
                    .iter()
                    .map(|&number| rounded(data_type, number))
                    .collect();
                assert_eq!(
                    magnitudes(data_type, &bytes),
                    ValueRange::from_numbers(&stored),
                    "{data_type} {numbers:?}"
                );
            }
            let mut bytes = vec![0; data_type.byte_size(2).unwrap()];
            encode_into(data_type, &[1.0, f64::NAN], &mut bytes);
            assert!(!magnitudes(data_type, &bytes).are_finite());
        }
    }

    #[test]
    fn halves_are_rounded_once() {
        rounds_to_nearest_even(
            DataType::Float16,
            |code| f16::from_bits(code).to_f64(),
            f16::MAX.to_bits(),
        );
    }

    #[test]
    fn bfloats_are_rounded_once() {
        rounds_to_nearest_even(
            DataType::BFloat16,
            |code| bf16::from_bits(code).to_f64(),
            bf16::MAX.to_bits(),
        );
    }

    #[test]
    fn what_is_not_finite_stays_what_it_is() {
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
    fn a_single_that_overflows_is_refused() {
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
    fn any_layout_is_stored_in_row_major_order() {
        let values = Array1::from_iter((0..6).map(f64::from))
            .into_shape_with_order((2, 3))
            .unwrap();
        let transposed = values.t().into_dyn();
        let tensor = make("x", DataType::Double, &transposed).unwrap();
        assert_eq!(tensor.dims, [3, 2]);
        assert_eq!(read_f64(&tensor, &Externals::none()).unwrap(), transposed);
    }

    #[test]
    fn codes_and_types_agree() {
        for code in -1..40 {
            assert_eq!(
                DataType::from_code(code).map(DataType::code),
                (1..=28).contains(&code).then_some(code)
            );
        }
    }

    #[test]
    fn sizes_are_packed_and_do_not_overflow() {
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
        let dims = |dims: &[i64]| {
            shape(&TensorProto {
                dims: dims.to_vec(),
                ..Default::default()
            })
        };
        assert!(
            dims(&[1 << 32, 1 << 32]).is_err()
                && dims(&[0, i64::MAX, 2]).is_err()
                && dims(&[-1]).is_err()
        );
        assert_eq!(dims(&[]).unwrap(), Vec::<usize>::new());
    }
}
