//! Concat: the affines of the parts are concatenated; a part without one has the identity.

use ndarray::{ArrayD, Axis, IxDyn, Slice as Range};

use crate::affine::Affine;
use crate::fold::{At, Rule, Step};
use crate::graph::at::axis;
use crate::graph::facts::extent;
use crate::refusal::Reason;

/// Concat.
pub struct Concat;

impl Rule for Concat {
    fn ops(&self) -> &'static [&'static str] {
        &["Concat"]
    }

    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        let rank = at.output_rank(0)?;
        let axis = axis(at.attr("axis", 0)?, rank)?;
        let parts: Vec<Affine> =
            inputs.iter().map(|a| a.clone().unwrap_or_else(|| Affine::identity(rank))).collect();
        let first = &parts[0];
        if first.is_uniform_along(axis) && parts.iter().all(|part| part == first) {
            return Ok(Step::go_on(0, first.clone()));
        }
        let lengths = lengths(at, axis)?;
        let join = |array: fn(&Affine) -> &ArrayD<f64>| {
            let mut shape = vec![1; rank];
            for part in &parts {
                for (wide, &n) in shape.iter_mut().zip(array(part).shape()) {
                    *wide = (*wide).max(n);
                }
            }
            let mut pieces = vec![];
            for (part, &length) in parts.iter().zip(&lengths) {
                shape[axis] = length;
                let wide = array(part).broadcast(IxDyn(&shape)).ok_or(Reason::UnknownShape)?;
                pieces.push(wide.to_owned());
            }
            let views: Vec<_> = pieces.iter().map(|piece| piece.view()).collect();
            ndarray::concatenate(Axis(axis), &views).map_err(|_| Reason::UnknownShape)
        };
        Ok(Step::go_on(0, Affine::new(join(|a| &a.scale)?, join(|a| &a.shift)?)))
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
            let range = Range::from(start..start + length);
            start += length;
            let part = affine.try_map(|array| {
                let whole = array.shape()[axis] == 1;
                Ok::<_, Reason>(match whole {
                    true => array.clone(),
                    false => array.slice_axis(Axis(axis), range).to_owned(),
                })
            })?;
            moved.push((input, part));
        }
        Ok(Step { ways: vec![moved], ..Step::default() })
    }
}

fn lengths(at: &At, axis: usize) -> Result<Vec<usize>, Reason> {
    let length = |input| extent(&at.shape(input)?[axis]).ok_or(Reason::UnknownShape);
    (0..at.arity()).map(length).collect()
}
