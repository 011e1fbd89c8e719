//! MatMul, with the weight on either side, and FusedMatMul of com.microsoft: `alpha·A'·B'`, where
//! either operand may be transposed.
//!
//! `(x·diag(s) + t)·W = x·(diag(s)·W) + t·W` and `(x·W)·diag(s) + t = x·(W·diag(s)) + t`. A weight
//! on the left folds in the same way, transposed. If both operands vary, a scale along an axis that
//! is not contracted passes to the result. A shift passes if the other operand is row-stochastic,
//! as in attention.

use crate::affine::Affine;
use crate::affine::linear::elementwise::shrunk_to;
use crate::affine::linear::{Linear, Slots, dequantized, only_along};
use crate::affine::row_stochastic::add_up_to_one;
use crate::affine::rule::{At, Rule, Side, Step};
use crate::analysis::broadcast::LARGEST;
use crate::recipe::{Numbers, Recipe};
use crate::refusal::Reason;

/// MatMul and FusedMatMul.
pub(crate) struct MatMul;

impl Rule for MatMul {
    fn ops(&self) -> &'static [&'static str] {
        &["MatMul", "com.microsoft.FusedMatMul"]
    }

    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        check_form(at)?;
        if inputs.iter().flatten().count() == 2 {
            if inputs.iter().flatten().any(|affine| !affine.has_no_shift()) {
                return Err(Reason::NotConstant);
            }
            let moved = [0, 1].map(|slot| pass(at, slot, inputs[slot].as_ref()));
            let [Ok(left), Ok(right)] = moved else {
                return Err(Reason::NotConstant);
            };
            return Ok(Step::pass_on(0, left.then(&right)));
        }
        let slot = if inputs[0].is_some() { 0 } else { 1 };
        let affine = at.only(inputs, slot)?;
        if at.is_dequantized(1 - slot) {
            return into_dequantized(at, slot, affine);
        }
        if at.is_constant(1 - slot) {
            at.weight(1 - slot)?;
            let result = check(at, affine, Side::Operand(slot));
            return match (result, pass(at, slot, Some(affine))) {
                (Ok(()), _) => Ok(Step::taken(Side::Operand(slot), affine.clone())),
                (Err(_), Ok(passed)) => Ok(Step::pass_on(0, passed)),
                (Err(reason), Err(_)) => Err(reason),
            };
        }
        pass(at, slot, Some(affine))
            .map(|passed| Step::pass_on(0, passed))
            .or_else(|reason| {
                let factor = factor(at, slot, affine).ok_or(reason)?;
                Ok(Step::into_factor(1 - slot, factor))
            })
    }

    fn backward(&self, at: &At, _: usize, affine: &Affine) -> Result<Step, Reason> {
        check_form(at)?;
        let mut slots = [0, 1];
        let constant = slots.into_iter().find(|&slot| at.is_constant(slot));
        if let Some(slot) = constant.filter(|&slot| !at.is_dequantized(slot)) {
            at.weight(slot)?;
            return match (check(at, affine, Side::Result), pull(at, 1 - slot, affine)) {
                (Ok(()), _) => Ok(Step::taken(Side::Result, affine.clone())),
                (Err(_), Ok(pulled)) => Ok(Step::pass_on(1 - slot, pulled)),
                (Err(reason), Err(_)) => Err(reason),
            };
        }
        // Tries the scales of a quantized weight first.
        slots.sort_by_key(|&slot| !at.is_dequantized(slot));
        let ways: Vec<_> = slots
            .into_iter()
            .filter_map(|slot| Some(vec![(slot, pull(at, slot, affine).ok()?)]))
            .collect();
        if ways.is_empty() {
            Err(Reason::NotConstant)
        } else {
            Ok(Step {
                ways,
                ..Step::default()
            })
        }
    }
}

/// The forward step of an operand that is multiplied by a weight from a DequantizeLinear.
fn into_dequantized(at: &At, slot: usize, affine: &Affine) -> Result<Step, Reason> {
    let weight = 1 - slot;
    let (contracted, kept) = match affine.rank() {
        0 | 1 => return Err(Reason::WrongAxis),
        rank => matrix_axes(slot, rank),
    };
    let turned = turned_affine(at, slot, affine);
    if turned.scale.shape()[kept] != 1 {
        let passed = pass(at, slot, Some(affine))?;
        return Ok(Step::pass_on(0, passed));
    }
    only_along(&Affine::scale(turned.scale), &[contracted])?;
    let rank = at.rank(weight)?;
    let along = match rank {
        0 => return Err(Reason::WrongAxis),
        1 => 0,
        _ => contracted_axis(at, weight, rank),
    };
    dequantized::forward(at, weight, along, affine)
}

