//! An If, with its bodies laid out: its results carry what those of both branches carry, for they are those of one.

use crate::affine::Affine;
use crate::fold::{At, Rule, Step};
use crate::graph::facts::same;
use crate::refusal::Reason;

/// The end of an If, which reads its condition, and what either branch makes.
pub struct EitherBranch;

impl Rule for EitherBranch {
    fn ops(&self) -> &'static [&'static str] {
        &["unfold.end.If"]
    }

    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        let count = results(at)?;
        let mut way = vec![];
        for result in 0..count {
            let [one, other] = slots(count, result).map(|slot| inputs.get(slot).cloned().flatten());
            match (one, other) {
                (None, None) => {}
                (Some(one), Some(other)) if one == other => way.push((result, one)),
                _ => return Err(at.not_linear()),
            }
        }
        Ok(Step { ways: vec![way], ..Step::default() })
    }

    fn backward(&self, at: &At, result: usize, affine: &Affine) -> Result<Step, Reason> {
        let slots = slots(results(at)?, result);
        // Each branch may make a value of its own extents.
        for slot in slots {
            let shape = at.shape(slot)?;
            let whole = at.output_shape(result)?;
            let is_alike = |axis: usize| affine.is_uniform_along(axis) || same(&shape[axis], &whole[axis]);
            if shape.len() != whole.len() || !(0..shape.len()).all(is_alike) {
                return Err(Reason::UnknownShape);
            }
        }
        let way = slots.map(|slot| (slot, affine.clone())).to_vec();
        Ok(Step { ways: vec![way], ..Step::default() })
    }
}

/// How many results there are, each of which either branch makes.
fn results(at: &At) -> Result<usize, Reason> {
    let count = at.graph.outputs(at.node).len();
    if at.arity() == 1 + 2 * count { Ok(count) } else { Err(at.not_linear()) }
}

/// Where the branches' values for a result are.
fn slots(count: usize, result: usize) -> [usize; 2] {
    [1 + result, 1 + count + result]
}
