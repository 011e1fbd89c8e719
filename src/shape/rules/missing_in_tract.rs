//! The rules for operators of ONNX that tract lacks or infers incorrectly.

use tract_onnx::tract_hir::internal::TDim;

use crate::ir::axes::{axes, axis};
use crate::onnx::operator::input_at;
use crate::onnx::proto::NodeProto;
use crate::shape::extents::{Shape, extent};
use crate::shape::rules::{NodeQuery, broadcast};

/// The extents of the first output of a node.
pub(super) fn first_output(query: &NodeQuery) -> Option<Shape> {
    match query.node.op_type() {
        "BitCast"
        | "CausalConvWithState"
        | "CumProd"
        | "ReverseSequence"
        | "RotaryEmbedding"
        | "TensorScatter" => query.shape(0),
        "AffineGrid" => {
            // The size is `[N, C, H, W]` or `[N, C, D, H, W]`. The last axis of the result has an
            // element for each spatial axis.
            let size = query
                .elements(1)
                .filter(|size| [4, 5].contains(&size.len()))?;
            let places = Some(TDim::from(size.len() - 2));
            Some([&size[..1], &size[2..], &[places]].concat())
        }
        "CenterCropPad" => center_crop_pad(query),
        "Col2Im" => {
            let (from, image, block) = (query.shape(0)?, query.elements(1)?, query.elements(2)?);
            let [items, columns, _] = &from[..] else {
                return None;
            };
            let channels = channels_of_columns(columns, &block);
            Some([vec![items.clone(), channels], image].concat())
        }
        // The result has the spatial extents of the offsets.
        "DeformConv" => {
            let (from, weight, offset) = (query.shape(0)?, query.shape(1)?, query.shape(2)?);
            let places = offset.get(2..).filter(|_| offset.len() == from.len())?;
            Some([&from[..1], &weight[..1], places].concat())
        }
        "Det" => {
            let mut shape = query.shape(0)?;
            shape.truncate(shape.len().checked_sub(2)?);
            Some(shape)
        }
        "DFT" => transformed(query),
        "LinearAttention" => {
            let (mut shape, values) = (query.shape(0)?, query.shape(2)?);
            *shape.last_mut()? = Some(query.width_of_heads(values.last()?.clone())?);
            Some(shape)
        }
        "MaxRoiPool" => pooled(query, query.node.attr_ints("pooled_shape").ok()??),
        "RoiAlign" => {
            let (height, width) = (
                query.int("output_height", 1)?,
                query.int("output_width", 1)?,
            );
            pooled(query, &[height, width])
        }
        "SwiGLU" => broadcast(&query.shape(0)?, &query.shape(1)?),
        _ => None,
    }
}

/// The extents of the result of a CenterCropPad. The axes that the node lists get the given
/// extents.
fn center_crop_pad(query: &NodeQuery) -> Option<Shape> {
    let (mut shape, size) = (query.shape(0)?, query.elements(1)?);
    let changed = match query.node.attr_ints("axes").ok()? {
        Some(list) => axes(list, shape.len()).ok()?,
        None => (0..shape.len()).collect(),
    };
    if changed.len() != size.len() {
        return None;
    }
    changed
        .into_iter()
        .zip(size)
        .for_each(|(axis, extent)| shape[axis] = extent);
    Some(shape)
}

/// The number of channels of the result of a Col2Im: the extent `columns` divided by the number of
/// elements of a block. `None` if the quotient is unknown or not an integer.
fn channels_of_columns(columns: &Option<TDim>, block: &Shape) -> Option<TDim> {
    let block = block
        .iter()
        .try_fold(1_usize, |all, dim| all.checked_mul(extent(dim)?))?;
    let columns = extent(columns)?;
    (block > 0 && columns % block == 0).then(|| TDim::from(columns / block))
}

/// The slot of the input whose element type the first output has; `None` for operators without such
/// a rule.
pub(super) fn typed_like(node: &NodeProto) -> Option<usize> {
    match node.op() {
        (
            "",
            "AffineGrid"
            | "CausalConvWithState"
            | "CenterCropPad"
            | "Col2Im"
            | "CumProd"
            | "DFT"
            | "DeformConv"
            | "Det"
            | "LinearAttention"
            | "MaxRoiPool"
            | "ReverseSequence"
            | "RoiAlign"
            | "RotaryEmbedding"
            | "SwiGLU"
            | "TensorScatter",
        ) => Some(0),
        // The result has the type of the scales, which are input 2.
        ("com.microsoft", "GatherBlockQuantized") => Some(2),
        (
            "com.microsoft",
            "QLinearAdd"
            | "QLinearAveragePool"
            | "QLinearGlobalAveragePool"
            | "QLinearLeakyRelu"
            | "QLinearMul"
            | "QLinearReduceMean"
            | "QLinearSigmoid"
            | "QLinearSoftmax",
        ) => Some(0),
        ("com.microsoft", "QLinearConcat" | "QLinearWhere") => Some(1),
        // The result has the type of its zero point, which is input 7 or 8.
        ("", "QLinearConv") => Some(7),
        ("com.microsoft", "QGemm") => Some(8),
        _ => None,
    }
}

/// The extents of the result of a Fourier transform. The transformed axis keeps its length, or
/// about half of it if the other half is redundant. The last axis has the real and the imaginary
/// part, or only the real part.
fn transformed(query: &NodeQuery) -> Option<Shape> {
    let mut shape = query.shape(0)?;
    let (inverse, onesided) = (query.is_set("inverse")?, query.is_set("onesided")?);
    let along = match input_at("DFT", "axis", query.opset) {
        None => query.int("axis", 1)?,
        Some(slot) if query.has(slot) => query.elements(slot)?.first()?.as_ref()?.to_i64().ok()?,
        Some(_) => -2,
    };
    let along = axis(along, shape.len())
        .ok()
        .filter(|&along| along + 1 < shape.len())?;
    let length = match query.has(1) {
        true => query.elements(1).and_then(|length| length.first()?.clone()),
        false if inverse && onesided => None,
        false => shape[along].clone(),
    };
    shape[along] = match onesided && !inverse {
        true => length.map(|length| (length / 2 + 1).simplify()),
        false => length,
    };
    *shape.last_mut()? = Some(TDim::from(if inverse && onesided { 1 } else { 2 }));
    Some(shape)
}

/// The extents of the result of a pooling operator that returns an image of the extents `places`
/// for each region.
fn pooled(query: &NodeQuery, places: &[i64]) -> Option<Shape> {
    let (from, regions) = (query.shape(0)?, query.shape(1)?);
    let mut shape = vec![regions.first()?.clone(), from.get(1)?.clone()];
    shape.extend(places.iter().map(|&place| Some(TDim::from(place))));
    Some(shape)
}
