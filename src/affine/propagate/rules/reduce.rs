//! ReduceMean and ReduceSum over axes along which the scale does not vary.
//!
//! `mean(s·x + t) = s·mean(x) + mean(t)`. A sum adds `t` once for each element.

use crate::affine::Affine;
use crate::affine::rule::{At, Rule, Step};
use crate::recipe::Numbers;
use crate::refusal::Reason;

/// ReduceMean and ReduceSum.
pub(super) struct Reduce;

impl Rule for Reduce {
    fn ops(&self) -> &'static [&'static str] {
        &["ReduceMean", "ReduceSum"]
    }

    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        let affine = at.only(inputs, 0)?;
        let (reduced, keep) = at.reduction(affine.rank())?;
        if reduced.iter().any(|&axis| affine.scale.shape()[axis] != 1) {
            return Err(Reason::ReducedAxis);
        }
        let mut shift = affine.shift.clone();
        for &axis in &reduced {
            let along = shift.shape()[axis];
            let sum = shift.sum(axis).ok_or(Reason::ReducedAxis)?;
            shift = if at.proto().op_type() == "ReduceMean" {
                &sum / &Numbers::number(along as f64, sum.ndim())
            } else if along == 1 && !affine.has_no_shift() {
                let extent = at.extent(0, axis)?;
                &sum * &Numbers::number(extent as f64, sum.ndim())
            } else {
                sum
            };
        }
        let affine = Affine::new(affine.scale.clone(), shift);
        Ok(Step::pass_on(
            0,
            if keep {
                affine
            } else {
                without(&affine, &reduced)?
            },
        ))
    }

    fn backward(&self, at: &At, _: usize, affine: &Affine) -> Result<Step, Reason> {
        if at.proto().op_type() == "ReduceSum" && !affine.has_no_shift() {
            return Err(Reason::ReducedAxis);
        }
        Ok(Step::pass_on(0, restored(at, affine)?))
    }
}

/// Removes `axes` from an affine. Refuses an affine that varies along one of `axes`.
pub(crate) fn without(affine: &Affine, axes: &[usize]) -> Result<Affine, Reason> {
    affine.try_map(|numbers| {
        let kept = (0..numbers.ndim()).filter(|axis| !axes.contains(axis));
        let shape: Vec<usize> = kept.map(|axis| numbers.shape()[axis]).collect();
        numbers.reshape(&shape).ok_or(Reason::ReducedAxis)
    })
}

/// Gives an affine of the result the axes that the reduction drops, each with extent 1.
pub(crate) fn restored(at: &At, affine: &Affine) -> Result<Affine, Reason> {
    let rank = at.rank(0)?;
    let (reduced, keep) = at.reduction(rank)?;
    affine.try_map(|numbers| {
        let mut shape = numbers.shape().to_vec();
        if !keep {
            reduced
                .iter()
                .for_each(|&axis| shape.insert(axis.min(shape.len()), 1));
        }
        let fits = shape.len() == rank;
        numbers
            .reshape(&shape)
            .filter(|_| fits)
            .ok_or(Reason::UnknownShape)
    })
}
