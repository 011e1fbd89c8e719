//! Layers whose weight a DequantizeLinear computes from stored codes. A factor of the weight
//! propagates to the DequantizeLinear, whose scales absorb it.

use crate::affine::Affine;
use crate::affine::linear::quantized::DequantizeLinear;
use crate::affine::rule::{At, Rule, Step};
use crate::recipe::Numbers;
use crate::refusal::Reason;

/// The forward step, which moves the scale of an operand to the axis `along` of the weight.
///
/// # Errors
/// [`Reason::Granularity`] if the affine has different scales for weights that share a quantization
/// scale. [`Reason::Quantized`] for a shift, because its image would need the elements of the
/// weight.
pub(super) fn forward(
    at: &At,
    weight: usize,
    along: usize,
    affine: &Affine,
) -> Result<Step, Reason> {
    let factors = factors_along(&affine.scale, at.rank(weight)?, along)?;
    check_granularity(at, weight, &factors)?;
    if affine.has_no_shift() {
        Ok(Step::into_factor(weight, factors))
    } else {
        Err(Reason::Quantized)
    }
}

/// The backward step, which moves the scale of the result to the axis `along` of the weight, and
/// the whole affine to the bias.
///
/// # Errors
/// [`Reason::Quantized`] if the affine has a shift and the node has no bias.
pub(super) fn backward(
    at: &At,
    weight: usize,
    along: usize,
    bias: usize,
    affine: &Affine,
) -> Result<Step, Reason> {
    let factors = factors_along(&affine.scale, at.rank(weight)?, along)?;
    let mut way = vec![(weight, factors)];
    if at.graph.input(at.node, bias).is_some() {
        let rank = at.rank(bias)?;
        let last = rank.checked_sub(1).ok_or(Reason::UnknownShape)?;
        let affine = affine.try_map(|numbers| numbers_along(numbers, rank, last))?;
        way.push((bias, affine));
    } else if !affine.has_no_shift() {
        return Err(Reason::Quantized);
    }
    Ok(Step {
        ways: vec![way],
        ..Step::default()
    })
}

/// Checks that the scales of a weight can absorb factors, if a DequantizeLinear directly before the
/// layer computes the weight. Otherwise checks nothing.
fn check_granularity(at: &At, weight: usize, factors: &Affine) -> Result<(), Reason> {
    let producer = at.graph.producer(at.input(weight)?);
    match producer.filter(|&(node, _)| DequantizeLinear.is_for(at.graph.domain_op(node))) {
        Some((node, slot)) => DequantizeLinear
            .backward(&At { node, ..*at }, slot, factors)
            .map(|_| ()),
        None => Ok(()),
    }
}

fn factors_along(scale: &Numbers, rank: usize, axis: usize) -> Result<Affine, Reason> {
    numbers_along(scale, rank, axis).map(Affine::scale)
}

/// Reshapes numbers that vary along one axis, so that they lie along `axis` of an array of rank
/// `rank`.
fn numbers_along(numbers: &Numbers, rank: usize, axis: usize) -> Result<Numbers, Reason> {
    let mut shape = vec![1; rank];
    *shape.get_mut(axis).ok_or(Reason::UnknownShape)? = numbers.len();
    numbers.reshape(&shape).ok_or(Reason::UnknownShape)
}
