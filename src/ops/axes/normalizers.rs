//! The [`AxisRead`]s of normalizations, reductions and other operators that mix the places along
//! some axes, and keep those along the other axes independent.

use super::{AxisRead, aligned_places, broadcast, first};
use crate::analysis::node_view::At;
use crate::ir::axes::{axes, axis as counted};
use crate::onnx::operator::{Category, softmax_axis};
use crate::onnx::tract_quirks::batch_norm_trains;
use crate::refusal::Reason;

pub(super) fn read(
    at: &At,
    (is_own, op): (bool, &str),
    axis: usize,
) -> Option<Result<Vec<AxisRead>, Reason>> {
    Some(match op {
        "Hardmax" | "LogSoftmax" | "Softmax" if is_own => softmax(at, axis),
        "LayerNormalization" | "RMSNormalization" | "SimplifiedLayerNormalization" if is_own => {
            layer_norm(at, axis)
        }
        "SkipLayerNormalization" | "SkipSimplifiedLayerNormalization" if !is_own => {
            skip_norm(at, axis)
        }
        "BatchNormalization" if is_own => batch_norm(at, axis),
        "InstanceNormalization" if is_own => channels_alone(at, axis, &["epsilon"]),
        "GroupNormalization" if is_own => group_norm(at, axis),
        "LpNormalization" if is_own => along(at, axis, &["axis", "p"], -1),
        "MeanVarianceNormalization" if is_own => mean_variance(at, axis),
        "ArgMax" | "ArgMin" if is_own => arg(at, axis),
        "CumSum" if is_own => cumulated(at, axis),
        "GlobalAveragePool" | "GlobalMaxPool" if is_own => channels_alone(at, axis, &[]),
        _ if is_own && at.graph.category(at.node) == Some(Category::Reduction) => reduced(at, axis),
        _ => return None,
    })
}

/// The reads of an operator that mixes some axes of its first input. If `axis` is mixed, place `i`
/// of the result reads all places of the first input, otherwise only place `i`.
fn mixed(at: &At, axis: usize, is_mixed: bool) -> Vec<AxisRead> {
    let read = if is_mixed {
        AxisRead::All
    } else {
        AxisRead::Same(axis)
    };
    first(at, read, AxisRead::All)
}

/// The reads of a Softmax, which mixes the places along the axis of its attribute. Before operator
/// set 13, a Softmax also mixes the places along all later axes.
fn softmax(at: &At, axis: usize) -> Result<Vec<AxisRead>, Reason> {
    at.only_attributes(&["axis"])?;
    let (absent, alone) = softmax_axis(at.opset());
    let named = counted(at.attr("axis", absent)?, at.rank(0)?)?;
    Ok(mixed(at, axis, axis == named || (!alone && axis > named)))
}

fn along(at: &At, axis: usize, attributes: &[&str], absent: i64) -> Result<Vec<AxisRead>, Reason> {
    at.only_attributes(attributes)?;
    let named = counted(at.attr("axis", absent)?, at.rank(0)?)?;
    Ok(mixed(at, axis, axis == named))
}

/// The reads of a LayerNormalization, which normalizes over its axis and all later axes. Scale and
/// shift broadcast to the input. Along a normalized axis they are read as a whole, too: with fewer
/// places of them alone, the operator would not compute fewer places.
fn layer_norm(at: &At, axis: usize) -> Result<Vec<AxisRead>, Reason> {
    at.only_attributes(&["axis", "epsilon", "stash_type"])?;
    let rank = at.rank(0)?;
    let named = counted(at.attr("axis", -1)?, rank)?;
    let places = aligned_places(at, axis, rank, &[])?;
    let mut reads = broadcast(at, &places)?;
    if axis >= named {
        reads.fill(AxisRead::All);
    }
    Ok(reads)
}

fn skip_norm(at: &At, axis: usize) -> Result<Vec<AxisRead>, Reason> {
    at.only_attributes(&["epsilon"])?;
    let rank = at.rank(0)?;
    let mut reads = broadcast(at, &aligned_places(at, axis, rank, &[])?)?;
    if axis + 1 == rank {
        reads.fill(AxisRead::All);
    }
    Ok(reads)
}

