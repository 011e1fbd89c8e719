//! Transpose: the axes of the affine are permuted like those of the value.

use crate::affine::Affine;
use crate::affine::rule::{At, Rule, Step};
use crate::recipe::Numbers;
use crate::refusal::Reason;

/// Transpose.
pub(super) struct Transpose;

impl Rule for Transpose {
    fn ops(&self) -> &'static [&'static str] {
        &["Transpose"]
    }

    fn is_scale_transparent(&self) -> bool {
        true
    }

    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        let affine = at.only(inputs, 0)?;
        let perm = at.permutation(affine.rank())?;
        Ok(Step::pass_on(
            0,
            affine.try_map(|numbers| permuted(numbers, &perm))?,
        ))
    }

    fn backward(&self, at: &At, _: usize, affine: &Affine) -> Result<Step, Reason> {
        let perm = at.permutation(affine.rank())?;
        let mut inverse = vec![0; perm.len()];
        for (new, &old) in perm.iter().enumerate() {
            inverse[old] = new;
        }
        Ok(Step::pass_on(
            0,
            affine.try_map(|numbers| permuted(numbers, &inverse))?,
        ))
    }
}

fn permuted(numbers: &Numbers, perm: &[usize]) -> Result<Numbers, Reason> {
    numbers.transpose(perm).ok_or(Reason::WrongAxis)
}
