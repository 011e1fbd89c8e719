//! Attention of com.microsoft, which first projects its input: `X·W + b` holds queries, keys and
//! values, concatenated.
//!
//! An affine of the channels of X folds into the projection: `W' = diag(s)·W`, and `t·W` is added
//! to b.

use crate::affine::Affine;
use crate::affine::linear::{Linear, Slots, check_channels};
use crate::affine::rule::{At, Rule, Side, Step};
use crate::recipe::{Numbers, Recipe};
use crate::refusal::Reason;

/// Attention of `com.microsoft`.
pub(super) struct Attention;

/// Attributes of heads and scores, which concern only the operators after the projection.
const KNOWN: &[&str] = &[
    "do_rotary",
    "mask_filter_value",
    "num_heads",
    "past_present_share_buffer",
    "qkv_hidden_sizes",
    "rotary_embedding_dim",
    "scale",
    "unidirectional",
];

impl Rule for Attention {
    fn ops(&self) -> &'static [&'static str] {
        &["com.microsoft.Attention"]
    }

    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        at.only_attributes(KNOWN)?;
        let affine = at.only(inputs, 0)?;
        at.weight(1)?;
        let &[channels, projected] = &at.extents(1)?[..] else {
            return Err(Reason::UnknownShape);
        };
        if at.graph.input(at.node, 2).is_some() {
            at.weight(2)?;
            if at.extents(2)? != [projected] {
                return Err(Reason::UnknownShape);
            }
        }
        if affine.rank() != 3 {
            return Err(Reason::UnknownShape);
        }
        check_channels(affine, 2, channels)?;
        Ok(Step::taken(Side::Operand(0), affine.clone()))
    }

    fn backward(&self, at: &At, _: usize, _: &Affine) -> Result<Step, Reason> {
        Err(at.not_linear())
    }
}

impl Linear for Attention {
    fn is_layer(&self) -> bool {
        false
    }

    fn slots(&self, _: &At) -> Result<Slots, Reason> {
        Ok(Slots {
            weight: Some(1),
            bias: Some(2),
        })
    }

    fn scaled(&self, _: &At, weight: &Recipe, _: Side, scale: &Numbers) -> Result<Recipe, Reason> {
        let column = scale.recipe().reshape(&[scale.len(), 1]);
        let scaled = column.and_then(|column| weight.mul(&column));
        scaled
            .filter(|scaled| scaled.shape() == weight.shape())
            .ok_or(Reason::WrongAxis)
    }

    fn contracted(&self, _: &At) -> Result<Vec<usize>, Reason> {
        Ok(vec![0])
    }

    fn image(
        &self,
        _: &At,
        weight: Option<&Recipe>,
        _: usize,
        shift: &Numbers,
    ) -> Result<Recipe, Reason> {
        let weight = weight.ok_or(Reason::NotConstant)?;
        let &[channels, projected] = weight.shape() else {
            return Err(Reason::UnknownShape);
        };
        let row = shift
            .recipe()
            .expand(&[1, 1, channels])
            .and_then(|row| row.reshape(&[1, channels]));
        let image = row.and_then(|row| row.product(weight)?.reshape(&[projected]));
        image.ok_or(Reason::WrongAxis)
    }

    fn bias_rank(&self, _: &At) -> Result<usize, Reason> {
        Ok(1)
    }

    fn read_bias(&self, _: &At, bias: Recipe) -> Result<Recipe, Reason> {
        Ok(bias)
    }

    fn write_bias(&self, _: &At, bias: &Recipe) -> Option<Recipe> {
        Some(bias.clone())
    }
}
