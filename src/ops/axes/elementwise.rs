//! The [`AxisRead`]s of element-wise operators, whose operands broadcast.

use super::{AxisRead, aligned_places, broadcast, first};
use crate::analysis::node_view::At;
use crate::refusal::Reason;

/// The attributes of element-wise operators. None of them refers to an axis.
const ATTRIBUTES: &[&str] = &[
    "alpha",
    "approximate",
    "beta",
    "bias",
    "detect_negative",
    "detect_positive",
    "direction",
    "fmod",
    "gamma",
    "lambd",
    "max",
    "min",
];

pub(super) fn read(
    at: &At,
    (is_own, op): (bool, &str),
    axis: usize,
) -> Option<Result<Vec<AxisRead>, Reason>> {
    let is_plain = at
        .graph
        .category(at.node)
        .is_some_and(|category| category.is_elementwise());
    let is_other = !is_own && matches!(op, "Gelu" | "QuickGelu");
    Some(match op {
        _ if is_plain || is_other => on_elements(at, axis),
        "Cast" | "CastLike" | "Dropout" | "Identity" if is_own => passed_through(at, op, axis),
        "DequantizeLinear" | "QuantizeLinear" if is_own => quantized(at, axis),
        _ => return None,
    })
}

fn on_elements(at: &At, axis: usize) -> Result<Vec<AxisRead>, Reason> {
    at.only_attributes(ATTRIBUTES)?;
    let places = aligned_places(at, axis, at.output_rank(0)?, &[])?;
    broadcast(at, &places)
}

/// The reads of a Cast, a Dropout or an Identity. The first input has the shape of the output, and
/// the other inputs are parameters.
fn passed_through(at: &At, op: &str, axis: usize) -> Result<Vec<AxisRead>, Reason> {
    match op {
        "Dropout" => {
            at.only_attributes(&["is_test", "ratio", "seed"])?;
            at.check_handing_on()?;
        }
        _ => at.only_attributes(&["round_mode", "saturate", "to"])?,
    }
    Ok(first(at, AxisRead::Same(axis), AxisRead::Absent))
}

/// The reads of a QuantizeLinear or a DequantizeLinear. The scale and the zero point are scalars,
/// or vary along one axis.
fn quantized(at: &At, axis: usize) -> Result<Vec<AxisRead>, Reason> {
    at.only_attributes(&[
        "axis",
        "block_size",
        "output_dtype",
        "precision",
        "saturate",
    ])?;
    if at.attr("block_size", 0)? != 0 {
        return Err(Reason::Attribute("block_size".into()));
    }
    let rank = at.rank(0)?;
    let along = crate::ir::axes::axis(at.attr("axis", 1)?, rank.max(2))?;
    let mut reads = first(at, AxisRead::Same(axis), AxisRead::Absent);
    for (slot, read) in reads.iter_mut().enumerate().skip(1) {
        match at.input(slot).map(|_| at.rank(slot)) {
            Err(_) | Ok(Ok(0)) => {}
            Ok(Ok(1)) if along != axis => {}
            Ok(Ok(1)) if at.extent(slot, 0).is_ok_and(|extent| extent > 1) => {
                *read = AxisRead::Same(0)
            }
            _ => return Err(Reason::UnknownShape),
        }
    }
    Ok(reads)
}
