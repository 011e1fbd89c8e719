//! Where: what is chosen from carries what both sides carry. Zeros carry every scale.

use crate::affine::Affine;
use crate::fold::absorb::elementwise::{aligned, shrunk};
use crate::fold::{At, Rule, Step};
use crate::refusal::Reason;

/// Where.
pub struct Choice;

impl Rule for Choice {
    fn ops(&self) -> &'static [&'static str] {
        &["Where"]
    }

    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        let rank = at.output_rank(0)?;
        let sides =
            [1, 2].map(|slot| inputs.get(slot).cloned().flatten().map(|affine| aligned(&affine, rank)));
        let only = |affine: Affine, other: usize| {
            let fits = affine.has_no_shift() && is_zero(at, other);
            if fits { Ok(affine) } else { Err(Reason::ResidualStream) }
        };
        let affine = match sides {
            [Some(yes), Some(no)] => {
                let (yes, no) = (yes?, no?);
                if yes == no { yes } else { return Err(Reason::ResidualStream) }
            }
            [Some(yes), None] => only(yes?, 2)?,
            [None, Some(no)] => only(no?, 1)?,
            [None, None] => return Err(at.not_linear()),
        };
        Ok(Step::go_on(0, affine))
    }

    fn backward(&self, at: &At, _: usize, affine: &Affine) -> Result<Step, Reason> {
        let wanted = (1..3).filter(|&slot| !affine.has_no_shift() || !is_zero(at, slot));
        let way = wanted.map(|slot| Ok((slot, shrunk(at, slot, affine)?))).collect::<Result<_, Reason>>()?;
        Ok(Step { ways: vec![way], ..Step::default() })
    }
}

/// Whether a side is a constant of zeros.
pub fn is_zero(at: &At, slot: usize) -> bool {
    at.is_constant(slot) && at.numbers(slot).is_ok_and(|numbers| numbers.iter().all(|&number| number == 0.0))
}
