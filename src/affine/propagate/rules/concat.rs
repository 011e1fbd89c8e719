//! Concat: the affines of the parts are concatenated. A part without an affine counts as one with
//! the identity. If all other parts carry the same affine, a constant part, such as a class token,
//! can compensate for it instead: `[c, s·x + t] = s·[(c − t)/s, x] + t`.

use crate::affine::Affine;
use crate::affine::propagate::rules::split::cut;
use crate::affine::rule::{At, Rule, Step};
use crate::ir::axes::axis;
use crate::recipe::Numbers;
use crate::refusal::Reason;

/// Concat.
pub(super) struct Concat;

impl Rule for Concat {
    fn ops(&self) -> &'static [&'static str] {
        &["Concat"]
    }

    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        let rank = at.output_rank(0)?;
        let axis = axis(at.attr("axis", 0)?, rank)?;
        let parts: Vec<Affine> = inputs
            .iter()
            .map(|a| a.clone().unwrap_or_else(|| Affine::identity(rank)))
            .collect();
        let first = &parts[0];
        if first.is_uniform_along(axis) && parts.iter().all(|part| part == first) {
            return Ok(Step::pass_on(0, first.clone()));
        }
        if let Some(step) = beside_constants(at, inputs, axis) {
            return Ok(step);
        }
        let lengths = lengths(at, axis)?;
        let scales: Vec<&Numbers> = parts.iter().map(|part| &part.scale).collect();
        let shifts: Vec<&Numbers> = parts.iter().map(|part| &part.shift).collect();
        let scale = joined(&scales, &lengths, axis, rank)?;
        let shift = joined(&shifts, &lengths, axis, rank)?;
        Ok(Step::pass_on(0, Affine::new(scale, shift)))
    }

    fn backward(&self, at: &At, _: usize, affine: &Affine) -> Result<Step, Reason> {
        let axis = axis(at.attr("axis", 0)?, affine.rank())?;
        if affine.is_uniform_along(axis) {
            return Ok(Step {
                ways: vec![(0..at.arity()).map(|i| (i, affine.clone())).collect()],
                ..Step::default()
            });
        }
        let mut start = 0;
        let mut moved = vec![];
        for (input, length) in lengths(at, axis)?.into_iter().enumerate() {
            let range = start..start + length;
            start += length;
            let part = affine.try_map(|numbers| cut(numbers, axis, range.clone()))?;
            moved.push((input, part));
        }
        Ok(Step {
            ways: vec![moved],
            ..Step::default()
        })
    }
}

/// The step in which all parts that are not constant carry the same affine, and the constants
/// compensate for it.
fn beside_constants(at: &At, inputs: &[Option<Affine>], axis: usize) -> Option<Step> {
    let affine = inputs
        .iter()
        .flatten()
        .next()
        .filter(|affine| affine.is_uniform_along(axis))?;
    let inverse = affine.inverse()?;
    let mut wants = vec![];
    for (slot, input) in inputs.iter().enumerate() {
        match input {
            Some(other) if other == affine => {}
            None if at.is_expanded(slot) => wants.push((slot, inverse.clone())),
            _ => return None,
        }
    }
    Some(Step {
        wants,
        ..Step::pass_on(0, affine.clone())
    })
}

/// Expands the scale or the shift of each part to the length of the part along `axis`, then
/// concatenates all of them along this axis.
fn joined(
    parts: &[&Numbers],
    lengths: &[usize],
    axis: usize,
    rank: usize,
) -> Result<Numbers, Reason> {
    let mut shape = vec![1; rank];
    for part in parts {
        for (wide, &extent) in shape.iter_mut().zip(part.shape()) {
            *wide = (*wide).max(extent);
        }
    }
    let mut pieces = vec![];
    for (part, &length) in parts.iter().zip(lengths) {
        shape[axis] = length;
        pieces.push(part.expand(&shape).ok_or(Reason::UnknownShape)?);
    }
    Numbers::concat(axis, &pieces).ok_or(Reason::UnknownShape)
}

fn lengths(at: &At, axis: usize) -> Result<Vec<usize>, Reason> {
    (0..at.arity())
        .map(|input| at.places(input, axis))
        .collect()
}