/// The reads of the fourth output of a skip normalization, which is the sum of the input, the skip
/// and the bias. It does not depend on the scale and the shift of the normalization.
pub(super) fn skip_sum(at: &At, axis: usize) -> Result<Vec<AxisRead>, Reason> {
    at.only_attributes(&["epsilon"])?;
    let has_shift = at.proto().op_type() == "SkipLayerNormalization";
    let scales: &[usize] = if has_shift { &[2, 3] } else { &[2] };
    broadcast(at, &aligned_places(at, axis, at.rank(0)?, scales)?)
}

fn batch_norm(at: &At, axis: usize) -> Result<Vec<AxisRead>, Reason> {
    at.only_attributes(&["epsilon", "momentum", "training_mode"])?;
    let trains = batch_norm_trains(at.proto(), at.opset());
    if trains.is_ok_and(|trains| !trains) {
        let others = if axis == 1 {
            AxisRead::Same(0)
        } else {
            AxisRead::Absent
        };
        return Ok(first(at, AxisRead::Same(axis), others));
    }
    Err(Reason::TrainingMode)
}

/// The reads of an operator that keeps samples and channels independent, but mixes all places of a
/// channel.
fn channels_alone(at: &At, axis: usize, attributes: &[&str]) -> Result<Vec<AxisRead>, Reason> {
    at.only_attributes(attributes)?;
    let read = if axis < 2 {
        AxisRead::Same(axis)
    } else {
        AxisRead::All
    };
    Ok(first(
        at,
        read,
        if axis == 1 {
            AxisRead::Same(0)
        } else {
            AxisRead::Absent
        },
    ))
}

/// The reads of a GroupNormalization, in which only samples are independent. The scale and the
/// shift are read as a whole, because they have an element for each group before operator set 21,
/// and for each channel since then.
fn group_norm(at: &At, axis: usize) -> Result<Vec<AxisRead>, Reason> {
    at.only_attributes(&["epsilon", "num_groups", "stash_type"])?;
    Ok(mixed(at, axis, axis > 0))
}

fn mean_variance(at: &At, axis: usize) -> Result<Vec<AxisRead>, Reason> {
    at.only_attributes(&["axes"])?;
    let named = at.attr_ints("axes")?.unwrap_or_else(|| vec![0, 2, 3]);
    let named = axes(&named, at.rank(0)?)?;
    Ok(mixed(at, axis, named.contains(&axis)))
}

/// The reads of a reduction. The remaining axes keep their order. An axis of extent 1 that replaces
/// a reduced axis reads all places of that axis.
fn reduced(at: &At, axis: usize) -> Result<Vec<AxisRead>, Reason> {
    let rank = at.rank(0)?;
    let (over, keep) = at.reduction(rank)?;
    behind(at, axis, rank, &over, keep)
}

fn behind(
    at: &At,
    axis: usize,
    rank: usize,
    over: &[usize],
    keep: bool,
) -> Result<Vec<AxisRead>, Reason> {
    if keep {
        return Ok(mixed(at, axis, over.contains(&axis)));
    }
    let kept = (0..rank).filter(|axis| !over.contains(axis)).nth(axis);
    kept.map(|from| mixed(at, from, false))
        .ok_or(Reason::UnknownShape)
}

fn arg(at: &At, axis: usize) -> Result<Vec<AxisRead>, Reason> {
    at.only_attributes(&["axis", "keepdims", "select_last_index"])?;
    let rank = at.rank(0)?;
    let over = counted(at.attr("axis", 0)?, rank)?;
    behind(at, axis, rank, &[over], at.flag("keepdims", true)?)
}

fn cumulated(at: &At, axis: usize) -> Result<Vec<AxisRead>, Reason> {
    at.only_attributes(&["exclusive", "reverse"])?;
    let [named] = at.list("axis")?.ok_or(Reason::NotConstant)?[..] else {
        return Err(Reason::Attribute("axis".into()));
    };
    Ok(mixed(at, axis, counted(named, at.rank(0)?)? == axis))
}
