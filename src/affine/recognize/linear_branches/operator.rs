//! The operator that replaces several branches.

use crate::affine::recognize::View;
use crate::affine::recognize::linear_branches::read::{Branch, Windowed};
use crate::affine::recognize::linear_branches::window::{Taps, Window};
use crate::ir::builder::{self, Maker};
use crate::onnx::proto::AttributeProto;
use crate::refusal::Reason;

/// Writes an operator on `x` with the metadata of `like`. Returns the name of its result.
///
/// # Errors
/// `like` has no weight, or the element type or the shape of its weight is not known.
pub(super) fn operator(
    view: &View,
    like: &Windowed,
    x: &str,
    branch: &Branch,
    maker: &mut Maker,
) -> Result<String, Reason> {
    let graph = view.graph;
    let old = graph.input(like.node, 1).ok_or(Reason::NotConstant)?;
    let data_type = view
        .facts
        .data_type(old)
        .ok_or_else(|| Reason::Constant("its element type is not known".into()))?;
    let is_product = like.is_product(view);
    let turned = if is_product {
        branch.weight.turned()
    } else {
        Some(branch.weight.clone())
    };
    let turned = turned.ok_or(Reason::UnknownShape)?;
    let contracted = if is_product {
        vec![0]
    } else {
        (1..turned.rank()).collect()
    };
    let weight = maker.weight(data_type, &turned, graph.value_name(old), contracted);
    let bias = branch
        .bias
        .as_ref()
        .map(|bias| maker.floats(data_type, bias));
    Ok(match bias {
        Some(bias) if is_product => {
            let product = maker.op("MatMul", &[x, &weight], vec![]);
            maker.op("Add", &[&product, &bias], vec![])
        }
        bias => {
            let inputs: Vec<&str> = [x, &weight].into_iter().chain(bias.as_deref()).collect();
            let op = graph.node(like.node).op_type();
            maker.op(
                op,
                &inputs,
                if is_product {
                    vec![]
                } else {
                    attributes(&branch.window)
                },
            )
        }
    })
}

/// The attributes of a Conv with this window. A window without axes is that of a Gemm.
fn attributes(window: &Window) -> Vec<AttributeProto> {
    let axes = &window.axes;
    if axes.is_empty() {
        return vec![builder::int("transB", 1)];
    }
    let pads = [
        list(axes, |axis| axis.before),
        list(axes, |axis| axis.after),
    ]
    .concat();
    vec![
        builder::ints("dilations", &list(axes, |axis| axis.dilation)),
        builder::int("group", window.group as i64),
        builder::ints("kernel_shape", &list(axes, |axis| axis.kernel)),
        builder::ints("pads", &pads),
        builder::ints("strides", &list(axes, |axis| axis.stride)),
    ]
}

/// One number for each spatial axis.
fn list(axes: &[Taps], number: fn(&Taps) -> i64) -> Vec<i64> {
    axes.iter().map(number).collect()
}
