//! ReduceMean and ReduceSum over axes along which the scale does not vary.
//!
//! `mean(s·x + t) = s·mean(x) + mean(t)`, and a sum adds `t` once for each element.

use ndarray::{ArrayD, Axis};

use crate::affine::Affine;
use crate::fold::{At, Rule, Step};
use crate::graph::facts::extent;
use crate::refusal::Reason;

/// Sums and means.
pub struct Reduce;

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
            shift = shift.sum_axis(Axis(axis)).insert_axis(Axis(axis));
            if at.proto().op_type() == "ReduceMean" {
                shift /= along as f64;
            } else if along == 1 && !affine.has_no_shift() {
                shift *= extent(&at.shape(0)?[axis]).ok_or(Reason::UnknownShape)? as f64;
            }
        }
        let drop = |array: ArrayD<f64>| if keep { array } else { without(array, &reduced) };
        Ok(Step::go_on(0, Affine::new(drop(affine.scale.clone()), drop(shift))))
    }

    fn backward(&self, at: &At, _: usize, affine: &Affine) -> Result<Step, Reason> {
        let rank = at.rank(0)?;
        let (reduced, keep) = at.reduction(rank)?;
        if at.proto().op_type() == "ReduceSum" && !affine.has_no_shift() {
            return Err(Reason::ReducedAxis);
        }
        let restored = affine.try_map(|array| {
            let mut array = array.clone();
            if !keep {
                for &axis in &reduced {
                    array = array.insert_axis(Axis(axis));
                }
            }
            if array.ndim() == rank { Ok(array) } else { Err(Reason::UnknownShape) }
        })?;
        Ok(Step::go_on(0, restored))
    }
}

/// Takes axes of extent 1 out.
fn without(mut array: ArrayD<f64>, axes: &[usize]) -> ArrayD<f64> {
    for &axis in axes.iter().rev() {
        array = array.index_axis_move(Axis(axis), 0);
    }
    array
}
