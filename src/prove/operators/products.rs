//! Matrix products.

use ndarray::{ArrayD, Axis};

use super::movement::transposed;
use super::{Allowance, Call, NotEvaluated, OpResult, combine};
use crate::prove::field::{self, Arithmetic};
use crate::prove::field_value::{Elements, FieldValue, row_major, slice};
use crate::prove::matrices::{Extents, multiply};
use crate::recipe::broadcast;

/// The attributes of FusedMatMul.
pub(super) const FUSED: &[&str] = &["alpha", "transA", "transB", "transBatchA", "transBatchB"];

/// Matrix products of the last two axes. The other axes broadcast.
///
/// # Errors
/// If the operands are not matrices, do not fit each other, or exceed the limits.
pub(crate) fn product(
    left: &Elements,
    right: &Elements,
    allowance: &Allowance,
) -> Result<ArrayD<u32>, NotEvaluated> {
    let (&[ref outer_left @ .., rows, inner], &[ref outer_right @ .., other, columns]) =
        (left.shape(), right.shape())
    else {
        return Err(NotEvaluated::Uncovered);
    };
    let outer = broadcast(outer_left, outer_right)
        .filter(|_| inner == other)
        .ok_or(NotEvaluated::Misfit)?;
    let shape = [&outer[..], &[rows, columns]].concat();
    allowance.room(&shape)?;
    let batch: usize = outer.iter().product();
    allowance.products(&[batch, rows, inner, columns])?;
    // If the right operand is a single matrix, it is multiplied with the rows of all left matrices
    // at once.
    let is_one =
        outer_right.iter().all(|&extent| extent == 1) && outer_left.len() >= outer_right.len();
    let (pairs, rows) = if is_one {
        (vec![(0, 0)], batch * rows)
    } else {
        (
            pairs(
                &outer,
                (outer_left, rows * inner),
                (outer_right, inner * columns),
            ),
            rows,
        )
    };
    let products = multiply(
        slice(left),
        slice(right),
        &pairs,
        Extents {
            rows,
            inner,
            columns,
        },
    );
    ArrayD::from_shape_vec(shape, products).map_err(|_| NotEvaluated::Uncovered)
}

/// For each product, the offsets of the left and of the right matrix. `outer` are the broadcast
/// extents before the matrices. `left` and `right` hold the extents before the matrices of each
/// operand, and the size of one matrix.
fn pairs(
    outer: &[usize],
    left: (&[usize], usize),
    right: (&[usize], usize),
) -> Vec<(usize, usize)> {
    (0..outer.iter().product())
        .map(|flat| (start(outer, left, flat), start(outer, right, flat)))
        .collect()
}

/// The offset of an operand's matrix for the product with the index `flat`.
fn start(outer: &[usize], (shape, size): (&[usize], usize), mut flat: usize) -> usize {
    let (mut start, mut step) = (0, size);
    for (axis, &extent) in outer.iter().enumerate().rev() {
        let place = flat % extent;
        flat /= extent;
        let Some(own) = (axis + shape.len()).checked_sub(outer.len()) else {
            break;
        };
        if shape[own] != 1 {
            start += place * step;
        }
        step *= shape[own];
    }
    start
}

/// The product of a MatMul. A vector counts as a row if it is the left operand, and as a column if
/// it is the right one.
pub(super) fn matrices(
    left: &Elements,
    right: &Elements,
    allowance: &Allowance,
) -> Result<ArrayD<u32>, NotEvaluated> {
    let row = if left.ndim() == 1 {
        left.clone().insert_axis(Axis(0))
    } else {
        left.clone()
    };
    let column = if right.ndim() == 1 {
        right.clone().insert_axis(Axis(1))
    } else {
        right.clone()
    };
    let made = product(&row, &column, allowance)?;
    let mut shape = made.shape().to_vec();
    if right.ndim() == 1 {
        shape.pop();
    }
    if left.ndim() == 1 {
        shape.remove(shape.len() + usize::from(right.ndim() == 1) - 2);
    }
    made.into_shape_with_order(shape)
        .map_err(|_| NotEvaluated::Uncovered)
}

pub(super) fn matmul(call: &Call) -> OpResult {
    Ok(vec![FieldValue::field(matrices(
        call.field(0)?,
        call.field(1)?,
        call.allowance,
    )?)])
}

/// The elements with their last two axes swapped.
fn turned(elements: &Elements) -> Result<Elements, NotEvaluated> {
    let mut perm: Vec<usize> = (0..elements.ndim()).collect();
    let last = perm.len().checked_sub(2).ok_or(NotEvaluated::Uncovered)?;
    perm.swap(last, last + 1);
    Ok(row_major(transposed(elements, &perm)))
}

pub(super) fn fused(call: &Call) -> OpResult {
    if call.flag("transBatchA", false)? || call.flag("transBatchB", false)? {
        return Err(NotEvaluated::Uncovered);
    }
    let left = fused_operand(call, 0, "transA")?;
    let right = fused_operand(call, 1, "transB")?;
    let made = matrices(&left, &right, call.allowance)?;
    Ok(vec![FieldValue::field(scaled(
        made,
        call.float("alpha", 1.0)?,
    ))])
}

/// An operand of a FusedMatMul, with its last two axes swapped if the attribute `turns` is set.
fn fused_operand(call: &Call, slot: usize, turns: &str) -> Result<Elements, NotEvaluated> {
    let elements = call.field(slot)?;
    match (elements.ndim(), call.flag(turns, false)?) {
        // A vector is unchanged. Engines disagree about a transposed matrix that is multiplied with
        // a vector.
        (0 | 1, _) | (_, false) => Ok(elements.clone()),
        _ if call.field(1 - slot)?.ndim() == 1 => Err(NotEvaluated::Uncovered),
        _ => turned(elements),
    }
}

fn scaled(elements: ArrayD<u32>, factor: u32) -> ArrayD<u32> {
    if factor == 1 {
        elements
    } else {
        elements.mapv_into(|element| field::mul(element, factor))
    }
}

pub(super) fn gemm(call: &Call) -> OpResult {
    let left = gemm_operand(call, 0, "transA")?;
    let right = gemm_operand(call, 1, "transB")?;
    let made = product(&left, &right, call.allowance)?;
    let made = row_major(scaled(made, call.float("alpha", 1.0)?));
    let Some(added) = call.optional_field(2)? else {
        return Ok(vec![FieldValue::Field(made)]);
    };
    let added = row_major(scaled(added.to_owned(), call.float("beta", 1.0)?));
    let sum = combine(Arithmetic::Add, &made, &added).filter(|sum| sum.shape() == made.shape());
    Ok(vec![FieldValue::field(sum.ok_or(NotEvaluated::Misfit)?)])
}

/// An operand of a Gemm, with its axes swapped if the attribute `turns` is set.
fn gemm_operand(call: &Call, slot: usize, turns: &str) -> Result<Elements, NotEvaluated> {
    let elements = call.field(slot)?;
    match elements.ndim() {
        2 if call.flag(turns, false)? => turned(elements),
        2 => Ok(elements.clone()),
        _ => Err(NotEvaluated::Uncovered),
    }
}
