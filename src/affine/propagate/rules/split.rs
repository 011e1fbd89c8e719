//! Split: each part carries its part of the affine.

use std::ops::Range;

use crate::affine::Affine;
use crate::affine::propagate::rules::slice::scatter;
use crate::affine::rule::{At, Rule, Step};
use crate::ir::axes::axis;
use crate::recipe::Numbers;
use crate::refusal::Reason;

/// Split.
pub(super) struct Split;

impl Rule for Split {
    fn ops(&self) -> &'static [&'static str] {
        &["Split"]
    }

    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        let affine = at.only(inputs, 0)?;
        let axis = axis(at.attr("axis", 0)?, affine.rank())?;
        let outputs = at.graph.outputs(at.node).len();
        if affine.is_uniform_along(axis) {
            let ways = vec![
                (0..outputs)
                    .map(|output| (output, affine.clone()))
                    .collect(),
            ];
            return Ok(Step {
                ways,
                ..Step::default()
            });
        }
        let mut moved = vec![];
        for (output, range) in parts(at, axis)?.into_iter().enumerate() {
            let part = affine.try_map(|numbers| cut(numbers, axis, range.clone()))?;
            moved.push((output, part));
        }
        Ok(Step {
            ways: vec![moved],
            ..Step::default()
        })
    }

    fn backward(&self, at: &At, output: usize, affine: &Affine) -> Result<Step, Reason> {
        let axis = axis(at.attr("axis", 0)?, affine.rank())?;
        let parts = parts(at, axis)?;
        let whole = at.places(0, axis)?;
        let part = parts
            .get(output)
            .filter(|part| part.end <= whole)
            .ok_or(Reason::UnknownShape)?;
        let taken: Vec<usize> = part.clone().collect();
        Ok(Step::pass_on(0, scatter(affine, axis, &taken, whole)?))
    }
}

/// The range of places that each output takes.
fn parts(at: &At, axis: usize) -> Result<Vec<Range<usize>>, Reason> {
    let mut start: usize = 0;
    (0..at.graph.outputs(at.node).len())
        .map(|output| {
            let length = at.output_extent(output, axis)?;
            let end = start.checked_add(length).ok_or(Reason::UnknownShape)?;
            Ok(std::mem::replace(&mut start, end)..end)
        })
        .collect()
}

/// Takes the numbers in a range along an axis, or all of them if they do not vary along it.
///
/// # Errors
/// [`Reason::UnknownShape`] if a place is out of range.
pub(super) fn cut(numbers: &Numbers, axis: usize, range: Range<usize>) -> Result<Numbers, Reason> {
    match numbers.shape()[axis] {
        1 => Ok(numbers.clone()),
        _ => numbers
            .pick(axis, range.map(Some))
            .ok_or(Reason::UnknownShape),
    }
}
