//! Transpose: the affine's axes are permuted with the value's.

use ndarray::ArrayD;

use crate::affine::Affine;
use crate::fold::{At, Rule, Step};
use crate::graph::at::axes;
use crate::refusal::Reason;

/// Transpose.
pub struct Transpose;

impl Rule for Transpose {
    fn ops(&self) -> &'static [&'static str] {
        &["Transpose"]
    }

    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        let affine = at.only(inputs, 0)?;
        let perm = permutation(at, affine.rank())?;
        Ok(Step::go_on(0, affine.try_map(|array| permuted(array, &perm))?))
    }

    fn backward(&self, at: &At, _: usize, affine: &Affine) -> Result<Step, Reason> {
        let perm = permutation(at, affine.rank())?;
        let mut inverse = vec![0; perm.len()];
        for (new, &old) in perm.iter().enumerate() {
            inverse[old] = new;
        }
        Ok(Step::go_on(0, affine.try_map(|array| permuted(array, &inverse))?))
    }
}

/// The permutation of a Transpose: new axis `i` is old axis `perm[i]`; reversed where not given.
pub fn permutation(at: &At, rank: usize) -> Result<Vec<usize>, Reason> {
    let perm = match at.attr_ints("perm")? {
        Some(perm) => axes(&perm, rank)?,
        None => (0..rank).rev().collect(),
    };
    let mut sorted = perm.clone();
    sorted.sort_unstable();
    if sorted != (0..rank).collect::<Vec<_>>() {
        return Err(Reason::Attribute("perm".into()));
    }
    Ok(perm)
}

fn permuted(array: &ArrayD<f64>, perm: &[usize]) -> Result<ArrayD<f64>, Reason> {
    Ok(array.view().permuted_axes(perm).as_standard_layout().into_owned())
}
