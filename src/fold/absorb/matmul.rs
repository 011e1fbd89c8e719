//! MatMul, with the weight on either side, and runtimes' FusedMatMul: `alpha·A'·B'`, where either may
//! be transposed.
//!
//! `(x·diag(s) + t)·W = x·(diag(s)·W) + t·W` and `(x·W)·diag(s) + t = x·(W·diag(s)) + t`; for a
//! weight on the left, the same transposed. Between two operands that both vary only a scale can
//! pass, along the axes that are not contracted.

use ndarray::{ArrayD, Axis, Ix2, IxDyn};

use super::{Linear, Slots};
use crate::affine::{Affine, align};
use crate::fold::{At, Rule, Side, Step};
use crate::graph::movement::LARGEST;
use crate::refusal::Reason;

/// MatMul.
pub struct MatMul;

impl Rule for MatMul {
    fn ops(&self) -> &'static [&'static str] {
        &["MatMul", "FusedMatMul"]
    }

    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        check_form(at)?;
        if inputs.iter().flatten().count() == 2 {
            let moved = [0, 1].map(|slot| pass(at, slot, inputs[slot].as_ref()));
            let [Ok(left), Ok(right)] = moved else { return Err(Reason::NotConstant) };
            return Ok(Step::go_on(0, left.then(&right)));
        }
        let slot = if inputs[0].is_some() { 0 } else { 1 };
        let affine = at.only(inputs, slot)?;
        if at.is_constant(1 - slot) {
            at.weight(1 - slot)?;
            let result = check(at, affine, Side::Operand(slot));
            return match (result, pass(at, slot, Some(affine))) {
                (Ok(()), _) => Ok(Step::taken(Side::Operand(slot), affine.clone())),
                (Err(_), Ok(passed)) => Ok(Step::go_on(0, passed)),
                (Err(reason), Err(_)) => Err(reason),
            };
        }
        Ok(Step::go_on(0, pass(at, slot, Some(affine))?))
    }

    fn backward(&self, at: &At, _: usize, affine: &Affine) -> Result<Step, Reason> {
        check_form(at)?;
        let constant = [0, 1].into_iter().find(|&slot| at.is_constant(slot));
        if let Some(slot) = constant {
            at.weight(slot)?;
            return match (check(at, affine, Side::Result), pull(at, 1 - slot, affine)) {
                (Ok(()), _) => Ok(Step::taken(Side::Result, affine.clone())),
                (Err(_), Ok(pulled)) => Ok(Step::go_on(1 - slot, pulled)),
                (Err(reason), Err(_)) => Err(reason),
            };
        }
        let ways: Vec<_> =
            (0..2).filter_map(|slot| Some(vec![(slot, pull(at, slot, affine).ok()?)])).collect();
        if ways.is_empty() { Err(Reason::NotConstant) } else { Ok(Step { ways, ..Step::default() }) }
    }
}

/// Refuses forms of FusedMatMul that are more than a product of matrices.
fn check_form(at: &At) -> Result<(), Reason> {
    at.only_attributes(&["alpha", "transA", "transB", "transBatchA", "transBatchB"])?;
    let batch = ["transBatchA", "transBatchB"].iter().find(|name| at.attr(name, 0) != Ok(0));
    batch.map_or(Ok(()), |name| Err(Reason::Attribute((*name).into())))
}

/// Whether an operand is transposed before it is multiplied.
fn is_turned(at: &At, slot: usize) -> bool {
    at.attr(["transA", "transB"][slot], 0) == Ok(1)
}

/// The array with its last two axes swapped, where the operand is transposed.
fn turned(at: &At, slot: usize, array: &ArrayD<f64>) -> ArrayD<f64> {
    let mut array = array.view();
    let rank = array.ndim();
    if rank >= 2 && is_turned(at, slot) {
        array.swap_axes(rank - 1, rank - 2);
    }
    array.as_standard_layout().into_owned()
}

/// An affine on an operand as one on what is multiplied.
fn turned_affine(at: &At, slot: usize, affine: &Affine) -> Affine {
    Affine::new(turned(at, slot, &affine.scale), turned(at, slot, &affine.shift))
}

/// The contracted axis of an operand, and the one that stays in the result's matrix.
fn matrix_axes(slot: usize, rank: usize) -> (usize, usize) {
    if slot == 0 { (rank - 1, rank - 2) } else { (rank - 2, rank - 1) }
}

/// The axis of an operand of this rank that becomes an axis of the result's matrix; `None` where the
/// product is of other forms.
pub fn kept_axis(at: &At, slot: usize, rank: usize) -> Option<usize> {
    let is_matrix = rank >= 2 && at.rank(1 - slot).ok()? >= 2 && check_form(at).is_ok();
    let (contracted, kept) = matrix_axes(slot, if is_matrix { rank } else { return None });
    Some(if is_turned(at, slot) { contracted } else { kept })
}

