//! Gemm: `Y = alpha·A'·B' + beta·C`, with A or B constant and either of them transposed or not.
//!
//! An affine of A scales `B'` along its contracted axis, and adds `alpha·t·B'` to `beta·C`. If C is
//! written again, it includes beta, and the attribute becomes 1, because a product `beta·C` may
//! round where C does not.

use crate::affine::Affine;
use crate::affine::linear::{Linear, Slots, dequantized, known_attributes, only_along};
use crate::affine::rule::{At, Rule, Side, Step};
use crate::onnx::tensor::DataType;
use crate::recipe::{Numbers, Recipe};
use crate::refusal::Reason;

/// Gemm.
pub(super) struct Gemm;

impl Rule for Gemm {
    fn ops(&self) -> &'static [&'static str] {
        &["Gemm"]
    }

    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        forward(at, inputs)
    }

    fn backward(&self, at: &At, _: usize, affine: &Affine) -> Result<Step, Reason> {
        check(at)?;
        let slot = self.slots(at)?.weight.ok_or(Reason::NotConstant)?;
        if at.is_dequantized(slot) {
            return into_dequantized(at, slot, affine);
        }
        at.weight(slot)?;
        only_along(&Affine::scale(affine.scale.clone()), &[slot])?;
        let has_variable_bias = at.graph.input(at.node, 2).is_some() && !at.is_constant(2);
        if has_variable_bias && !affine.has_no_scale() {
            return Err(Reason::NotConstant);
        }
        Ok(Step::taken(Side::Result, affine.clone()))
    }
}

/// The forward step of Gemm and FusedGemm.
pub(crate) fn forward(at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
    check(at)?;
    let slot = if inputs[0].is_some() { 0 } else { 1 };
    let affine = at.only(inputs, slot)?;
    let lies_there = match affine.rank() {
        2 if affine.scale.shape()[1 - contracted(at, slot)?] == 1 => Ok(()),
        2 => Err(Reason::WrongAxis),
        _ => Err(Reason::UnknownShape),
    };
    if at.is_dequantized(1 - slot) {
        lies_there?;
        return dequantized::forward(at, 1 - slot, contracted(at, 1 - slot)?, affine);
    }
    match (at.weight(1 - slot), lies_there) {
        (Ok(_), lies_there) => {
            lies_there.map(|()| Step::taken(Side::Operand(slot), affine.clone()))
        }
        (Err(Reason::NotConstant), Ok(())) if affine.has_no_shift() && affine.scale.len() > 1 => {
            let mut shape = [1; 2];
            shape[contracted(at, 1 - slot)?] = affine.scale.len();
            let scale = affine.scale.reshape(&shape).ok_or(Reason::UnknownShape)?;
            Ok(Step::into_factor(1 - slot, Affine::scale(scale)))
        }
        (Err(reason), _) => Err(reason),
    }
}

fn check(at: &At) -> Result<(), Reason> {
    at.only_attributes(&known_attributes(
        at,
        &["alpha", "beta", "transA", "transB"],
    ))?;
    for factor in ["alpha", "beta"] {
        at.attr_float(factor, 1.0)?;
    }
    let weight = at.constant_operand();
    let is_quantized = weight.is_some_and(|slot| at.is_dequantized(slot));
    if at.graph.input(at.node, 2).is_some() && at.is_constant(2) && !is_quantized {
        at.weight(2)?;
    }
    Ok(())
}

/// The backward step of a Gemm with a weight that a DequantizeLinear computes.
fn into_dequantized(at: &At, weight: usize, affine: &Affine) -> Result<Step, Reason> {
    only_along(affine, &[weight])?;
    if !affine.has_no_shift() && at.attr_float("beta", 1.0)? != 1.0 {
        return Err(Reason::Attribute("beta".into()));
    }
    if weight == 0 && at.graph.input(at.node, 2).is_some() {
        return Err(Reason::WrongAxis);
    }
    let kept = 1 - contracted(at, weight)?;
    dequantized::backward(at, weight, kept, 2, affine)
}