/// Refuses a FusedMatMul that does more than multiply matrices.
fn check_form(at: &At) -> Result<(), Reason> {
    if at.graph.domain_op(at.node) == ("", "MatMul") {
        return at.only_attributes(&[]);
    }
    at.only_attributes(&["alpha", "transA", "transB", "transBatchA", "transBatchB"])?;
    at.attr_float("alpha", 1.0)?;
    for (slot, name) in ["transA", "transB"].into_iter().enumerate() {
        // onnxruntime does not transpose a matrix if the other operand is a vector.
        if at.flag(name, false)? && at.rank(1 - slot)? < 2 {
            return Err(Reason::Attribute(name.into()));
        }
    }
    let batch = ["transBatchA", "transBatchB"]
        .iter()
        .find(|name| at.attr(name, 0) != Ok(0));
    batch.map_or(Ok(()), |name| Err(Reason::Attribute((*name).into())))
}

/// Whether an operand is transposed before the multiplication.
fn is_turned(at: &At, slot: usize) -> bool {
    at.flag(["transA", "transB"][slot], false) == Ok(true)
}

/// Swaps the last two axes of a matrix if the operand is transposed.
fn turned(at: &At, slot: usize, matrix: &Recipe) -> Recipe {
    let swapped = matrix.turned().filter(|_| is_turned(at, slot));
    swapped.unwrap_or_else(|| matrix.clone())
}

/// Converts an affine from the axes of an operand as stored to the axes in which it is multiplied,
/// or back.
fn turned_affine(at: &At, slot: usize, affine: &Affine) -> Affine {
    if !is_turned(at, slot) {
        return affine.clone();
    }
    let Affine { scale, shift } = affine;
    match (scale.turned(), shift.turned()) {
        (Some(scale), Some(shift)) => Affine::new(scale, shift),
        _ => affine.clone(),
    }
}

/// The contracted axis of an operand, and the axis that becomes an axis of the result's matrix.
fn matrix_axes(slot: usize, rank: usize) -> (usize, usize) {
    if slot == 0 {
        (rank - 1, rank - 2)
    } else {
        (rank - 2, rank - 1)
    }
}

/// The axis of an operand of this rank that becomes an axis of the result's matrix. `None` if the
/// node is not a product of matrices.
pub(crate) fn kept_axis(at: &At, slot: usize, rank: usize) -> Option<usize> {
    let is_matrix = rank >= 2 && at.rank(1 - slot).ok()? >= 2 && check_form(at).is_ok();
    if !is_matrix {
        return None;
    }
    let (contracted, kept) = matrix_axes(slot, rank);
    Some(if is_turned(at, slot) {
        contracted
    } else {
        kept
    })
}

/// The contracted axis of an operand of this rank, in the axes of the operand as stored.
fn contracted_axis(at: &At, slot: usize, rank: usize) -> usize {
    let (contracted, kept) = matrix_axes(slot, rank);
    if is_turned(at, slot) {
        kept
    } else {
        contracted
    }
}

/// Checks that the weight can absorb the affine from `side`.
fn check(at: &At, affine: &Affine, side: Side) -> Result<(), Reason> {
    let affine = &match side {
        Side::Operand(slot) => turned_affine(at, slot, affine),
        _ => affine.clone(),
    };
    let contracted = match side {
        Side::Operand(slot) if affine.rank() >= 1 => contracted_of(slot, affine.rank()),
        Side::Operand(_) => return Err(Reason::WrongAxis),
        _ => 0,
    };
    if let Side::Operand(slot) = side
        && affine.rank() >= 2
        && affine.scale.shape()[matrix_axes(slot, affine.rank()).1] != 1
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
    if size > LARGEST {
        Err(Reason::TooLarge(size))
    } else {
        Ok(())
    }
}

