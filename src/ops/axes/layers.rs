//! The [`AxisRead`]s of convolutions, pools and resizing. Samples are independent, and channels
//! depend on each other within groups.

use super::{AxisRead, first, kept};
use crate::analysis::node_view::At;
use crate::analysis::resize::keeps_unscaled_axes;
use crate::onnx::operator::{
    AVERAGE_POOL, CONV, MAX_POOL, RESIZE_TO_SIZES, attributes, factors_at,
};
use crate::refusal::Reason;
use crate::shape::facts::same;

pub(super) fn read(at: &At, op: &str, axis: usize) -> Option<Result<Vec<AxisRead>, Reason>> {
    Some(match op {
        "Conv" => conv(at, axis),
        "ConvTranspose" => samples(
            at,
            axis,
            &[CONV, &["output_padding", "output_shape"]].concat(),
        ),
        "AveragePool" => pool(at, axis, AVERAGE_POOL),
        "MaxPool" => pool(at, axis, MAX_POOL),
        "LpPool" => pool(at, axis, &[MAX_POOL, &["p"]].concat()),
        "DepthToSpace" | "SpaceToDepth" => samples(at, axis, &["blocksize", "mode"]),
        "Resize" => resize(at, axis),
        _ => return None,
    })
}

/// The reads of an operator along the batch axis, if it computes samples independently. Returns an
/// error for all other axes.
fn samples(at: &At, axis: usize, attributes: &[&str]) -> Result<Vec<AxisRead>, Reason> {
    at.only_attributes(attributes)?;
    if axis > 0 {
        return Err(at.not_linear());
    }
    Ok(kept(at, 0))
}

fn pool(at: &At, axis: usize, attributes: &[&str]) -> Result<Vec<AxisRead>, Reason> {
    at.only_attributes(attributes)?;
    if axis > 1 {
        Err(at.not_linear())
    } else {
        Ok(kept(at, axis))
    }
}

fn conv(at: &At, axis: usize) -> Result<Vec<AxisRead>, Reason> {
    at.only_attributes(CONV)?;
    match axis {
        0 => Ok(kept(at, 0)),
        1 => {
            let channels = [at.extent(0, 1)?, at.extent(1, 0)?];
            let group = usize::try_from(at.attr("group", 1)?).map_err(|_| Reason::UnknownShape)?;
            let read = match group {
                1 => AxisRead::All,
                _ if channels == [group; 2] => AxisRead::Same(1),
                _ => return Err(Reason::Attribute("group".into())),
            };
            Ok(first(at, read, AxisRead::Same(0)))
        }
        _ if is_pointwise(at, axis)? => Ok(kept(at, axis)),
        _ => Err(at.not_linear()),
    }
}

/// Whether place `i` of a convolution's result along this spatial axis reads only place `i` of the
/// input.
fn is_pointwise(at: &At, axis: usize) -> Result<bool, Reason> {
    let place = axis - 2;
    let spatial = at.rank(0)?.checked_sub(2).ok_or(Reason::UnknownShape)?;
    let strides = at.attr_ints("strides")?;
    let has_stride_one = strides.is_none_or(|strides| strides.get(place) == Some(&1));
    let pads = at
        .attr_ints("pads")?
        .unwrap_or_else(|| vec![0; 2 * spatial]);
    let is_unpadded = pads.len() == 2 * spatial && pads[place] == 0 && pads[place + spatial] == 0;
    let has_given_pads = matches!(at.attr_text("auto_pad", "NOTSET")?, "NOTSET" | "VALID");
    Ok(at.extent(1, axis)? == 1 && has_stride_one && is_unpadded && has_given_pads)
}

/// The reads of a Resize. Along an axis that the Resize does not scale, place `i` reads place `i`.
/// Returns an error for scaled axes, and for the two coordinate transformations that change
/// unscaled axes too.
fn resize(at: &At, axis: usize) -> Result<Vec<AxisRead>, Reason> {
    at.only_attributes(attributes("Resize").unwrap_or_default())?;
    let keeps_ratio = at.attr_text("keep_aspect_ratio_policy", "stretch")? != "stretch";
    let is_plain = keeps_unscaled_axes(at)? && at.attr_ints("axes")?.is_none();
    if !is_plain || keeps_ratio || at.opset() < RESIZE_TO_SIZES {
        return Err(at.not_linear());
    }
    let is_kept = match at.input(3) {
        Ok(_) => same(
            at.shape(0)?.get(axis).unwrap_or(&None),
            at.output_shape(0)?.get(axis).unwrap_or(&None),
        ),
        Err(_) => {
            let factors = at.numbers(factors_at("Resize", at.opset()))?;
            factors.view().iter().nth(axis) == Some(&1.0)
        }
    };
    if is_kept {
        Ok(kept(at, axis))
    } else {
        Err(at.not_linear())
    }
}