/// Whether the weight can take the affine from that side.
fn check(at: &At, affine: &Affine, side: Side) -> Result<(), Reason> {
    let affine = &match side {
        Side::Operand(slot) => turned_affine(at, slot, affine),
        _ => affine.clone(),
    };
    let (contracted, kept) = match side {
        Side::Operand(slot) if affine.rank() >= 2 => matrix_axes(slot, affine.rank()),
        _ => (0, 0),
    };
    if let Side::Operand(_) = side
        && (affine.rank() < 2 || affine.scale.shape()[kept] != 1)
    {
        return Err(Reason::WrongAxis);
    }
    let weight_slot = at.is_constant(1) as usize;
    let mut weight = at.extents(weight_slot)?;
    if weight.len() >= 2 && is_turned(at, weight_slot) {
        let rank = weight.len();
        weight.swap(rank - 1, rank - 2);
    }
    let shape = weight_shape(at, side, affine.scale.shape(), weight.len())?;
    if shape.iter().zip(&weight).any(|(&s, &w)| s != 1 && s != w) {
        return Err(Reason::WrongAxis);
    }
    let mut image = affine.shift.shape().to_vec();
    if matches!(side, Side::Operand(_)) {
        image[contracted] = weight.iter().rev().take(2).copied().max().unwrap_or(1);
    }
    let size = image.iter().product();
    if size > LARGEST { Err(Reason::TooLarge(size)) } else { Ok(()) }
}

/// The shape in which a scale multiplies the weight.
fn weight_shape(at: &At, side: Side, scale: &[usize], weight: usize) -> Result<Vec<usize>, Reason> {
    let slot = at.is_constant(1) as usize;
    let mut batch = scale.to_vec();
    // The last two axes of a matrix, or 1 for the one that an operand of rank 1 does not have.
    let mut take = |there: bool| if there { batch.pop().ok_or(Reason::WrongAxis) } else { Ok(1) };
    let (contracted, kept, other) = match side {
        Side::Operand(operand) => {
            let (columns, rows) = (take(true)?, take(true)?);
            let (contracted, other) = if operand == 0 { (columns, rows) } else { (rows, columns) };
            (contracted, 1, other)
        }
        _ => {
            let (columns, rows) = (take(at.rank(1)? > 1)?, take(at.rank(0)? > 1)?);
            let (kept, other) = if slot == 1 { (columns, rows) } else { (rows, columns) };
            (1, kept, other)
        }
    };
    let room = weight.saturating_sub(2);
    let extra = batch.len().saturating_sub(room);
    if other != 1 || batch[..extra].iter().any(|&n| n != 1) {
        return Err(Reason::WrongAxis);
    }
    if weight == 1 {
        return if kept == 1 { Ok(vec![contracted]) } else { Err(Reason::WrongAxis) };
    }
    let matrix = if slot == 1 { [contracted, kept] } else { [kept, contracted] };
    Ok([&vec![1; room - (batch.len() - extra)], &batch[extra..], &matrix].concat())
}

/// A scale on an operand, as a scale on the result.
fn pass(at: &At, slot: usize, affine: Option<&Affine>) -> Result<Affine, Reason> {
    let affine = &turned_affine(at, slot, affine.ok_or(Reason::NotConstant)?);
    if affine.rank() < 2 || at.rank(1 - slot)? < 2 {
        return Err(Reason::WrongAxis);
    }
    if !affine.has_no_shift() {
        return Err(Reason::NotConstant);
    }
    let (contracted, _) = matrix_axes(slot, affine.rank());
    if affine.scale.shape()[contracted] != 1 {
        return Err(Reason::NotConstant);
    }
    let scale = align(&affine.scale, at.output_rank(0)?).ok_or(Reason::UnknownShape)?;
    Ok(Affine::scale(scale))
}

/// A scale on the result, as a scale on one operand.
fn pull(at: &At, slot: usize, affine: &Affine) -> Result<Affine, Reason> {
    let rank = at.rank(slot)?;
    if rank < 2 || affine.rank() < 2 || at.rank(1 - slot)? < 2 || !affine.has_no_shift() {
        return Err(Reason::NotConstant);
    }
    let scale = affine.scale.shape();
    let (contracted, _) = matrix_axes(slot, affine.rank());
    if scale[contracted] != 1 {
        return Err(Reason::WrongAxis);
    }
    let extra = affine.rank() - rank;
    let mut shape = at.shape(slot)?;
    if is_turned(at, slot) {
        shape.swap(rank - 1, rank - 2);
    }
    let fits = |axis: usize| {
        let wanted = scale[axis + extra];
        wanted == 1 || crate::graph::facts::extent(&shape[axis]) == Some(wanted)
    };
    if scale[..extra].iter().any(|&n| n != 1) || !(0..rank).all(fits) {
        return Err(Reason::WrongAxis);
    }
    let shape = scale[extra..].to_vec();
    let scale = affine.scale.clone().into_shape_with_order(shape).map_err(|_| Reason::UnknownShape)?;
    Ok(Affine::scale(turned(at, slot, &scale)))
}

impl Linear for MatMul {
    fn slots(&self, at: &At) -> Result<Slots, Reason> {
        let slot = [1, 0].into_iter().find(|&slot| at.is_constant(slot)).ok_or(Reason::NotConstant)?;
        Ok(Slots { weight: Some(slot), bias: None })
    }