/// The contracted axis of A (slot 0) or B (slot 1).
fn contracted(at: &At, slot: usize) -> Result<usize, Reason> {
    let transposed = at.flag(["transA", "transB"][slot], false)?;
    Ok(if slot == 0 {
        !transposed as usize
    } else {
        transposed as usize
    })
}

impl Linear for Gemm {
    fn slots(&self, at: &At) -> Result<Slots, Reason> {
        let weight = at.constant_operand().ok_or(Reason::NotConstant)?;
        // tract reads `beta` as float32 and cannot run a Gemm of another type that has a C. So such
        // a Gemm gets no C.
        let made = at
            .graph
            .output(at.node, 0)
            .and_then(|value| at.facts.data_type(value));
        let may_have_one =
            !at.graph.is(at.node, "Gemm") || made.is_none_or(|made| made == DataType::Float);
        let bias_is_free = match at.graph.input(at.node, 2) {
            Some(_) => at.is_constant(2),
            None => may_have_one,
        };
        Ok(Slots {
            weight: Some(weight),
            bias: bias_is_free.then_some(2),
        })
    }

    fn scaled(
        &self,
        at: &At,
        weight: &Recipe,
        side: Side,
        scale: &Numbers,
    ) -> Result<Recipe, Reason> {
        let slot = self.slots(at)?.weight.ok_or(Reason::NotConstant)?;
        let along = match side {
            Side::Operand(_) => contracted(at, slot)?,
            _ => 1 - contracted(at, slot)?,
        };
        let shape = if along == 0 {
            [scale.len(), 1]
        } else {
            [1, scale.len()]
        };
        let scaled = scale
            .recipe()
            .reshape(&shape)
            .and_then(|scale| weight.mul(&scale));
        scaled
            .filter(|scaled| scaled.shape() == weight.shape())
            .ok_or(Reason::WrongAxis)
    }

    fn contracted(&self, at: &At) -> Result<Vec<usize>, Reason> {
        Ok(vec![contracted(
            at,
            self.slots(at)?.weight.ok_or(Reason::NotConstant)?,
        )?])
    }

    fn image(
        &self,
        at: &At,
        weight: Option<&Recipe>,
        operand: usize,
        shift: &Numbers,
    ) -> Result<Recipe, Reason> {
        let matrix = weight
            .filter(|weight| weight.rank() == 2)
            .ok_or(Reason::UnknownShape)?;
        // Transposes both operands, if needed, to the layout of a plain matrix product.
        let matrix = turned_unless(contracted(at, 1 - operand)? == operand, matrix)
            .ok_or(Reason::UnknownShape)?;
        let mut wide = shift.shape().to_vec();
        wide[contracted(at, operand)?] = matrix.shape()[operand];
        let shift = shift.recipe().expand(&wide).ok_or(Reason::WrongAxis)?;
        let shift = turned_unless(contracted(at, operand)? == 1 - operand, &shift)
            .ok_or(Reason::WrongAxis)?;
        let product = if operand == 0 {
            shift.product(&matrix)
        } else {
            matrix.product(&shift)
        };
        let alpha = Recipe::number(at.attr_float("alpha", 1.0)?, 2);
        product
            .and_then(|product| product.mul(&alpha))
            .ok_or(Reason::WrongAxis)
    }

    fn read_bias(&self, at: &At, bias: Recipe) -> Result<Recipe, Reason> {
        let beta = Recipe::number(at.attr_float("beta", 1.0)?, 0);
        bias.mul(&beta)
            .and_then(|bias| bias.align(2))
            .ok_or(Reason::UnknownShape)
    }

    fn write_bias(&self, _: &At, bias: &Recipe) -> Option<Recipe> {
        match *bias.shape() {
            [1, columns] => bias.reshape(&[columns]),
            _ => Some(bias.clone()),
        }
    }
}

/// Transposes a matrix unless `is_plain` holds.
fn turned_unless(is_plain: bool, matrix: &Recipe) -> Option<Recipe> {
    if is_plain {
        Some(matrix.clone())
    } else {
        matrix.turned()
    }
}
