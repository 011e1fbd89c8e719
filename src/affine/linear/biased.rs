//! Activations of com.microsoft that first add a bias: `f(x + b)`.
//!
//! A shift of x is added to the bias. A scale of x does not fold, because it cannot cross f.

use crate::affine::Affine;
use crate::affine::linear::{Linear, Slots, only_along};
use crate::affine::rule::{At, Rule, Side, Step};
use crate::recipe::{Numbers, Recipe};
use crate::refusal::Reason;

/// BiasGelu, and FastGelu if it has a bias.
pub(crate) struct Biased;

impl Rule for Biased {
    fn ops(&self) -> &'static [&'static str] {
        &["com.microsoft.BiasGelu", "com.microsoft.FastGelu"]
    }

    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        let affine = at.only(inputs, 0)?;
        if !affine.has_no_scale() || at.graph.input(at.node, 1).is_none() {
            return Err(at.not_linear());
        }
        at.weight(1)?;
        at.extents(1)?;
        only_along(affine, &[affine.rank().saturating_sub(1)])?;
        Ok(Step::taken(Side::Operand(0), affine.clone()))
    }

    fn backward(&self, at: &At, _: usize, _: &Affine) -> Result<Step, Reason> {
        Err(at.not_linear())
    }
}

impl Linear for Biased {
    fn is_layer(&self) -> bool {
        false
    }

    fn slots(&self, at: &At) -> Result<Slots, Reason> {
        at.weight(1)?;
        Ok(Slots {
            weight: None,
            bias: Some(1),
        })
    }

    fn scaled(&self, at: &At, _: &Recipe, _: Side, _: &Numbers) -> Result<Recipe, Reason> {
        Err(at.not_linear())
    }

    fn contracted(&self, _: &At) -> Result<Vec<usize>, Reason> {
        Ok(vec![])
    }

    fn image(
        &self,
        _: &At,
        _: Option<&Recipe>,
        _: usize,
        shift: &Numbers,
    ) -> Result<Recipe, Reason> {
        Ok(shift.recipe().clone())
    }

    fn read_bias(&self, at: &At, bias: Recipe) -> Result<Recipe, Reason> {
        bias.align(at.rank(0)?).ok_or(Reason::UnknownShape)
    }

    /// Converts a bias to shape `[channels]`.
    fn write_bias(&self, at: &At, bias: &Recipe) -> Option<Recipe> {
        let channels: usize = at.extents(1).ok()?.iter().product();
        bias.expand(&[&vec![1; bias.rank() - 1][..], &[channels]].concat())?
            .reshape(&[channels])
    }
}