/// The shape to which a scale is reshaped so that it multiplies the weight.
fn weight_shape(at: &At, side: Side, scale: &[usize], weight: usize) -> Result<Vec<usize>, Reason> {
    let is_right = at.is_constant(1);
    let is_matrix = scale.len() >= 2;
    let (batch, [rows, columns]) = match side {
        Side::Operand(0) => split_matrix(scale, [is_matrix, true])?,
        Side::Operand(_) => split_matrix(scale, [true, is_matrix])?,
        _ => split_matrix(scale, [at.rank(0)? > 1, at.rank(1)? > 1])?,
    };
    let (contracted, kept, other) = match side {
        Side::Operand(0) => (columns, 1, rows),
        Side::Operand(_) => (rows, 1, columns),
        _ if is_right => (1, columns, rows),
        _ => (1, rows, columns),
    };
    let room = weight.saturating_sub(2);
    let (leading, batch) = batch.split_at(batch.len().saturating_sub(room));
    if other != 1 || leading.iter().any(|&n| n != 1) {
        return Err(Reason::WrongAxis);
    }
    if weight == 1 {
        return if kept == 1 {
            Ok(vec![contracted])
        } else {
            Err(Reason::WrongAxis)
        };
    }
    let matrix = if is_right {
        [contracted, kept]
    } else {
        [kept, contracted]
    };
    Ok([&vec![1; room - batch.len()], batch, &matrix].concat())
}

/// Splits a shape into its batch axes and the extents of its rows and columns. An axis that the
/// shape lacks, as with an operand of rank 1, has extent 1.
fn split_matrix(
    shape: &[usize],
    [has_rows, has_columns]: [bool; 2],
) -> Result<(&[usize], [usize; 2]), Reason> {
    let (batch, columns) = split_last(shape, has_columns)?;
    let (batch, rows) = split_last(batch, has_rows)?;
    Ok((batch, [rows, columns]))
}

/// Splits the last extent off a shape. The extent is 1 if the shape does not have the axis.
fn split_last(shape: &[usize], has_axis: bool) -> Result<(&[usize], usize), Reason> {
    match shape {
        _ if !has_axis => Ok((shape, 1)),
        [before @ .., last] => Ok((before, *last)),
        [] => Err(Reason::WrongAxis),
    }
}

/// Whether a shift of an operand reaches the result unchanged, because the other operand is
/// row-stochastic along the contracted axis.
fn mixes(at: &At, slot: usize) -> bool {
    let other = 1 - slot;
    let has_no_factor =
        at.graph.domain_op(at.node) == ("", "MatMul") || at.attr_float("alpha", 1.0) == Ok(1.0);
    at.rank(other).is_ok_and(|rank| {
        has_no_factor && add_up_to_one(at, other, contracted_axis(at, other, rank))
    })
}

/// Converts an affine of an operand to one of the result. An error if the affine varies along the
/// contracted axis, or has a shift that the other operand changes.
fn pass(at: &At, slot: usize, affine: Option<&Affine>) -> Result<Affine, Reason> {
    let affine = &turned_affine(at, slot, affine.ok_or(Reason::NotConstant)?);
    if affine.rank() < 2 || at.rank(1 - slot)? < 2 {
        return Err(Reason::WrongAxis);
    }
    let (contracted, _) = matrix_axes(slot, affine.rank());
    if !affine.is_uniform_along(contracted) || !(affine.has_no_shift() || mixes(at, slot)) {
        return Err(Reason::NotConstant);
    }
    let rank = at.output_rank(0)?;
    affine.try_map(|numbers| numbers.align(rank).ok_or(Reason::UnknownShape))
}

/// Converts a scale along the contracted axis to a scale of the other operand. `None` for any other
/// affine.
fn factor(at: &At, slot: usize, affine: &Affine) -> Option<Affine> {
    let scale = turned_affine(at, slot, affine).scale;
    let rank = at.rank(1 - slot).ok()?;
    if rank == 0 || affine.rank() == 0 || affine.axes().len() != 1 || !affine.has_no_shift() {
        return None;
    }
    if scale.shape()[contracted_of(slot, affine.rank())] == 1 {
        return None;
    }
    let mut shape = vec![1; rank];
    shape[contracted_of(1 - slot, rank)] = scale.len();
    let scale = Affine::scale(scale.reshape(&shape)?);
    Some(turned_affine(at, 1 - slot, &scale))
}

/// The contracted axis of an operand that is not transposed. A vector has only one axis.
fn contracted_of(slot: usize, rank: usize) -> usize {
    if rank == 1 {
        0
    } else {
        matrix_axes(slot, rank).0
    }
}

/// Converts an affine of the result to one of the operand `slot`. An error if the affine varies
/// along an axis that the operand lacks, or has a shift that the other operand changes.
fn pull(at: &At, slot: usize, affine: &Affine) -> Result<Affine, Reason> {
    let rank = at.rank(slot)?;
    let are_matrices = rank >= 2 && affine.rank() >= 2 && at.rank(1 - slot)? >= 2;
    if !are_matrices || !(affine.has_no_shift() || mixes(at, slot)) {
        return Err(Reason::NotConstant);
    }
    let (contracted, _) = matrix_axes(slot, affine.rank());
    if !affine.is_uniform_along(contracted) {
        return Err(Reason::WrongAxis);
    }
    if affine.rank() < rank {
        return Err(Reason::UnknownShape);
    }
    let mut shape = at.shape(slot)?;
    if is_turned(at, slot) {
        shape.swap(rank - 1, rank - 2);
    }
    let wanted = shrunk_to(affine, &shape).ok_or(Reason::WrongAxis)?;
    Ok(turned_affine(at, slot, &wanted))
}

