//! Gemm: `Y = alpha·A'·B' + beta·C`, with A or B constant, transposed or not.
//!
//! For an affine on A: `B'` is scaled along its contracted axis, and `alpha·t·B'` joins `beta·C`;
//! beta becomes 1 where C is written anew, for `beta·C` may round where C alone does not.

use ndarray::{Array1, ArrayD, Axis, Ix2};

use super::{Linear, Slots, only_along};
use crate::affine::{Affine, align};
use crate::fold::{At, Rule, Side, Step};
use crate::refusal::Reason;

/// Gemm.
pub struct Gemm;

impl Rule for Gemm {
    fn ops(&self) -> &'static [&'static str] {
        &["Gemm"]
    }

    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        check(at)?;
        let slot = if inputs[0].is_some() { 0 } else { 1 };
        let affine = at.only(inputs, slot)?;
        at.weight(1 - slot)?;
        if affine.scale.shape()[1 - contracted(at, slot)?] != 1 {
            return Err(Reason::WrongAxis);
        }
        Ok(Step::taken(Side::Operand(slot), affine.clone()))
    }

    fn backward(&self, at: &At, _: usize, affine: &Affine) -> Result<Step, Reason> {
        check(at)?;
        let slot = self.slots(at)?.weight.ok_or(Reason::NotConstant)?;
        at.weight(slot)?;
        only_along(&Affine::scale(affine.scale.clone()), &[slot])?;
        let has_variable_bias = at.graph.input(at.node, 2).is_some() && !at.is_constant(2);
        if has_variable_bias && !affine.has_no_scale() {
            return Err(Reason::NotConstant);
        }
        Ok(Step::taken(Side::Result, affine.clone()))
    }
}

fn check(at: &At) -> Result<(), Reason> {
    at.only_attributes(&["alpha", "beta", "transA", "transB"])?;
    if at.graph.input(at.node, 2).is_some() && at.is_constant(2) {
        at.weight(2)?;
    }
    Ok(())
}

/// The contracted axis of A (slot 0) or B (slot 1).
fn contracted(at: &At, slot: usize) -> Result<usize, Reason> {
    let transposed = at.attr(["transA", "transB"][slot], 0)? != 0;
    Ok(if slot == 0 { !transposed as usize } else { transposed as usize })
}

impl Linear for Gemm {
    fn slots(&self, at: &At) -> Result<Slots, Reason> {
        let weight = [1, 0].into_iter().find(|&slot| at.is_constant(slot)).ok_or(Reason::NotConstant)?;
        let bias_is_free = at.graph.input(at.node, 2).is_none() || at.is_constant(2);
        Ok(Slots { weight: Some(weight), bias: bias_is_free.then_some(2) })
    }

    fn scaled(
        &self,
        at: &At,
        weight: &ArrayD<f64>,
        side: Side,
        scale: &ArrayD<f64>,
    ) -> Result<ArrayD<f64>, Reason> {
        let slot = self.slots(at)?.weight.ok_or(Reason::NotConstant)?;
        let along = match side {
            Side::Operand(_) => contracted(at, slot)?,
            _ => 1 - contracted(at, slot)?,
        };
        let vector = Array1::from_iter(scale.iter().copied());
        let shape = if along == 0 { (vector.len(), 1) } else { (1, vector.len()) };
        let vector = vector.into_shape_with_order(shape).map_err(|_| Reason::WrongAxis)?;
        let scaled = weight * &vector;
        if scaled.shape() == weight.shape() { Ok(scaled) } else { Err(Reason::WrongAxis) }
    }

    fn contracted(&self, at: &At) -> Result<Vec<usize>, Reason> {
        Ok(vec![contracted(at, self.slots(at)?.weight.ok_or(Reason::NotConstant)?)?])
    }

    fn image(
        &self,
        at: &At,
        weight: Option<&ArrayD<f64>>,
        operand: usize,
        shift: &ArrayD<f64>,
    ) -> Result<ArrayD<f64>, Reason> {
        let weight = weight.ok_or(Reason::NotConstant)?;
        let matrix = weight.view().into_dimensionality::<Ix2>().map_err(|_| Reason::UnknownShape)?;
        // Both with the contracted axis where a plain product has it.
        let matrix = if contracted(at, 1 - operand)? == operand { matrix } else { matrix.reversed_axes() };
        let mut wide = shift.shape().to_vec();
        wide[contracted(at, operand)?] = matrix.len_of(Axis(operand));
        let shift = shift.broadcast(wide).ok_or(Reason::WrongAxis)?;
        let shift = shift.into_dimensionality::<Ix2>().map_err(|_| Reason::UnknownShape)?;
        let shift = if contracted(at, operand)? == 1 - operand { shift } else { shift.reversed_axes() };
        let product = if operand == 0 { shift.dot(&matrix) } else { matrix.dot(&shift) };
        Ok((product * at.attr_float("alpha", 1.0)?).into_dyn())
    }

    fn read_bias(&self, at: &At, bias: ArrayD<f64>) -> Result<ArrayD<f64>, Reason> {
        let beta = at.attr_float("beta", 1.0)?;
        align(&(bias * beta), 2).ok_or(Reason::UnknownShape)
    }

    fn write_bias(&self, _: &At, bias: &ArrayD<f64>) -> Option<ArrayD<f64>> {
        match bias.shape() {
            [1, _] => Some(bias.index_axis(Axis(0), 0).to_owned()),
            _ => Some(bias.clone()),
        }
    }
}
