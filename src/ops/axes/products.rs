//! The [`AxisRead`]s of matrix products. A row of the result reads one row of the first operand,
//! and a column reads one column of the second operand. Stacks of matrices broadcast.

use super::{AxisRead, aligned, broadcast};
use crate::analysis::node_view::At;
use crate::ir::equation::{Equation, is_once};
use crate::refusal::Reason;
use crate::shape::facts::same;

pub(super) fn read(
    at: &At,
    (is_own, op): (bool, &str),
    axis: usize,
) -> Option<Result<Vec<AxisRead>, Reason>> {
    Some(match op {
        "MatMul" if is_own => at
            .only_attributes(&[])
            .and_then(|()| matmul(at, [false; 2], axis)),
        "FusedMatMul" if !is_own => fused_matmul(at, axis),
        "Gemm" if is_own => gemm(at, axis),
        "Einsum" if is_own => einsum(at, axis),
        "Attention" if is_own => attention(at, axis),
        _ => return None,
    })
}

/// The reads of a product of two stacks of matrices, each of which may be transposed.
fn matmul(at: &At, transposed: [bool; 2], axis: usize) -> Result<Vec<AxisRead>, Reason> {
    let [left, right] = [at.rank(0)?, at.rank(1)?];
    if at.arity() != 2 || left == 0 || right == 0 {
        return Err(Reason::UnknownShape);
    }
    let (has_rows, has_columns) = (left > 1, right > 1);
    if (transposed[0] && !has_rows) || (transposed[1] && !has_columns) {
        return Err(Reason::UnknownShape);
    }
    let stacks = left.max(right).saturating_sub(2);
    if axis < stacks {
        let own = [left, right].map(|rank| aligned(axis, stacks, rank.saturating_sub(2)));
        return broadcast(at, &own);
    }
    if has_rows && axis == stacks {
        let rows = left - if transposed[0] { 1 } else { 2 };
        return Ok(vec![AxisRead::Same(rows), AxisRead::All]);
    }
    let columns = right - if transposed[1] { 2 } else { 1 };
    Ok(vec![AxisRead::All, AxisRead::Same(columns)])
}

fn fused_matmul(at: &At, axis: usize) -> Result<Vec<AxisRead>, Reason> {
    at.only_attributes(&["alpha", "transA", "transB", "transBatchA", "transBatchB"])?;
    for name in ["transBatchA", "transBatchB"] {
        if at.flag(name, false)? {
            return Err(Reason::Attribute(name.into()));
        }
    }
    matmul(
        at,
        [at.flag("transA", false)?, at.flag("transB", false)?],
        axis,
    )
}

fn gemm(at: &At, axis: usize) -> Result<Vec<AxisRead>, Reason> {
    at.only_attributes(&["alpha", "beta", "transA", "transB"])?;
    let (a, b) = (
        usize::from(at.flag("transA", false)?),
        usize::from(at.flag("transB", false)?),
    );
    let bias = match at.input(2) {
        Ok(_) => aligned(axis, 2, at.rank(2)?),
        Err(_) => None,
    };
    let rows = axis == 0;
    // The bias broadcasts to the extent of the product, and does not change that extent.
    let (slot, own, whole) = if rows { (0, a, 1) } else { (1, 1 - b, 0) };
    let mut reads = vec![AxisRead::Absent; at.arity()];
    reads[slot] = AxisRead::Same(own);
    reads[whole] = AxisRead::All;
    if let Some(place) = bias
        && at.extent(2, place) != Ok(1)
    {
        if !same(&at.shape(2)?[place], &at.shape(slot)?[own]) {
            return Err(Reason::UnknownShape);
        }
        reads[2] = AxisRead::Same(place);
    }
    Ok(reads)
}

fn einsum(at: &At, axis: usize) -> Result<Vec<AxisRead>, Reason> {
    at.only_attributes(&["equation"])?;
    let ranks: Vec<Option<usize>> = (0..at.arity()).map(|slot| at.rank(slot).ok()).collect();
    let invalid = Reason::Attribute("equation".into());
    let Some(equation) = Equation::read(at.attr_text("equation", "")?, &ranks) else {
        return Err(invalid);
    };
    let mut terms = equation.operands.iter().chain([&equation.result]);
    let Some(&letter) = equation.result.get(axis) else {
        return Err(invalid);
    };
    if !terms.all(|letters| is_once(letters)) {
        return Err(invalid);
    }
    let places: Vec<Option<usize>> = equation
        .operands
        .iter()
        .map(|letters| letters.iter().position(|&other| other == letter))
        .collect();
    let mut reads = broadcast(at, &places)?;
    for (read, place) in reads.iter_mut().zip(places) {
        if place.is_none() {
            *read = AxisRead::All;
        }
    }
    Ok(reads)
}

/// The reads of an Attention. A query reads all keys and values, and its own row of the mask. With
/// `is_causal`, the number of keys depends on the place of the query, so the queries are not
/// independent.
fn attention(at: &At, axis: usize) -> Result<Vec<AxisRead>, Reason> {
    at.only_attributes(&[
        "is_causal",
        "kv_num_heads",
        "q_num_heads",
        "qk_matmul_output_mode",
        "scale",
        "softcap",
        "softmax_precision",
    ])?;
    let rank = at.rank(0)?;
    let (queries, heads) = match rank {
        3 => (1, None),
        4 => (2, Some(1)),
        _ => return Err(Reason::UnknownShape),
    };
    let has_mask = at.input(3).is_ok();
    if has_mask {
        at.rank(3)?;
    }
    let mut reads = vec![AxisRead::All; at.arity()];
    // The corresponding axis of a mask with the axes batch, heads, queries and keys.
    let mask_axis = if axis == 0 {
        share(at, &mut reads, 0);
        0
    } else if axis == queries {
        if at.flag("is_causal", false)? {
            return Err(Reason::Attribute("is_causal".into()));
        }
        reads[0] = AxisRead::Same(queries);
        2
    } else if Some(axis) == heads {
        if !same(&at.shape(0)?[axis], &at.shape(1)?[axis]) {
            return Err(Reason::UnknownShape);
        }
        share(at, &mut reads, 1);
        // This input has the number of keys of each sample, which all heads share.
        if let Some(lengths) = reads.get_mut(6) {
            *lengths = AxisRead::All;
        }
        1
    } else {
        return Ok(reads);
    };
    if has_mask {
        reads[3] = mask_read(at, axis, mask_axis)?;
    }
    Ok(reads)
}

/// Sets the reads of all present inputs to the same place along `axis`, and those of absent inputs
/// to [`AxisRead::Absent`].
fn share(at: &At, reads: &mut [AxisRead], axis: usize) {
    for (slot, read) in reads.iter_mut().enumerate() {
        *read = match at.input(slot) {
            Ok(_) => AxisRead::Same(axis),
            Err(_) => AxisRead::Absent,
        };
    }
}

/// The read of the mask, which broadcasts to `[batch, heads, queries, keys]`. `axis` is the axis of
/// the first input that corresponds to the axis `mask_axis` of this shape.
fn mask_read(at: &At, axis: usize, mask_axis: usize) -> Result<AxisRead, Reason> {
    let Some(place) = aligned(mask_axis, 4, at.rank(3)?) else {
        return Ok(AxisRead::Absent);
    };
    if at.extent(3, place) == Ok(1) {
        return Ok(AxisRead::Absent);
    }
    if same(&at.shape(3)?[place], &at.shape(0)?[axis]) {
        return Ok(AxisRead::Same(place));
    }
    Err(Reason::UnknownShape)
}
