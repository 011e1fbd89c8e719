//! Convolutions and matrix products of com.microsoft with a fused activation: `f(L(x) + b + z)`,
//! where `f` is the activation, `L` is linear, `b` is the bias, and `z` is an optional summand.
//!
//! An affine of the input folds into the weight and the bias, as it does without the activation. No
//! affine crosses the activation backward. A shift that depends on the place is refused, since an
//! Add after the activation would be another function.

use crate::affine::Affine;
use crate::affine::linear::conv::Conv;
use crate::affine::linear::gemm::Gemm;
use crate::affine::linear::{Linear, Slots, conv, gemm};
use crate::affine::rule::{At, Rule, Side, Step};
use crate::recipe::{Numbers, Recipe};
use crate::refusal::Reason;

/// FusedConv of `com.microsoft`: a Conv with a summand and an activation.
pub(super) struct FusedConv;

/// FusedGemm of `com.microsoft`.
pub(super) struct FusedGemm;

impl Rule for FusedConv {
    fn ops(&self) -> &'static [&'static str] {
        &["com.microsoft.FusedConv"]
    }

    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        let step = conv::forward(at, inputs)?;
        if step.by_place {
            Err(Reason::Padding)
        } else {
            Ok(step)
        }
    }

    fn backward(&self, at: &At, _: usize, _: &Affine) -> Result<Step, Reason> {
        Err(at.not_linear())
    }
}

impl Rule for FusedGemm {
    fn ops(&self) -> &'static [&'static str] {
        &["com.microsoft.FusedGemm"]
    }

    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        let step = gemm::forward(at, inputs)?;
        let has_bias = Gemm.slots(at)?.bias.is_some();
        let has_place = has_bias || step.folds.iter().all(|(_, affine)| affine.has_no_shift());
        if has_place {
            Ok(step)
        } else {
            Err(Reason::NotConstant)
        }
    }

    fn backward(&self, at: &At, _: usize, _: &Affine) -> Result<Step, Reason> {
        Err(at.not_linear())
    }
}

macro_rules! like {
    ($name:ident, $plain:ident) => {
        impl Linear for $name {
            fn is_layer(&self) -> bool {
                false
            }

            fn slots(&self, at: &At) -> Result<Slots, Reason> {
                $plain.slots(at)
            }

            fn scaled(
                &self,
                at: &At,
                weight: &Recipe,
                side: Side,
                scale: &Numbers,
            ) -> Result<Recipe, Reason> {
                $plain.scaled(at, weight, side, scale)
            }

            fn contracted(&self, at: &At) -> Result<Vec<usize>, Reason> {
                $plain.contracted(at)
            }

            fn image(
                &self,
                at: &At,
                weight: Option<&Recipe>,
                operand: usize,
                shift: &Numbers,
            ) -> Result<Recipe, Reason> {
                $plain.image(at, weight, operand, shift)
            }

            fn read_bias(&self, at: &At, bias: Recipe) -> Result<Recipe, Reason> {
                $plain.read_bias(at, bias)
            }

            fn write_bias(&self, at: &At, bias: &Recipe) -> Option<Recipe> {
                $plain.write_bias(at, bias)
            }
        }
    };
}

like!(FusedConv, Conv);
like!(FusedGemm, Gemm);
