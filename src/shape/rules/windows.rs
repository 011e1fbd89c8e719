//! The rules for convolutions, pooling and resizing.

use tract_onnx::tract_hir::infer::Factoid;
use tract_onnx::tract_hir::internal::TDim;

use crate::onnx::operator::{RESIZE_TO_SIZES, factors_at};
use crate::shape::extents::{Shape, extent};
use crate::shape::rules::NodeQuery;

/// The window of a convolution along a spatial axis.
struct ConvolutionWindow {
    /// The number of places from the first to the last one that the window reads.
    reach: i64,
    /// The sum of the paddings on both sides.
    padding: i64,
    stride: i64,
}

impl NodeQuery<'_> {
    /// The extents of the result of a convolution. Its rank is that of the weight.
    pub(super) fn convolution(&self) -> Option<Shape> {
        let weight = self
            .shape(self.second_operand())
            .filter(|weight| weight.len() > 2)?;
        let op = self.node.op_type();
        let group = self.int("group", 1)?;
        let items = self.shape(0).and_then(|from| from.first()?.clone());
        let channels = match op {
            "ConvTranspose" => weight[1].clone().map(|channels| channels * group),
            _ => weight[0].clone(),
        };
        let mut shape = vec![items, channels];
        for axis in 2..weight.len() {
            shape.push(match op {
                // tract infers these extents.
                "Conv" => None,
                "ConvTranspose" => self.transposed_extent(axis),
                _ => self.convolved_extent(axis),
            });
        }
        Some(shape)
    }

    /// The window along a spatial axis; `None` if the padding depends on the extent.
    fn window(&self, axis: usize) -> Option<ConvolutionWindow> {
        let space = axis.checked_sub(2)?;
        if !matches!(self.node.attr_s("auto_pad").ok()?, None | Some("NOTSET")) {
            return None;
        }
        let weight = self.shape(self.second_operand())?;
        let kernel = extent(weight.get(axis)?)? as i64;
        let rank = weight.len() - 2;
        let reach = (kernel - 1)
            .checked_mul(self.number_at("dilations", space, 1)?)?
            .checked_add(1)?;
        let before = self.number_at("pads", space, 0)?;
        let behind = self.number_at("pads", space + rank, 0)?;
        Some(ConvolutionWindow {
            reach,
            padding: before.checked_add(behind)?,
            stride: self.number_at("strides", space, 1)?,
        })
    }

    /// An element of a list attribute.
    fn number_at(&self, name: &str, place: usize, default: i64) -> Option<i64> {
        match self.node.attr_ints(name).ok()? {
            None => Some(default),
            Some(list) => list.get(place).copied(),
        }
    }

    /// The extent of a spatial axis after a convolution. If the extent of the input is symbolic,
    /// `None` unless the stride is 1.
    fn convolved_extent(&self, axis: usize) -> Option<TDim> {
        let window = self.window(axis)?;
        let from = self.shape(0)?.get(axis)?.clone()?;
        let rest = (from + window.padding.checked_sub(window.reach)?).simplify();
        let steps = match window.stride {
            1 => rest,
            stride => {
                let rest = rest.to_i64().ok().filter(|&rest| rest >= 0)?;
                TDim::from(rest.checked_div(stride)?)
            }
        };
        Some((steps + 1).simplify())
    }

    /// The extent of a spatial axis after a transposed convolution.
    fn transposed_extent(&self, axis: usize) -> Option<TDim> {
        if self.has_attribute("output_shape") {
            return None;
        }
        let window = self.window(axis)?;
        let from = self.shape(0)?.get(axis)?.clone()?;
        let rest = window
            .reach
            .checked_add(self.number_at("output_padding", axis - 2, 0)?)?
            .checked_sub(window.padding)?;
        Some(((from - 1) * window.stride + rest).simplify())
    }

    fn has_attribute(&self, name: &str) -> bool {
        let mut attributes = self.node.attribute.iter();
        attributes.any(|attribute| attribute.name() == name)
    }

    /// The extents of the result of a pooling operator: the batch and the channels of the input,
    /// and `extent` for each spatial axis.
    pub(super) fn pool(&self, extent: Option<usize>) -> Option<Shape> {
        let mut shape = self.shape(0)?;
        for dim in shape.iter_mut().skip(2) {
            *dim = extent.map(TDim::from);
        }
        Some(shape)
    }

    /// The extents of the result of a Resize. If the node has sizes and they are known, the extents
    /// are these sizes. Otherwise they are the extents of the input times the factors.
    pub(super) fn resize(&self) -> Option<Shape> {
        let from = self.shape(0)?;
        let rank = from.len();
        // With these attributes, the sizes are only bounds, or belong only to some axes.
        if self.has_attribute("axes") || self.has_attribute("keep_aspect_ratio_policy") {
            return Some(vec![None; rank]);
        }
        let is_resize = self.node.op_type() == "Resize";
        if is_resize && self.opset >= RESIZE_TO_SIZES && self.has(3) {
            let sizes = self.elements(3).filter(|sizes| sizes.len() == rank);
            return Some(sizes.unwrap_or_else(|| vec![None; rank]));
        }
        let factors = self.scales_attribute().or_else(|| self.scales_input());
        let Some(factors) = factors.filter(|factors| factors.len() == rank) else {
            return Some(vec![None; rank]);
        };
        let pairs = from.into_iter().zip(factors);
        Some(pairs.map(|(dim, factor)| scaled(dim?, factor)).collect())
    }

    fn scales_attribute(&self) -> Option<Vec<f64>> {
        let scales = self.node.attr_floats("scales").ok()??;
        Some(scales.iter().copied().map(f64::from).collect())
    }

    fn scales_input(&self) -> Option<Vec<f64>> {
        let slot = factors_at(self.node.op_type(), self.opset);
        let scales = self.inputs.get(slot)?.as_ref()?.value.concretize()?;
        let scales = scales.cast_to::<f64>().ok()?;
        let scales = scales.to_plain_array_view::<f64>().ok()?;
        Some(scales.iter().copied().collect())
    }
}

/// The product of an extent and a factor, rounded down, if engines agree on it.
fn scaled(dim: TDim, factor: f64) -> Option<TDim> {
    if factor.fract() == 0.0 && (1.0..=f64::from(u16::MAX)).contains(&factor) {
        return Some((dim * factor as i64).simplify());
    }
    // Some engines multiply in float32, others in float64.
    let whole = extent(&Some(dim))?;
    let single = f64::from((whole as f32 * factor as f32).floor());
    let double = (whole as f64 * factor).floor();
    let is_agreed = single == double && (0.0..f64::from(i32::MAX)).contains(&double);
    is_agreed.then(|| TDim::from(double as i64))
}
