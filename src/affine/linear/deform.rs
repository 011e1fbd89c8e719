//! DeformConv: a convolution whose taps are moved at each place by offsets that another layer
//! computes.
//!
//! The operator is linear in its input, channel by channel, and in its weight. But it interpolates
//! between places, reads zeros outside of the image, and scales places by a mask. So a shift of the
//! input is refused. A shift of the result is added to the bias.

use crate::affine::Affine;
use crate::affine::linear::conv::{along, along_grouped, as_vector, per_channel};
use crate::affine::linear::{Linear, Slots, only_along};
use crate::affine::rule::{At, Rule, Side, Step};
use crate::recipe::{Numbers, Recipe};
use crate::refusal::Reason;

/// DeformConv, with a weight of shape `[O, C/group, k...]`.
pub(super) struct DeformConv;

/// The index of the input that is the bias. It comes after the offsets.
const BIAS: usize = 3;

impl Rule for DeformConv {
    fn ops(&self) -> &'static [&'static str] {
        &["DeformConv"]
    }

    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        let affine = at.only(inputs, 0)?;
        check(at, affine)?;
        match affine.has_no_shift() {
            true => Ok(Step::taken(Side::Operand(0), affine.clone())),
            false => Err(Reason::Padding),
        }
    }

    fn backward(&self, at: &At, _: usize, affine: &Affine) -> Result<Step, Reason> {
        check(at, affine)?;
        Ok(Step::taken(Side::Result, affine.clone()))
    }
}

fn check(at: &At, affine: &Affine) -> Result<(), Reason> {
    at.only_attributes(&[
        "dilations",
        "group",
        "kernel_shape",
        "offset_group",
        "pads",
        "strides",
    ])?;
    at.weight(1)?;
    if at.graph.input(at.node, BIAS).is_some() {
        at.weight(BIAS)?;
    }
    only_along(affine, &[1])
}

impl Linear for DeformConv {
    fn slots(&self, _: &At) -> Result<Slots, Reason> {
        Ok(Slots {
            weight: Some(1),
            bias: Some(BIAS),
        })
    }

    fn scaled(
        &self,
        at: &At,
        weight: &Recipe,
        side: Side,
        scale: &Numbers,
    ) -> Result<Recipe, Reason> {
        match side {
            Side::Operand(_) => along_grouped(at, weight, scale),
            _ => along(weight, scale, 0),
        }
    }

    fn contracted(&self, at: &At) -> Result<Vec<usize>, Reason> {
        Ok((1..at.extents(1)?.len()).collect())
    }

    fn image(&self, _: &At, _: Option<&Recipe>, _: usize, _: &Numbers) -> Result<Recipe, Reason> {
        Err(Reason::Padding)
    }

    fn read_bias(&self, at: &At, bias: Recipe) -> Result<Recipe, Reason> {
        per_channel(at, &bias)
    }

    fn write_bias(&self, at: &At, bias: &Recipe) -> Option<Recipe> {
        as_vector(bias, at.extents(1).ok()?[0])
    }
}
