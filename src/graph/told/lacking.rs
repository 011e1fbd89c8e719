//! Operators of ONNX that tract does not have.

use tract_onnx::tract_hir::internal::TDim;

use super::Asked;
use crate::graph::axes::axes;
use crate::graph::extents::{Shape, extent};

/// The extents of the first result of a node.
pub fn told(asked: &Asked) -> Option<Shape> {
    match asked.node.op_type() {
        "BitCast"
        | "CausalConvWithState"
        | "CumProd"
        | "ReverseSequence"
        | "RotaryEmbedding"
        | "TensorScatter" => asked.shape(0),
        "AffineGrid" => {
            // Of a size [N, C, H, W], the places of H and W.
            let size = asked.elements(1).filter(|size| [4, 5].contains(&size.len()))?;
            let places = Some(TDim::from(size.len() - 2));
            Some([&size[..1], &size[2..], &[places]].concat())
        }
        "CenterCropPad" => {
            let (mut shape, size) = (asked.shape(0)?, asked.elements(1)?);
            let changed = match asked.node.attr_ints("axes").ok()? {
                Some(list) => axes(list, shape.len()).ok()?,
                None => (0..shape.len()).collect(),
            };
            if changed.len() != size.len() {
                return None;
            }
            changed.into_iter().zip(size).for_each(|(axis, extent)| shape[axis] = extent);
            Some(shape)
        }
        "Col2Im" => {
            let (from, image, block) = (asked.shape(0)?, asked.elements(1)?, asked.elements(2)?);
            let [items, columns, _] = &from[..] else { return None };
            let channels = || {
                let block = block.iter().try_fold(1_usize, |all, dim| all.checked_mul(extent(dim)?))?;
                let columns = extent(columns)?;
                (block > 0 && columns % block == 0).then(|| TDim::from(columns / block))
            };
            Some([vec![items.clone(), channels()], image].concat())
        }
        // As many places as there are offsets for.
        "DeformConv" => {
            let (from, weight, offset) = (asked.shape(0)?, asked.shape(1)?, asked.shape(2)?);
            let places = offset.get(2..).filter(|_| offset.len() == from.len())?;
            Some([&from[..1], &weight[..1], places].concat())
        }
        "Det" => {
            let mut shape = asked.shape(0)?;
            shape.truncate(shape.len().checked_sub(2)?);
            Some(shape)
        }
        "LinearAttention" => {
            let (mut shape, values) = (asked.shape(0)?, asked.shape(2)?);
            let heads = |name: &str| asked.node.attr_i(name).ok()?.filter(|&heads| heads > 0);
            let each = values.last()?.as_ref()?.to_i64().ok()?.checked_div(heads("kv_num_heads")?)?;
            *shape.last_mut()? = Some(TDim::from(each.checked_mul(heads("q_num_heads")?)?));
            Some(shape)
        }
        "MaxRoiPool" => pooled(asked, asked.node.attr_ints("pooled_shape").ok()??),
        "RoiAlign" => {
            let side = |name: &str| Some(asked.node.attr_i(name).ok()?.unwrap_or(1));
            pooled(asked, &[side("output_height")?, side("output_width")?])
        }
        "SwiGLU" => super::broadcast(&asked.shape(0)?, &asked.shape(1)?),
        _ => None,
    }
}

/// One image for each region, whose places are told.
fn pooled(asked: &Asked, places: &[i64]) -> Option<Shape> {
    let (from, regions) = (asked.shape(0)?, asked.shape(1)?);
    let ends = vec![regions.first()?.clone(), from.get(1)?.clone()];
    Some([ends, places.iter().map(|&place| Some(TDim::from(place))).collect()].concat())
}
