//! Normalizers, computed by mean, root and quotient as the specification defines them.

use ndarray::ArrayD;

use super::arithmetic::inverses;
use super::movement::transposed;
use super::reductions::{mean, squares};
use super::{Call, NotEvaluated, OpResult, combine};
use crate::onnx::tract_quirks::batch_norm_trains;
use crate::prove::field::{self, Arithmetic};
use crate::prove::field_value::{Elements, FieldValue, row_major, slice};
use crate::prove::roots::RootContext;

/// The attributes of LayerNormalization and RMSNormalization.
pub(super) const ATTRIBUTES: &[&str] = &["axis", "epsilon", "stash_type"];

fn both(operation: Arithmetic, a: &Elements, b: &Elements) -> Result<Elements, NotEvaluated> {
    combine(operation, a, b)
        .filter(|made| made.shape() == a.shape())
        .map(row_major)
        .ok_or(NotEvaluated::Misfit)
}

/// `1/√(x + ε)`
fn spread(moment: Elements, epsilon: u32, roots: &RootContext) -> Result<Elements, NotEvaluated> {
    inverses(&roots.of(&with(moment, epsilon)))
}

/// `x + ε`
fn with(moment: Elements, epsilon: u32) -> Elements {
    moment
        .mapv(|element| field::add(element, epsilon))
        .into_shared()
}

/// Returns `(x − mean)/√(variance + ε)` over these axes, the mean, and the inverse of the root.
fn standardized(
    x: &Elements,
    axes: &[usize],
    epsilon: u32,
    roots: &RootContext,
) -> Result<[Elements; 3], NotEvaluated> {
    let middle = row_major(mean(x, axes, true)?);
    let centred = both(Arithmetic::Sub, x, &middle)?;
    let variance = row_major(mean(&squares(&centred), axes, true)?);
    let part = spread(variance, epsilon, roots)?;
    Ok([both(Arithmetic::Mul, &centred, &part)?, middle, part])
}

/// Returns `x/√(mean(x²) + ε)`, and the inverse of the root.
fn rooted(
    x: &Elements,
    axes: &[usize],
    epsilon: u32,
    roots: &RootContext,
) -> Result<[Elements; 2], NotEvaluated> {
    let part = spread(row_major(mean(&squares(x), axes, true)?), epsilon, roots)?;
    Ok([both(Arithmetic::Mul, x, &part)?, part])
}

/// Multiplies normalized elements by the scale, and adds the shift. A missing parameter has no
/// effect.
fn affine(
    x: Elements,
    scale: Option<&Elements>,
    shift: Option<&Elements>,
) -> Result<FieldValue, NotEvaluated> {
    let x = scale.map_or(Ok(x.clone()), |scale| both(Arithmetic::Mul, &x, scale))?;
    Ok(FieldValue::Field(shift.map_or(Ok(x.clone()), |shift| {
        both(Arithmetic::Add, &x, shift)
    })?))
}

/// All axes from `axis` of the node to the last axis.
fn behind(call: &Call, rank: usize) -> Result<Vec<usize>, NotEvaluated> {
    Ok((call.axis(-1, rank)?..rank).collect())
}

/// The parameter of each channel, reshaped so that it broadcasts along the second axis of `x`.
fn by_channel(call: &Call, slot: usize, x: &Elements) -> Result<Elements, NotEvaluated> {
    let parameter = call.field(slot)?;
    let channels = *x.shape().get(1).ok_or(NotEvaluated::Uncovered)?;
    if parameter.shape() != [channels] {
        return Err(NotEvaluated::Misfit);
    }
    let mut shape = vec![1; x.ndim()];
    shape[1] = channels;
    parameter
        .clone()
        .into_shape_with_order(shape)
        .map_err(|_| NotEvaluated::Uncovered)
}

/// BatchNormalization outside of training mode.
pub(super) fn batch(call: &Call) -> OpResult {
    let x = call.field(0)?;
    let trains = batch_norm_trains(call.node, call.opset).map_err(|_| NotEvaluated::Uncovered)?;
    if trains || !call.flag("spatial", true)? || call.opset < 7 {
        return Err(NotEvaluated::Uncovered);
    }
    call.allowance.room(x.shape())?;
    let [scale, shift, middle, variance] = [1, 2, 3, 4].map(|slot| by_channel(call, slot, x));
    let variance = with(variance?, call.float("epsilon", 1e-5)?);
    let root = match call.is_settled(4) {
        true => call.roots.of_parameter(&variance),
        false => call.roots.of(&variance),
    };
    let part = inverses(&root)?;
    let normal = both(Arithmetic::Mul, &both(Arithmetic::Sub, x, &middle?)?, &part)?;
    Ok(vec![affine(normal, Some(&scale?), Some(&shift?))?])
}

pub(super) fn instance(call: &Call) -> OpResult {
    let x = call.field(0)?;
    call.allowance.room(x.shape())?;
    let spatial: Vec<usize> = (2..x.ndim()).collect();
    let [normal, ..] = standardized(x, &spatial, call.float("epsilon", 1e-5)?, call.roots)?;
    Ok(vec![affine(
        normal,
        Some(&by_channel(call, 1, x)?),
        Some(&by_channel(call, 2, x)?),
    )?])
}

/// The attributes of onnxruntime's GroupNorm.
pub(super) const OF_RUNTIME: &[&str] = &["activation", "channels_last", "epsilon", "groups"];

