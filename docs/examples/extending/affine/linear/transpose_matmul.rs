//! TransposeMatMul of onnxruntime, without transposition: `alpha·A·W`.

use super::{Linear, Slots};
use crate::affine::Affine;
use crate::affine::rule::{At, Rule, Side, Step};
use crate::recipe::{Numbers, Recipe};
use crate::refusal::Reason;

/// TransposeMatMul.
pub(crate) struct TransposeMatMul;

impl Rule for TransposeMatMul {
    fn ops(&self) -> &'static [&'static str] {
        &["com.microsoft.TransposeMatMul"]
    }

    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        let affine = at.only(inputs, 0)?;
        check(at, affine)?;
        Ok(Step::taken(Side::Operand(0), affine.clone()))
    }

    fn backward(&self, at: &At, _: usize, affine: &Affine) -> Result<Step, Reason> {
        check(at, affine)?;
        Ok(Step::taken(Side::Result, affine.clone()))
    }
}

/// Checks that the weight is a matrix, and that the scale varies only along the last axis.
fn check(at: &At, affine: &Affine) -> Result<(), Reason> {
    at.only_attributes(&["alpha", "transA", "transB"])?;
    if let Some(name) = ["transA", "transB"]
        .into_iter()
        .find(|name| at.attr(name, 0) != Ok(0))
    {
        return Err(Reason::Attribute(name.into()));
    }
    at.weight(1)?;
    let varies = Affine::scale(affine.scale.clone()).axes();
    match at.rank(1)? == 2 && varies.iter().all(|axis| axis + 1 == affine.rank()) {
        true => Ok(()),
        false => Err(Reason::WrongAxis),
    }
}

impl Linear for TransposeMatMul {
    fn slots(&self, _: &At) -> Result<Slots, Reason> {
        Ok(Slots {
            weight: Some(1),
            bias: None,
        })
    }

    fn scaled(
        &self,
        _: &At,
        weight: &Recipe,
        side: Side,
        scale: &Numbers,
    ) -> Result<Recipe, Reason> {
        let shape = match side {
            Side::Operand(_) => [scale.len(), 1],
            _ => [1, scale.len()],
        };
        scale
            .recipe()
            .reshape(&shape)
            .and_then(|scale| weight.mul(&scale))
            .ok_or(Reason::WrongAxis)
    }

    fn contracted(&self, _: &At) -> Result<Vec<usize>, Reason> {
        Ok(vec![0])
    }

    fn image(
        &self,
        at: &At,
        weight: Option<&Recipe>,
        _: usize,
        shift: &Numbers,
    ) -> Result<Recipe, Reason> {
        let weight = weight.ok_or(Reason::NotConstant)?;
        let mut wide = shift.shape().to_vec();
        *wide.last_mut().ok_or(Reason::UnknownShape)? = weight.shape()[0];
        let product = shift
            .recipe()
            .expand(&wide)
            .and_then(|shift| shift.product(weight));
        let alpha = Recipe::number(at.attr_float("alpha", 1.0)?, wide.len());
        product
            .and_then(|product| product.mul(&alpha))
            .ok_or(Reason::WrongAxis)
    }

    fn read_bias(&self, _: &At, _: Recipe) -> Result<Recipe, Reason> {
        Err(Reason::NotConstant)
    }

    fn write_bias(&self, _: &At, _: &Recipe) -> Option<Recipe> {
        None
    }
}
