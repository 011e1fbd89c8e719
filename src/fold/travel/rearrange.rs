//! What puts elements at other places, or adds them up, one by one: a scale passes that is the same wherever they come
//! from.
//!
//! DepthToSpace and SpaceToDepth move between all axes; GatherElements takes along one, CumSum adds along one. A
//! triangle leaves zeros, which no shift has reached.

use crate::affine::Affine;
use crate::fold::{At, Rule, Step};
use crate::graph::axes::axis;
use crate::graph::facts::same;
use crate::refusal::Reason;

/// Operators that rearrange elements.
pub struct Rearrange;

impl Rule for Rearrange {
    fn ops(&self) -> &'static [&'static str] {
        &["CumSum", "DepthToSpace", "GatherElements", "SpaceToDepth", "Trilu"]
    }

    fn hands_on(&self) -> bool {
        true
    }

    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        let affine = at.only(inputs, 0)?;
        check(at, affine)?;
        Ok(Step::go_on(0, affine.clone()))
    }

    fn backward(&self, at: &At, _: usize, affine: &Affine) -> Result<Step, Reason> {
        check(at, affine)?;
        Ok(Step::go_on(0, affine.clone()))
    }
}

fn check(at: &At, affine: &Affine) -> Result<(), Reason> {
    let (from, to) = (at.shape(0)?, at.output_shape(0)?);
    if from.len() != to.len() || affine.rank() != from.len() {
        return Err(Reason::UnknownShape);
    }
    let (mixed, keeps_shift) = match at.proto().op_type() {
        "CumSum" => {
            let list = at.list("axis")?.ok_or(Reason::NotConstant)?;
            let &[along] = &list[..] else { return Err(Reason::Attribute("axis".into())) };
            (vec![axis(along, from.len())?], false)
        }
        "GatherElements" => {
            let along = axis(at.attr("axis", 0)?, from.len())?;
            // Along the others it takes as many from the front as there are indices.
            let cut = (0..from.len()).filter(|&axis| axis == along || !same(&from[axis], &to[axis]));
            (cut.collect(), true)
        }
        "Trilu" => (vec![], false),
        _ => ((1..from.len()).collect(), true),
    };
    if mixed.iter().any(|&axis| !affine.is_uniform_along(axis)) {
        return Err(Reason::WrongAxis);
    }
    if keeps_shift || affine.has_no_shift() { Ok(()) } else { Err(at.not_linear()) }
}
