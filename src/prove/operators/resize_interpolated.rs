//! Resize and Upsample with interpolation: an uninterpreted linear map along each axis.
//!
//! In every mode, each place of the result is a weighted sum of places of the input, and the
//! weights sum to 1. The weights are a function of the attributes, the factors or sizes, and the
//! extents. Random weights stand for the weights of every mode, so that models that agree with
//! random weights agree in every mode. Cropping, which writes constants, is not covered.

use ndarray::ArrayD;

use super::{Call, NotEvaluated, OpResult, axes, field};
use crate::onnx::operator::factors_at;
use crate::prove::field_value::{Elements, FieldValue, slice};
use crate::prove::matrices::{Extents, multiply};
use crate::prove::random::{Digest, Hash, Unknown};

/// The maximum rank of a resized image.
pub(crate) const AXES: usize = 8;

/// The result of a Resize with the digest `function` and this shape.
pub(crate) fn interpolated(call: &Call, function: Digest, shape: Option<&[usize]>) -> OpResult {
    let mut elements = call.field(0)?.clone();
    let is_cropped =
        call.text("coordinate_transformation_mode", "half_pixel")? == "tf_crop_and_resize";
    let shape =
        shape.filter(|shape| shape.len() == elements.ndim() && shape.len() <= AXES && !is_cropped);
    for (axis, &extent) in shape.ok_or(NotEvaluated::Uncovered)?.iter().enumerate() {
        let (rank, before) = (elements.ndim(), elements.shape()[axis]);
        if stays(call, axis, rank, before == extent)? {
            continue;
        }
        let mut hash = Hash::new(0, "weights of places");
        hash.digest(function);
        match factor(call, axis, rank)? {
            Some(factor) => hash.number(factor.into()),
            None => {
                for input in &call.inputs[1..] {
                    hash.digest(input.as_ref().map_or(0, |input| input.digest(0)));
                }
            }
        }
        for number in [axis, before, extent] {
            hash.number(number as u64);
        }
        elements = resized(call, &elements, axis, extent, Unknown::new(hash.finish()))?;
    }
    Ok(vec![FieldValue::Field(elements)])
}

/// The factor of an axis, which together with the extents determines the weights. If sizes are
/// given instead of factors, the extents determine the weights, and the result is 0. `None` if the
/// factor is unknown, or if the weights also depend on other axes.
fn factor(call: &Call, axis: usize, rank: usize) -> Result<Option<u32>, NotEvaluated> {
    let resized = match call.attr_ints("axes")? {
        Some(list) => axes(&list, rank)?,
        None => (0..rank).collect(),
    };
    let place = resized.iter().position(|&other| other == axis);
    if let Some(sizes) = call.optional(3) {
        let is_stretched = call.text("keep_aspect_ratio_policy", "stretch")? == "stretch";
        let is_whole = matches!(sizes, FieldValue::Int(sizes) if sizes.len() == resized.len());
        return Ok((is_stretched && is_whole).then_some(0));
    }
    let factors = call.optional_field(factors_at(call.op(), call.opset))?;
    let factors = factors.filter(|factors| factors.len() == resized.len());
    Ok(factors
        .zip(place)
        .and_then(|(factors, place)| slice(factors).get(place).copied()))
}

/// Whether a Resize leaves an axis unchanged: the axis is not resized, or its factor is 1. `same`
/// says whether the extents before and after the Resize are equal.
fn stays(call: &Call, axis: usize, rank: usize, same: bool) -> Result<bool, NotEvaluated> {
    let resized = match call.attr_ints("axes")? {
        Some(list) => axes(&list, rank)?,
        None => (0..rank).collect(),
    };
    let Some(place) = resized.iter().position(|&other| other == axis) else {
        return Ok(true);
    };
    if let Some(sizes) = call
        .optional(3)
        .filter(|sizes| sizes.len() == resized.len())
    {
        let fits = call.text("keep_aspect_ratio_policy", "stretch")? == "stretch";
        return Ok(same && fits && matches!(sizes, FieldValue::Int(_)));
    }
    let factors = call.optional_field(factors_at(call.op(), call.opset))?;
    let factor = factors.and_then(|factors| slice(factors).get(place));
    Ok(same && factor == Some(&1))
}

fn resized(
    call: &Call,
    elements: &Elements,
    axis: usize,
    extent: usize,
    unknown: Unknown,
) -> Result<Elements, NotEvaluated> {
    let mut shape = elements.shape().to_vec();
    let from = std::mem::replace(&mut shape[axis], extent);
    call.allowance.room(&shape)?;
    call.allowance.room(&[extent, from])?;
    call.allowance.products(&[shape.iter().product(), from])?;
    let mut weights: Vec<u32> = (0..extent * from)
        .map(|place| unknown.value(place as u64))
        .collect();
    for weights in weights.chunks_mut(from.max(1)) {
        let (last, others) = weights.split_last_mut().ok_or(NotEvaluated::Uncovered)?;
        *last = others
            .iter()
            .fold(1, |rest, &weight| field::sub(rest, weight));
    }
    let (rows, columns) = (
        shape[..axis].iter().product(),
        shape[axis + 1..].iter().product(),
    );
    let made = if columns == 1 {
        // Computes one product for all rows instead of one for each, because products with a single
        // column are slow.
        let across: Vec<u32> = (0..from * extent)
            .map(|place| weights[place % extent * from + place / extent])
            .collect();
        multiply(
            slice(elements),
            &across,
            &[(0, 0)],
            Extents {
                rows,
                inner: from,
                columns: extent,
            },
        )
    } else {
        let blocks: Vec<(usize, usize)> =
            (0..rows).map(|block| (0, block * from * columns)).collect();
        multiply(
            &weights,
            slice(elements),
            &blocks,
            Extents {
                rows: extent,
                inner: from,
                columns,
            },
        )
    };
    Ok(ArrayD::from_shape_vec(shape, made)
        .map_err(|_| NotEvaluated::Uncovered)?
        .into_shared())
}