/// onnxruntime's GroupNorm, in which the channels may be the last axis.
pub(super) fn of_runtime(call: &Call) -> OpResult {
    let x = call.field(0)?;
    let rank = x.ndim();
    if call.attr("activation", 0)? != 0 || rank < 2 {
        return Err(NotEvaluated::Uncovered);
    }
    call.allowance.room(x.shape())?;
    let last = call.flag("channels_last", true)?;
    let order: Vec<usize> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
    let back: Vec<usize> = [0].into_iter().chain(2..rank).chain([1]).collect();
    let turned = if last {
        row_major(transposed(x, &order))
    } else {
        x.clone()
    };
    let normal = by_group(
        &turned,
        call.count("groups", 0)?,
        call.float("epsilon", 1e-5)?,
        call.roots,
    )?;
    let [scale, shift] = [1, 2].map(|slot| by_channel(call, slot, &turned));
    let made = affine(normal, Some(&scale?), Some(&shift?))?;
    Ok(vec![match made {
        FieldValue::Field(made) if last => FieldValue::field(transposed(&made, &back)),
        made => made,
    }])
}

/// Normalizes each group over its channels and all their places.
fn by_group(
    x: &Elements,
    groups: usize,
    epsilon: u32,
    roots: &RootContext,
) -> Result<Elements, NotEvaluated> {
    let &[samples, channels, ..] = x.shape() else {
        return Err(NotEvaluated::Uncovered);
    };
    if groups == 0 || !channels.is_multiple_of(groups) {
        return Err(NotEvaluated::Misfit);
    }
    let size = x.len() / (samples * groups).max(1);
    let apart = x
        .clone()
        .into_shape_with_order(vec![samples, groups, size])
        .map_err(|_| NotEvaluated::Uncovered)?;
    let [normal, ..] = standardized(&apart, &[2], epsilon, roots)?;
    normal
        .into_shape_with_order(x.shape())
        .map_err(|_| NotEvaluated::Uncovered)
}

/// GroupNormalization. Before operator set 21, the scale and the shift have an element for each
/// group.
pub(super) fn group(call: &Call) -> OpResult {
    let x = call.field(0)?;
    call.allowance.room(x.shape())?;
    let groups = call.count("num_groups", 0)?;
    let normal = by_group(x, groups, call.float("epsilon", 1e-5)?, call.roots)?;
    let scale = group_parameter(call, 1, x, groups)?;
    let shift = group_parameter(call, 2, x, groups)?;
    Ok(vec![affine(normal, Some(&scale), Some(&shift))?])
}

/// The scale or the shift of a GroupNormalization, with an element for each channel of `x`.
fn group_parameter(
    call: &Call,
    slot: usize,
    x: &Elements,
    groups: usize,
) -> Result<Elements, NotEvaluated> {
    if call.opset >= 21 {
        return by_channel(call, slot, x);
    }
    let of_groups = call.field(slot)?;
    if of_groups.shape() != [groups] {
        return Err(NotEvaluated::Misfit);
    }
    let each = x.shape()[1] / groups;
    let of_channels: Vec<u32> = slice(of_groups)
        .iter()
        .flat_map(|&element| std::iter::repeat_n(element, each))
        .collect();
    let mut shape = vec![1; x.ndim()];
    shape[1] = of_channels.len();
    ArrayD::from_shape_vec(shape, of_channels)
        .map(row_major)
        .map_err(|_| NotEvaluated::Uncovered)
}

pub(super) fn layer(call: &Call) -> OpResult {
    let x = call.field(0)?;
    call.allowance.room(x.shape())?;
    let axes = behind(call, x.ndim())?;
    let [normal, middle, part] = standardized(x, &axes, call.float("epsilon", 1e-5)?, call.roots)?;
    let made = affine(normal, call.optional_field(1)?, call.optional_field(2)?)?;
    Ok(vec![
        made,
        FieldValue::Field(middle),
        FieldValue::Field(part),
    ])
}

/// RMSNormalization and SimplifiedLayerNormalization.
pub(super) fn rms(call: &Call) -> OpResult {
    let x = call.field(0)?;
    call.allowance.room(x.shape())?;
    let axes = behind(call, x.ndim())?;
    let [normal, part] = rooted(x, &axes, call.float("epsilon", 1e-5)?, call.roots)?;
    Ok(vec![
        affine(normal, call.optional_field(1)?, None)?,
        FieldValue::Field(part),
    ])
}

/// SkipLayerNormalization and its simplified form: a sum, and the normalization of the sum. The sum
/// is also the last result.
pub(super) fn skip(call: &Call) -> OpResult {
    let simplified = call.op() == "SkipSimplifiedLayerNormalization";
    let mut sum = call.field(0)?.clone();
    call.allowance.room(sum.shape())?;
    sum = both(Arithmetic::Add, &sum, call.field(1)?)?;
    if let Some(bias) = call.optional_field(if simplified { 3 } else { 4 })? {
        sum = both(Arithmetic::Add, &sum, bias)?;
    }
    let last = [sum.ndim().checked_sub(1).ok_or(NotEvaluated::Uncovered)?];
    let epsilon = call.float("epsilon", 1e-12)?;
    let (made, middle, part) = if simplified {
        let [normal, part] = rooted(&sum, &last, epsilon, call.roots)?;
        (
            affine(normal, call.optional_field(2)?, None)?,
            part.clone(),
            part,
        )
    } else {
        let [normal, middle, part] = standardized(&sum, &last, epsilon, call.roots)?;
        (
            affine(normal, call.optional_field(2)?, call.optional_field(3)?)?,
            middle,
            part,
        )
    };
    Ok(vec![
        made,
        FieldValue::Field(middle),
        FieldValue::Field(part),
        FieldValue::Field(sum),
    ])
}