impl Linear for MatMul {
    fn slots(&self, at: &At) -> Result<Slots, Reason> {
        let slot = at.constant_operand().ok_or(Reason::NotConstant)?;
        Ok(Slots {
            weight: Some(slot),
            bias: None,
        })
    }

    fn scaled(
        &self,
        at: &At,
        weight: &Recipe,
        side: Side,
        scale: &Numbers,
    ) -> Result<Recipe, Reason> {
        let slot = at.is_constant(1) as usize;
        let weight = turned(at, slot, weight);
        let scale = match side {
            Side::Operand(operand) => turned(at, operand, scale.recipe()),
            _ => scale.recipe().clone(),
        };
        let shape = weight_shape(at, side, scale.shape(), weight.rank())?;
        // The scale varies along one of the last two axes only, so the reshape keeps the order of
        // the elements.
        let scaled = scale.reshape(&shape).and_then(|scale| weight.mul(&scale));
        let scaled = scaled
            .filter(|scaled| scaled.shape() == weight.shape())
            .ok_or(Reason::WrongAxis)?;
        Ok(turned(at, slot, &scaled))
    }

    fn contracted(&self, at: &At) -> Result<Vec<usize>, Reason> {
        let slot = at.is_constant(1) as usize;
        Ok(match at.rank(slot)? {
            0 => vec![],
            1 => vec![0],
            rank => vec![contracted_axis(at, slot, rank)],
        })
    }

    fn image(
        &self,
        at: &At,
        weight: Option<&Recipe>,
        operand: usize,
        shift: &Numbers,
    ) -> Result<Recipe, Reason> {
        let weight = turned(at, 1 - operand, weight.ok_or(Reason::NotConstant)?);
        let mut shift = turned(at, operand, shift.recipe());
        // A vector is treated as a matrix with one row or one column. The result lacks that axis.
        let is_vector = shift.rank() == 1;
        if is_vector {
            let column = [shift.len(), 1];
            let row = [1, shift.len()];
            let matrix = shift.reshape(if operand == 0 { &row } else { &column });
            shift = matrix.ok_or(Reason::UnknownShape)?;
        }
        let rank = shift.rank();
        let (contracted, _) = matrix_axes(operand, rank);
        // A weight of rank 1 is treated as a matrix with one column or one row. The result lacks
        // that axis.
        let matrix = match (weight.shape(), operand) {
            // The operator takes no scalar.
            ([], _) => None,
            (&[length], 0) => weight.reshape(&[length, 1]),
            (&[length], _) => weight.reshape(&[1, length]),
            _ => Some(weight.clone()),
        };
        let matrix = matrix.ok_or(Reason::UnknownShape)?;
        let mut shape = shift.shape().to_vec();
        shape[contracted] = matrix.shape()[matrix_axes(1 - operand, matrix.rank()).0];
        let shift = shift.expand(&shape).ok_or(Reason::WrongAxis)?;
        let product = if operand == 0 {
            shift.product(&matrix)
        } else {
            matrix.product(&shift)
        };
        let mut product = product.ok_or(Reason::WrongAxis)?;
        let mut lacks = [is_vector, weight.rank() == 1];
        if operand == 1 {
            lacks.reverse();
        }
        let [lacks_rows, lacks_columns] = lacks;
        let mut shape = product.shape().to_vec();
        let columns = shape.len() - 1;
        if lacks_columns {
            shape.remove(columns);
        }
        if lacks_rows {
            shape.remove(columns - 1);
        }
        if lacks_rows || lacks_columns {
            product = product.reshape(&shape).ok_or(Reason::UnknownShape)?;
        }
        let alpha = Recipe::number(at.attr_float("alpha", 1.0)?, 0);
        let product = product
            .mul(&alpha)
            .and_then(|product| product.align(at.output_rank(0).ok()?));
        product.ok_or(Reason::UnknownShape)
    }

    fn read_bias(&self, _: &At, _: Recipe) -> Result<Recipe, Reason> {
        Err(Reason::NotConstant)
    }

    fn write_bias(&self, _: &At, _: &Recipe) -> Option<Recipe> {
        None
    }
}
