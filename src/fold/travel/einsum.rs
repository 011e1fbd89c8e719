//! Einsum: a sum of products, each with one factor of every operand, so that a number on one is a number on the result.

use crate::affine::Affine;
use crate::fold::{At, Rule, Side, Step};
use crate::recipe::Numbers;
use crate::refusal::Reason;

/// Einsum, which takes a number into any constant among its operands.
pub struct Einsum;

impl Rule for Einsum {
    fn ops(&self) -> &'static [&'static str] {
        &["Einsum"]
    }

    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        let rank = at.output_rank(0)?;
        let mut all = Affine::identity(rank);
        for affine in inputs.iter().flatten() {
            all = all.then(&number(affine, rank)?);
        }
        match (0..at.arity()).find(|&slot| at.weight(slot).is_ok()) {
            Some(slot) => {
                let inner = number(&all, at.rank(slot)?)?;
                Ok(Step::taken(Side::Constant(slot), inner))
            }
            None => Ok(Step::go_on(0, all)),
        }
    }

    fn backward(&self, at: &At, _: usize, affine: &Affine) -> Result<Step, Reason> {
        let on = |slot: usize| Some(vec![(slot, number(affine, at.rank(slot).ok()?).ok()?)]);
        let constants_first = (0..at.arity()).filter(|&slot| at.is_constant(slot));
        let all = constants_first.chain((0..at.arity()).filter(|&slot| !at.is_constant(slot)));
        let ways: Vec<_> = all.filter_map(on).collect();
        if ways.is_empty() { Err(Reason::WrongAxis) } else { Ok(Step { ways, ..Step::default() }) }
    }
}

/// A scale by one number, on a value of another rank.
fn number(affine: &Affine, rank: usize) -> Result<Affine, Reason> {
    let is_number = affine.scale.len() == 1 && affine.has_no_shift();
    let scale: Option<Numbers> = affine.scale.reshape(&vec![1; rank]).filter(|_| is_number);
    scale.map(Affine::scale).ok_or(Reason::WrongAxis)
}
