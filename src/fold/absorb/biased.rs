//! Activations of a runtime that add a bias first: `f(x + b)`.
//!
//! A shift joins the bias; a scale stops before the activation.

use ndarray::{ArrayD, IxDyn};

use super::{Linear, Slots, only_along};
use crate::affine::{Affine, align};
use crate::fold::{At, Rule, Side, Step};
use crate::refusal::Reason;

/// BiasGelu, and FastGelu where it has a bias.
pub struct Biased;

impl Rule for Biased {
    fn ops(&self) -> &'static [&'static str] {
        &["BiasGelu", "FastGelu"]
    }

    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        let affine = at.only(inputs, 0)?;
        if !affine.has_no_scale() || at.graph.input(at.node, 1).is_none() {
            return Err(Reason::NotLinear(at.proto().op_type().into()));
        }
        at.weight(1)?;
        at.extents(1)?;
        only_along(affine, &[affine.rank().saturating_sub(1)])?;
        Ok(Step::taken(Side::Operand(0), affine.clone()))
    }

    fn backward(&self, at: &At, _: usize, _: &Affine) -> Result<Step, Reason> {
        Err(Reason::NotLinear(at.proto().op_type().into()))
    }
}

impl Linear for Biased {
    fn is_elementwise(&self) -> bool {
        true
    }

    fn slots(&self, at: &At) -> Result<Slots, Reason> {
        at.weight(1)?;
        Ok(Slots { weight: None, bias: Some(1) })
    }

    fn scaled(&self, at: &At, _: &ArrayD<f64>, _: Side, _: &ArrayD<f64>) -> Result<ArrayD<f64>, Reason> {
        Err(Reason::NotLinear(at.proto().op_type().into()))
    }

    fn contracted(&self, _: &At) -> Result<Vec<usize>, Reason> {
        Ok(vec![])
    }

    fn image(
        &self,
        _: &At,
        _: Option<&ArrayD<f64>>,
        _: usize,
        shift: &ArrayD<f64>,
    ) -> Result<ArrayD<f64>, Reason> {
        Ok(shift.clone())
    }

    fn read_bias(&self, at: &At, bias: ArrayD<f64>) -> Result<ArrayD<f64>, Reason> {
        align(&bias, at.rank(0)?).ok_or(Reason::UnknownShape)
    }

    /// It has one axis, that of the channels.
    fn write_bias(&self, at: &At, bias: &ArrayD<f64>) -> Option<ArrayD<f64>> {
        let channels = at.extents(1).ok()?.iter().product();
        let wide = bias.broadcast(IxDyn(&[&vec![1; bias.ndim() - 1][..], &[channels]].concat()))?;
        wide.to_owned().into_shape_with_order(IxDyn(&[channels])).ok()
    }
}
