//! Reads the operators that average or add places.

use super::Mean;
use crate::affine::propagate::rules::window::meet_the_image;
use crate::analysis::Analysis;
use crate::analysis::node_view::At;
use crate::ir::NodeId;
use crate::onnx::operator::AVERAGE_POOL;
use crate::passes::placement::layer::{are_all, is_wide};
use crate::shape::facts::extent;

/// The number of axes before the spatial axes.
const SPACE: usize = 2;

impl Mean {
    /// Reads a mean or a sum over places. `None` for another node, and for a constant.
    pub(super) fn read(analysis: &Analysis, node: NodeId) -> Option<Self> {
        let at = analysis.at(node);
        let mean = match analysis.graph.domain_op(node) {
            ("", "AveragePool") => average_pool(&at),
            ("", "GlobalAveragePool") => global_average_pool(&at),
            ("", "ReduceMean" | "ReduceSum") => reduction(&at),
            _ => None,
        };
        let output = analysis.graph.only_output(node)?;
        mean.filter(|_| is_wide(analysis, output) && !analysis.constants.is_constant(output))
    }
}

/// Reads an AveragePool. `None` unless it surely leaves fewer places.
fn average_pool(at: &At) -> Option<Mean> {
    at.only_attributes(AVERAGE_POOL).ok()?;
    let kernel = at.attr_ints("kernel_shape").ok()??;
    let strides = at
        .attr_ints("strides")
        .ok()?
        .filter(|strides| strides.len() == kernel.len())?;
    let pads = at
        .attr_ints("pads")
        .ok()?
        .unwrap_or_else(|| vec![0; 2 * kernel.len()]);
    let rank = at
        .rank(0)
        .ok()
        .filter(|&rank| rank == kernel.len() + SPACE && pads.len() == 2 * kernel.len())?;
    let automatic = at.attr_text("auto_pad", "NOTSET").ok()?;
    let is_padded = !are_all(at, "pads", 0)? || !matches!(automatic, "NOTSET" | "VALID");
    let counts_border = at.flag("count_include_pad", false).ok()? && is_padded;
    let rounds_up = at.flag("ceil_mode", false).ok()?;
    // If the padding is narrower than a window, no image has more windows than places.
    let is_narrow = (0..kernel.len())
        .all(|axis| pads[axis].saturating_add(pads[kernel.len() + axis]) < kernel[axis]);
    let fewer = product(&strides).filter(|&fewer| fewer > 1 && is_narrow)?;
    let is_mean = !counts_border && !rounds_up && meet_the_image(at).ok()?;
    Some(Mean {
        node: at.node,
        value: at.input(0).ok()?,
        axes: (SPACE..rank).collect(),
        slices: vec![],
        keeps_axes: true,
        sum_of_weights: is_mean.then_some(1),
        taps: Some(product(&kernel)?),
        fewer: Some(fewer),
    })
}

/// The product of positive numbers. `None` if one of them is not positive, or if the product is too
/// large.
fn product(numbers: &[i64]) -> Option<usize> {
    numbers.iter().try_fold(1_usize, |product, &number| {
        product.checked_mul(usize::try_from(number).ok().filter(|&number| number > 0)?)
    })
}

/// Reads a GlobalAveragePool. `None` if its rank is unknown.
fn global_average_pool(at: &At) -> Option<Mean> {
    at.only_attributes(&[]).ok()?;
    let rank = at.rank(0).ok().filter(|&rank| rank > SPACE)?;
    Some(Mean {
        node: at.node,
        value: at.input(0).ok()?,
        axes: (SPACE..rank).collect(),
        slices: vec![],
        keeps_axes: true,
        sum_of_weights: Some(1),
        taps: None,
        fewer: None,
    })
}

/// Reads a ReduceMean or a ReduceSum. `None` if its axes are unknown, or if it reduces none.
fn reduction(at: &At) -> Option<Mean> {
    at.only_attributes(&["axes", "keepdims", "noop_with_empty_axes"])
        .ok()?;
    let shape = at.shape(0).ok()?;
    let (axes, keeps_axes) = at.reduction(shape.len()).ok()?;
    let sum_of_weights = match at.graph.is(at.node, "ReduceMean") {
        true => Some(1),
        false => axes.iter().try_fold(1_usize, |count, &axis| {
            count.checked_mul(extent(&shape[axis])?)
        }),
    };
    (!axes.is_empty()).then_some(Mean {
        node: at.node,
        value: at.input(0).ok()?,
        axes,
        slices: vec![],
        keeps_axes,
        sum_of_weights,
        taps: None,
        fewer: None,
    })
}
