//! Products of quantized integers (codes) and scales: DequantizeLinear, and MatMulNBits and
//! GatherBlockQuantized of com.microsoft.

use ndarray::{ArrayD, IxDyn};

use super::gathers::gathered;
use super::products::matrices;
use super::uninterpreted::element_wise;
use super::{Call, NotEvaluated, OpResult, axis, combine, inverses};
use crate::prove::field::{self, Arithmetic};
use crate::prove::field_value::{Elements, FieldValue, Integers, row_major, slice};
use crate::prove::random::Digest;

/// The attributes of DequantizeLinear.
pub(super) const DEQUANTIZE: &[&str] = &["axis", "block_size", "output_dtype"];

/// The attributes of MatMulNBits.
pub(super) const N_BITS: &[&str] = &["K", "N", "accuracy_level", "bits", "block_size"];

/// The attributes of GatherBlockQuantized.
pub(super) const GATHER: &[&str] = &["bits", "block_size", "gather_axis", "quantize_axis"];

/// `(code − zero)·scale`.
pub(super) fn dequantize(call: &Call) -> OpResult {
    let codes = images(call, 0)?;
    let zeros = call.optional(2).map(|_| images(call, 2)).transpose()?;
    let scales = call.field(1)?.clone();
    // With one scale for all codes, the axis is ignored, and its default may exceed the rank.
    let along = match scales.len() {
        1 => 0,
        _ => call.axis(1, codes.ndim().max(1))?,
    };
    let block = call.count("block_size", 0)?;
    Ok(vec![FieldValue::field(scaled(
        call,
        &codes,
        zeros,
        scales,
        (along, block),
    )?)])
}

/// The images of the integers or floats of an input.
fn images(call: &Call, slot: usize) -> Result<Elements, NotEvaluated> {
    call.value(slot)?.images().ok_or(NotEvaluated::Uncovered)
}

/// Subtracts zeros from codes, and multiplies the differences by scales. `along` holds the axis
/// along which there are several scales, and the size of the blocks of codes that share a scale,
/// which is 0 without blocks.
fn scaled(
    call: &Call,
    codes: &Elements,
    zeros: Option<Elements>,
    scales: Elements,
    along: (usize, usize),
) -> Result<ArrayD<u32>, NotEvaluated> {
    call.allowance.room(codes.shape())?;
    let shape = codes.shape();
    let scales = spread(scales, shape, along)?;
    let zeros = zeros.map(|zeros| spread(zeros, shape, along)).transpose()?;
    let centred = match zeros {
        Some(zeros) => combine(Arithmetic::Sub, codes, &zeros).ok_or(NotEvaluated::Misfit)?,
        None => codes.to_owned(),
    };
    let scaled = combine(Arithmetic::Mul, &row_major(centred), &scales);
    scaled
        .filter(|scaled| scaled.shape() == shape)
        .ok_or(NotEvaluated::Misfit)
}

/// Reshapes or repeats scales so that they broadcast over codes of this shape.
fn spread(
    scales: Elements,
    shape: &[usize],
    (axis, block): (usize, usize),
) -> Result<Elements, NotEvaluated> {
    if scales.len() == 1 {
        let one = scales.into_shape_with_order(IxDyn(&[]));
        return one.map_err(|_| NotEvaluated::Misfit);
    }
    if block == 0 {
        let mut wide = vec![1; shape.len()];
        *wide.get_mut(axis).ok_or(NotEvaluated::Misfit)? = scales.len();
        let one = scales.into_shape_with_order(wide);
        return one.map_err(|_| NotEvaluated::Misfit);
    }
    let mut blocks = shape.to_vec();
    blocks[axis] = shape[axis].div_ceil(block);
    if scales.shape() != blocks {
        return Err(NotEvaluated::Misfit);
    }
    let repeated = ArrayD::from_shape_fn(shape, |mut place| {
        place[axis] /= block;
        scales[place]
    });
    Ok(row_major(repeated))
}

/// The product with a weight `[N, K]` of 4 or 8 bits, in blocks along K.
pub(super) fn product(call: &Call) -> OpResult {
    let [outputs, inputs, size] = [
        call.count("N", 0)?,
        call.count("K", 0)?,
        call.count("block_size", 0)?,
    ];
    let bits = call.count("bits", 4)?;
    if size == 0 || ![4, 8].contains(&bits) || call.optional(4).is_some() {
        return Err(NotEvaluated::Uncovered);
    }
    let blocks = inputs.div_ceil(size);
    call.allowance.room(&[inputs, outputs])?;
    let codes = unpacked(call.integers(1)?, bits);
    let scales = slice(call.field(2)?).to_vec();
    let zeros = zeros_of_blocks(call, bits, outputs, blocks)?;
    if codes.len() != outputs * blocks * size || scales.len() != outputs * blocks {
        return Err(NotEvaluated::Misfit);
    }
    let weight = ArrayD::from_shape_fn(IxDyn(&[inputs, outputs]), |place| {
        let (input, output) = (place[0], place[1]);
        let block = output * blocks + input / size;
        let code = field::of_int(codes[block * size + input % size]);
        field::mul(field::sub(code, zeros[block]), scales[block])
    });
    let made = matrices(call.field(0)?, &row_major(weight), call.allowance)?;
    let Some(bias) = call.optional_field(5)? else {
        return Ok(vec![FieldValue::field(made)]);
    };
    let sum = combine(Arithmetic::Add, &row_major(made), bias);
    Ok(vec![FieldValue::field(sum.ok_or(NotEvaluated::Misfit)?)])
}

