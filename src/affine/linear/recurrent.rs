//! LSTM, GRU and RNN. Their input is read only by the projection `X·Wᵀ + Wb`, where W has a row for
//! each direction, gate and channel.
//!
//! For an affine of the channels of X, `W' = W·diag(s)`, and `W·t` is added to Wb. Wb is the first
//! half of the input B. The second half, Rb, is the bias of the state and stays. The order and
//! lengths of sequences and the layout of time and batch do not matter here.

use crate::affine::Affine;
use crate::affine::linear::{Linear, Slots, check_channels};
use crate::affine::rule::{At, Rule, Side, Step};
use crate::recipe::{Numbers, Recipe};
use crate::refusal::Reason;

/// Recurrent layers.
pub(super) struct Recurrent;

/// The axis of the channels in X and in W.
const CHANNELS: usize = 2;

/// Attributes of gates and directions, which concern only the operators after the projection.
const KNOWN: &[&str] = &[
    "activation_alpha",
    "activation_beta",
    "activations",
    "clip",
    "direction",
    "hidden_size",
    "input_forget",
    "layout",
    "linear_before_reset",
];

impl Rule for Recurrent {
    fn ops(&self) -> &'static [&'static str] {
        &["GRU", "LSTM", "RNN"]
    }

    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        at.only_attributes(KNOWN)?;
        let affine = at.only(inputs, 0)?;
        at.weight(1)?;
        let &[directions, gates, channels] = &at.extents(1)?[..] else {
            return Err(Reason::UnknownShape);
        };
        if at.graph.input(at.node, 3).is_some() {
            at.weight(3)?;
            if at.extents(3)? != [directions, 2 * gates] {
                return Err(Reason::UnknownShape);
            }
        }
        if affine.rank() != CHANNELS + 1 {
            return Err(Reason::UnknownShape);
        }
        check_channels(affine, CHANNELS, channels)?;
        Ok(Step::taken(Side::Operand(0), affine.clone()))
    }

    fn backward(&self, at: &At, _: usize, _: &Affine) -> Result<Step, Reason> {
        Err(at.not_linear())
    }
}

impl Linear for Recurrent {
    fn is_layer(&self) -> bool {
        false
    }

    fn slots(&self, _: &At) -> Result<Slots, Reason> {
        Ok(Slots {
            weight: Some(1),
            bias: Some(3),
        })
    }

    fn scaled(&self, _: &At, weight: &Recipe, _: Side, scale: &Numbers) -> Result<Recipe, Reason> {
        let scaled = weight.mul(scale.recipe());
        scaled
            .filter(|scaled| scaled.shape() == weight.shape())
            .ok_or(Reason::WrongAxis)
    }

    fn contracted(&self, _: &At) -> Result<Vec<usize>, Reason> {
        Ok(vec![CHANNELS])
    }

    fn image(
        &self,
        _: &At,
        weight: Option<&Recipe>,
        _: usize,
        shift: &Numbers,
    ) -> Result<Recipe, Reason> {
        let weight = weight.ok_or(Reason::NotConstant)?;
        let &[directions, gates, channels] = weight.shape() else {
            return Err(Reason::UnknownShape);
        };
        let column = shift
            .recipe()
            .expand(&[1, 1, channels])
            .and_then(|row| row.reshape(&[1, channels, 1]));
        let of_input = column
            .and_then(|column| weight.product(&column)?.reshape(&[directions, gates]))
            .ok_or(Reason::WrongAxis)?;
        let of_state = Recipe::filled(0.0, &[directions, gates]);
        Recipe::concat(1, &[of_input, of_state]).ok_or(Reason::WrongAxis)
    }

    fn bias_rank(&self, _: &At) -> Result<usize, Reason> {
        Ok(2)
    }

    fn read_bias(&self, _: &At, bias: Recipe) -> Result<Recipe, Reason> {
        Ok(bias)
    }

    fn write_bias(&self, _: &At, bias: &Recipe) -> Option<Recipe> {
        Some(bias.clone())
    }
}
