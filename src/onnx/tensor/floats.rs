//! Floating-point tensors whose elements are converted on demand.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use half::{bf16, f16};
use multiversion::multiversion;
use ndarray::ArrayD;

use crate::error::{Error, Result};
use crate::onnx::data::Data;
use crate::onnx::element::error;
use crate::onnx::external_data::Externals;
use crate::onnx::proto::TensorProto;
use crate::onnx::tensor::{DataType, data, data_type, shape, shaped};
use crate::onnx::value_range::ValueRange;

/// A floating-point tensor whose elements are converted on demand.
#[derive(Debug, Clone)]
pub(crate) struct Floats {
    name: String,
    data_type: DataType,
    shape: Vec<usize>,
    data: Data,
    /// The range of the magnitudes of all elements, once they have been read.
    seen: Arc<OnceLock<ValueRange>>,
}

impl Floats {
    /// Creates a reader of the elements of a tensor of float16, bfloat16, float or double. No
    /// elements are read yet.
    ///
    /// # Errors
    /// The errors of [`data`], or if the element type is not a floating-point type.
    pub(crate) fn new(tensor: &TensorProto, externals: &Externals) -> Result<Self> {
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
    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Reads all elements.
    ///
    /// # Errors
    /// If the elements cannot be read.
    pub(crate) fn all(&self) -> Result<ArrayD<f64>> {
        let count = self.shape.iter().product();
        shaped(&self.name, &self.shape, self.numbers(0..count)?)
    }

    /// Reads the elements of a range along an axis, and no others.
    ///
    /// # Errors
    /// If the elements cannot be read, or if the range exceeds the axis.
    pub(crate) fn places(&self, axis: usize, range: Range<usize>) -> Result<ArrayD<f64>> {
        if self
            .shape
            .get(axis)
            .is_none_or(|&extent| range.end > extent)
        {
            return Err(self.error(format!(
                "its shape {:?} has no places {range:?} there",
                self.shape
            )));
        }
        let rows: usize = self.shape[..axis].iter().product();
        let runs = Runs::along(&self.shape, axis, &range);
        let mut values = Vec::with_capacity(rows * runs.wanted.len());
        if self.is_computed() && rows > 1 && !range.is_empty() {
            // If the data is computed, whole parts are read, so that each part is computed once
            // instead of once for each row.
            for part in self.data.parts() {
                let part = part.start / self.size()..part.end / self.size();
                let wanted = runs.within(&part);
                if !wanted.is_empty() {
                    let numbers = self.numbers(part)?;
                    for run in wanted {
                        values.extend_from_slice(&numbers[run]);
                    }
                }
            }
        } else {
            for row in 0..rows {
                values.append(&mut self.numbers(runs.of_row(row))?);
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

    /// Reads `into.len()` consecutive elements, starting with element `at`. `buffer` is scratch
    /// memory that can be reused.
    ///
    /// # Errors
    /// If the elements cannot be read.
    pub(crate) fn read(&self, at: usize, buffer: &mut Vec<u8>, into: &mut [f64]) -> Result<()> {
        self.read_bytes(at..at + into.len(), buffer)?;
        self.decode(buffer, into);
        Ok(())
    }

    /// Reads the bytes of a range of elements.
    ///
    /// # Errors
    /// If the bytes cannot be read.
    pub(crate) fn read_bytes(&self, range: Range<usize>, buffer: &mut Vec<u8>) -> Result<()> {
        buffer.resize(range.len() * self.size(), 0);
        self.read_bytes_into(range.start, buffer)
    }

    /// Reads the bytes of the elements from index `begin` on, as many as `buffer` holds.
    ///
    /// # Errors
    /// If the bytes cannot be read.
    pub(crate) fn read_bytes_into(&self, begin: usize, buffer: &mut [u8]) -> Result<()> {
        self.data
            .read_into(begin * self.size(), buffer)
            .map_err(|reason| self.error(reason))
    }

    /// The range of the magnitudes of all elements, if [`Floats::see`] has stored it.
    pub(crate) fn seen(&self) -> Option<ValueRange> {
        self.seen.get().copied()
    }

    /// Stores the range of the magnitudes of all elements.
    pub(crate) fn see(&self, all: ValueRange) {
        // `set` fails only if an earlier reader has already stored the range, which is the same.
        let _ = self.seen.set(all);
    }

    /// Whether the elements are computed when they are read. Reading a few of them may then compute
    /// many.
    pub(crate) fn is_computed(&self) -> bool {
        matches!(self.data, Data::Made(_))
    }

    /// The number of bytes of an element.
    pub(crate) fn size(&self) -> usize {
        self.data_type.byte_size(1).unwrap_or(1)
    }

    /// Decodes the first `into.len()` elements of a byte string.
    pub(crate) fn decode(&self, buffer: &[u8], into: &mut [f64]) {
        decode(self.data_type, buffer, into);
    }

    /// The range of the magnitudes of encoded elements.
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

/// A range of elements within a row, which is selected in every row.
#[derive(Debug)]
pub(crate) struct Runs {
    /// The number of elements of a row.
    length: usize,
    /// The range of elements within each row.
    wanted: Range<usize>,
}

impl Runs {
    /// The elements of a tensor of these extents in a range along an axis.
    pub(crate) fn along(shape: &[usize], axis: usize, range: &Range<usize>) -> Self {
        let inner: usize = shape[axis + 1..].iter().product();
        Self {
            length: shape[axis] * inner,
            wanted: range.start * inner..range.end * inner,
        }
    }

    /// All elements of a tensor, which must not be empty.
    pub(crate) fn all(length: usize) -> Self {
        Self {
            length,
            wanted: 0..length,
        }
    }

    /// The index in the tensor of the selected element with index `at`, and the number of selected
    /// elements from there to the end of its row.
    pub(crate) fn locate(&self, at: usize) -> (usize, usize) {
        let (row, within) = (at / self.wanted.len(), at % self.wanted.len());
        let range = self.of_row(row);
        (range.start + within, self.wanted.len() - within)
    }

    fn of_row(&self, row: usize) -> Range<usize> {
        row * self.length + self.wanted.start..row * self.length + self.wanted.end
    }

    /// The parts of all selected ranges that are in `part`, which must not be empty. Each is given
    /// relative to the start of `part`.
    fn within(&self, part: &Range<usize>) -> Vec<Range<usize>> {
        let length = self.length.max(1);
        let rows = part.start / length..=(part.end - 1) / length;
        let runs = rows.map(|row| {
            let run = self.of_row(row);
            run.start.max(part.start)..run.end.min(part.end)
        });
        runs.filter(|run| !run.is_empty())
            .map(|run| run.start - part.start..run.end - part.start)
            .collect()
    }
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

/// The range of the magnitudes of encoded elements. Compares the bits of the encoded magnitudes.
/// These have the order of the magnitudes, and are shorter than decoded numbers.
#[multiversion(targets = "simd")]
fn magnitudes(data_type: DataType, bytes: &[u8]) -> ValueRange {
    macro_rules! of {
        ($float:ty, $bits:ty) => {{
            let (mut least, mut largest) = (<$bits>::MAX, 0);
            for &bytes in bytes.as_chunks().0 {
                let size = <$bits>::from_le_bytes(bytes) & (<$bits>::MAX >> 1);
                largest = largest.max(size);
                // Subtracting 1 wraps 0 to the largest value, so that zeros are ignored.
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

#[cfg(test)]
mod tests {
    use ndarray::array;

    use super::*;
    use crate::onnx::tensor::{self, encode_into, rounded};

    #[test]
    fn magnitudes_of_stored_floats_match_their_numbers() {
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
    fn halves_are_read_as_they_were_made() {
        let weight = array![[1.0, 2.0], [3.0, 4.0]].into_dyn();
        let tensor = tensor::make("weight", DataType::Float16, &weight.view()).unwrap();
        assert_eq!(
            Floats::new(&tensor, &Externals::none())
                .unwrap()
                .all()
                .unwrap(),
            weight
        );
    }
}