    fn scaled(
        &self,
        at: &At,
        weight: &ArrayD<f64>,
        side: Side,
        scale: &ArrayD<f64>,
    ) -> Result<ArrayD<f64>, Reason> {
        let slot = at.is_constant(1) as usize;
        let weight = &turned(at, slot, weight);
        let scale = match side {
            Side::Operand(operand) => turned(at, operand, scale),
            _ => scale.clone(),
        };
        let shape = weight_shape(at, side, scale.shape(), weight.ndim())?;
        // Only one of the last two axes varies, so that the elements keep their order.
        let scale = scale.to_shape(IxDyn(&shape)).map_err(|_| Reason::WrongAxis)?;
        let scaled = weight * &scale;
        if scaled.shape() == weight.shape() { Ok(turned(at, slot, &scaled)) } else { Err(Reason::WrongAxis) }
    }

    fn contracted(&self, at: &At) -> Result<Vec<usize>, Reason> {
        let slot = at.is_constant(1) as usize;
        Ok(match at.rank(slot)? {
            0 => vec![],
            1 => vec![0],
            rank => {
                let (contracted, kept) = matrix_axes(slot, rank);
                vec![if is_turned(at, slot) { kept } else { contracted }]
            }
        })
    }

    fn image(
        &self,
        at: &At,
        weight: Option<&ArrayD<f64>>,
        operand: usize,
        shift: &ArrayD<f64>,
    ) -> Result<ArrayD<f64>, Reason> {
        let weight = &turned(at, 1 - operand, weight.ok_or(Reason::NotConstant)?);
        let shift = &turned(at, operand, shift);
        let (contracted, _) = matrix_axes(operand, shift.ndim());
        let extent = match (operand, weight.ndim()) {
            (_, 1) => weight.len(),
            (0, n) => weight.shape()[n - 2],
            (_, n) => weight.shape()[n - 1],
        };
        let mut shape = shift.shape().to_vec();
        shape[contracted] = extent;
        let shift = shift.broadcast(shape).ok_or(Reason::WrongAxis)?.to_owned();
        let matrix = match (operand, weight.ndim()) {
            (0, 1) => weight.clone().insert_axis(Axis(1)),
            (_, 1) => weight.clone().insert_axis(Axis(0)),
            _ => weight.clone(),
        };
        let product = if operand == 0 { product(&shift, &matrix)? } else { product(&matrix, &shift)? };
        let product = match (operand, weight.ndim()) {
            (0, 1) => product.index_axis_move(Axis(shift.ndim() - 1), 0),
            (_, 1) => product.index_axis_move(Axis(shift.ndim() - 2), 0),
            _ => product,
        };
        let product = product * at.attr_float("alpha", 1.0)?;
        align(&product, at.output_rank(0)?).ok_or(Reason::UnknownShape)
    }

    fn read_bias(&self, _: &At, _: ArrayD<f64>) -> Result<ArrayD<f64>, Reason> {
        Err(Reason::NotConstant)
    }

    fn write_bias(&self, _: &At, _: &ArrayD<f64>) -> Option<ArrayD<f64>> {
        None
    }
}

/// Matrix product over broadcast leading axes, of arrays with two axes or more.
fn product(a: &ArrayD<f64>, b: &ArrayD<f64>) -> Result<ArrayD<f64>, Reason> {
    let rank = a.ndim().max(b.ndim());
    let a = align(a, rank).ok_or(Reason::UnknownShape)?;
    let b = align(b, rank).ok_or(Reason::UnknownShape)?;
    let mut shape = vec![];
    for axis in 0..rank - 2 {
        shape.push(a.shape()[axis].max(b.shape()[axis]));
    }
    let widen = |array: &ArrayD<f64>| {
        let wide = [&shape[..], &array.shape()[rank - 2..]].concat();
        array.broadcast(wide).map(|wide| wide.to_owned()).ok_or(Reason::WrongAxis)
    };
    let (a, b) = (widen(&a)?, widen(&b)?);
    let (rows, columns) = (a.shape()[rank - 2], b.shape()[rank - 1]);
    let mut result = ArrayD::zeros([&shape[..], &[rows, columns]].concat());
    let batch: usize = shape.iter().product();
    let matrices = |array: &ArrayD<f64>| {
        let shape = (batch, array.shape()[rank - 2], array.shape()[rank - 1]);
        array.to_shape(shape).map(|a| a.into_owned()).map_err(|_| Reason::UnknownShape)
    };
    let (a, b) = (matrices(&a)?, matrices(&b)?);
    let mut flat =
        result.view_mut().into_shape_with_order((batch, rows, columns)).map_err(|_| Reason::UnknownShape)?;
    for i in 0..batch {
        let left = a.index_axis(Axis(0), i).into_dimensionality::<Ix2>();
        let right = b.index_axis(Axis(0), i).into_dimensionality::<Ix2>();
        if let (Ok(left), Ok(right)) = (left, right) {
            flat.index_axis_mut(Axis(0), i).assign(&left.dot(&right));
        }
    }
    Ok(result)
}