/// The zero point of each block of a MatMulNBits. The input of zero points holds packed codes,
/// padded to whole bytes for each channel, or floats. Without this input, each zero point is half
/// of the range of codes.
fn zeros_of_blocks(
    call: &Call,
    bits: usize,
    outputs: usize,
    blocks: usize,
) -> Result<Vec<u32>, NotEvaluated> {
    let zeros = match call.optional(3) {
        None => vec![1 << (bits - 1); outputs * blocks],
        Some(FieldValue::Field(zeros)) => slice(zeros).to_vec(),
        Some(_) => {
            let row = (blocks * bits).div_ceil(8) * 8 / bits;
            let packed = unpacked(call.integers(3)?, bits);
            let rows = packed.chunks(row.max(1));
            rows.flat_map(|row| row.iter().take(blocks))
                .map(|&zero| field::of_int(zero))
                .collect()
        }
    };
    match zeros.len() == outputs * blocks {
        true => Ok(zeros),
        false => Err(NotEvaluated::Misfit),
    }
}

/// The codes of 4 or 8 bits that bytes hold, those in the lowest bits first.
fn unpacked(bytes: &Integers, bits: usize) -> Vec<i64> {
    let bytes = slice(bytes).iter();
    match bits {
        4 => bytes.flat_map(|byte| [byte & 15, byte >> 4]).collect(),
        _ => bytes.copied().collect(),
    }
}

/// Gathers parts of a table of 4-bit or 8-bit codes, and dequantizes them.
pub(super) fn gather(call: &Call) -> OpResult {
    let data = call.integers(0)?;
    let rank = data.ndim();
    let along = axis(call.attr("gather_axis", 0)?, rank)?;
    let quantized = axis(call.attr("quantize_axis", 1)?, rank)?;
    let (block, bits) = (call.count("block_size", 128)?, call.count("bits", 4)?);
    let scales = call.field(2)?.clone();
    let blocks = *scales.shape().get(quantized).ok_or(NotEvaluated::Misfit)?;
    let is_packed = is_packed(data, quantized, block, bits, blocks)?;
    let codes = |slot| codes_along_last(call.integers(slot)?, is_packed);
    let codes_of_table = codes(0)?;
    let zeros = match call.optional(3) {
        Some(_) => {
            let zeros = codes(3)?;
            // With an odd number of blocks, the last half byte is unused.
            Some(first_along_last(&zeros, scales.shape())?)
        }
        None if is_packed || bits == 8 => {
            Some(ArrayD::from_elem(IxDyn(&[]), 1 << (bits - 1)).into_shared())
        }
        None => None,
    };
    let table = scaled(call, &codes_of_table, zeros, scales, (quantized, block))?;
    gathered(call, &FieldValue::field(table), along)
}

/// Whether each byte of a table holds two codes, which follows from the table's extent and the
/// number of blocks.
fn is_packed(
    data: &Integers,
    quantized: usize,
    block: usize,
    bits: usize,
    blocks: usize,
) -> Result<bool, NotEvaluated> {
    let last = data.ndim() - 1;
    let extent = data.shape()[quantized];
    if block == 0 || quantized != last || ![4, 8].contains(&bits) {
        return Err(NotEvaluated::Uncovered);
    }
    let is_plain = extent.div_ceil(block) == blocks;
    let is_half = bits == 4 && (2 * extent).div_ceil(block) == blocks;
    match (is_plain, is_half) {
        (true, false) => Ok(false),
        (false, true) => Ok(true),
        _ => Err(NotEvaluated::Uncovered),
    }
}

/// The images of codes. If `is_packed`, each byte holds two codes that are adjacent along the last
/// axis.
fn codes_along_last(codes: &Integers, is_packed: bool) -> Result<Elements, NotEvaluated> {
    let mut shape = codes.shape().to_vec();
    let numbers = match is_packed {
        true => unpacked(codes, 4),
        false => slice(codes).to_vec(),
    };
    if let Some(last) = shape.last_mut().filter(|_| is_packed) {
        *last *= 2;
    }
    let images = numbers.into_iter().map(field::of_int).collect();
    let images = ArrayD::from_shape_vec(shape, images);
    images.map(row_major).map_err(|_| NotEvaluated::Misfit)
}

/// The elements, cut along the last axis to the extent in this shape.
fn first_along_last(elements: &Elements, shape: &[usize]) -> Result<Elements, NotEvaluated> {
    let wide = elements.shape();
    let fits = wide.len() == shape.len() && wide.iter().zip(shape).all(|(all, taken)| taken <= all);
    if !fits {
        return Err(NotEvaluated::Misfit);
    }
    let first = ArrayD::from_shape_fn(shape, |place| elements[place]);
    Ok(row_major(first))
}

/// QuantizeLinear: a function of the quotient of the value and the scale, and of the zero point.
///
/// # Errors
/// [`NotEvaluated::Uncovered`] with several scales, and [`NotEvaluated::Zero`] if the scale is 0.
pub(crate) fn quantize(call: &Call, function: Digest) -> OpResult {
    let scale = call.field(1)?;
    if scale.len() != 1 {
        return Err(NotEvaluated::Uncovered);
    }
    let scale = spread(scale.clone(), &[], (0, 0))?;
    let quotient = combine(Arithmetic::Mul, call.field(0)?, &inverses(&scale)?);
    let quotient = FieldValue::field(quotient.ok_or(NotEvaluated::Misfit)?);
    let inputs = vec![Some(quotient), call.optional(2).cloned()];
    element_wise(&Call { inputs, ..*call }, function, true)
}
