//! The affine of one node on its varying input.

use ndarray::Axis;

use crate::affine::Affine;
use crate::analysis::node_view::At;
use crate::ir::ValueId;
use crate::onnx::tract_quirks::batch_norm_trains;
use crate::recipe::Numbers;
use crate::refusal::Reason;
use crate::shape::facts::extent;

/// A constant with more elements is not searched for repetitions.
const LARGEST: usize = 1 << 18;

/// The affine that a node applies to `value`, its only varying input. `None` if it applies no
/// affine, or if its constant has more axes than the value.
pub(crate) fn step(at: &At, value: ValueId, output: ValueId) -> Option<Affine> {
    let rank = at.facts.rank(output)?;
    let is_first = at.graph.input(at.node, 0) == Some(value);
    let affine = match at.graph.op(at.node)? {
        "Neg" => Affine::scale(Numbers::number(-1.0, rank)),
        "BatchNormalization" if is_first => return batch_norm(at).ok(),
        op @ ("Add" | "Sub" | "Mul" | "Div") => arithmetic(at, op, is_first, rank)?,
        _ => return None,
    };
    at.only_attributes(&[]).ok()?;
    // The constant must not have more axes than the value.
    let shape = at.facts.shape(output)?;
    if shape.len() != at.facts.rank(value)? {
        return None;
    }
    let fits = affine.axes().iter().all(|&axis| {
        extent(&shape[axis]) == Some(affine.scale.shape()[axis].max(affine.shift.shape()[axis]))
    });
    fits.then_some(affine)
}

/// The affine of an element-wise operator on a value and a constant, in either order. `None` for a
/// constant divided by the value.
fn arithmetic(at: &At, op: &str, value_is_first: bool, rank: usize) -> Option<Affine> {
    if op == "Div" && !value_is_first {
        return None;
    }
    let constant = parameter(at, usize::from(value_is_first), rank)?;
    Some(match op {
        "Mul" => Affine::scale(constant),
        "Div" => Affine::scale(&Numbers::number(1.0, rank) / &constant),
        "Add" => Affine::shift(constant),
        _ if value_is_first => Affine::shift(-&constant),
        _ => Affine::new(Numbers::number(-1.0, rank), constant),
    })
}

/// Reads a constant operand and aligns it to rank `rank`. `None` if it varies along several axes.
///
/// A constant with several axes longer than 1 counts only if it repeats the same parameters along
/// all axes except one.
fn parameter(at: &At, slot: usize, rank: usize) -> Option<Numbers> {
    let shape = at.shape(slot).ok()?;
    let extents: Vec<usize> = shape.iter().map(extent).collect::<Option<_>>()?;
    let numbers = if longer_axes(&extents) <= 1 {
        at.numbers(slot).ok()?
    } else {
        along_one_axis(at, slot, &extents)?
    };
    numbers.align(rank)
}

/// Removes the repetitions of a constant operand that repeats along all axes except one. `None` if
/// it varies along several axes, or if it has more than [`LARGEST`] elements.
fn along_one_axis(at: &At, slot: usize, extents: &[usize]) -> Option<Numbers> {
    let count = extents
        .iter()
        .try_fold(1_usize, |count, &extent| count.checked_mul(extent))?;
    (1..=LARGEST).contains(&count).then_some(())?;
    let mut numbers = at.numbers(slot).ok()?;
    for axis in 0..extents.len() {
        let first = numbers.index_axis(Axis(axis), 0);
        if numbers.shape()[axis] > 1 && numbers.axis_iter(Axis(axis)).all(|other| other == first) {
            numbers = numbers.pick(axis, [Some(0)])?;
        }
    }
    (longer_axes(numbers.shape()) <= 1).then_some(numbers)
}

/// The number of axes with an extent other than 1.
fn longer_axes(extents: &[usize]) -> usize {
    extents.iter().filter(|&&extent| extent != 1).count()
}

/// The affine `s·x + t` of a BatchNormalization on axis 1, by equation 1 of the UN paper: `s =
/// γ/√(σ²+ε)`, `t = β − s·μ`.
///
/// # Errors
/// The reason why this BatchNormalization is not an affine with constants.
pub(crate) fn batch_norm(at: &At) -> Result<Affine, Reason> {
    at.only_attributes(&["epsilon", "momentum", "training_mode", "spatial"])?;
    let extra = at.graph.outputs(at.node).iter().skip(1).flatten();
    let trains = batch_norm_trains(at.proto(), at.opset());
    if trains.map_err(|_| Reason::Attribute("training_mode".into()))?
        || extra
            .copied()
            .any(|output| !at.graph.readers(output).is_empty())
    {
        return Err(Reason::TrainingMode);
    }
    if at.attr("spatial", 1)? != 1 {
        return Err(Reason::Attribute("spatial".into()));
    }
    let epsilon = at.attr_float("epsilon", 1e-5)?;
    let (gamma, beta, mean, var) = (
        at.numbers(1)?,
        at.numbers(2)?,
        at.numbers(3)?,
        at.numbers(4)?,
    );
    // The number of channels must equal the length of each parameter.
    let rank = at.rank(0)?;
    let channels = at.facts.extent(at.input(0)?, 1).unwrap_or(gamma.len());
    if rank < 2
        || [&gamma, &beta, &mean, &var]
            .iter()
            .any(|numbers| numbers.shape() != [channels])
    {
        return Err(Reason::UnknownShape);
    }
    let var = &var + &Numbers::number(epsilon, 1);
    if !var.iter().all(|&var| var > 0.0) {
        return Err(Reason::BadStatistics);
    }
    let scale = &gamma / &var.sqrt();
    let shift = &beta - &(&scale * &mean);
    let mut shape = vec![1; rank];
    shape[1] = channels;
    let scale = scale.reshape(&shape).ok_or(Reason::UnknownShape)?;
    let shift = shift.reshape(&shape).ok_or(Reason::UnknownShape)?;
    let affine = Affine::new(scale, shift);
    if affine.is_finite() {
        Ok(affine)
    } else {
        Err(Reason::NotFinite)
    }
}
