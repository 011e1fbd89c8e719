//! Sums along axes, and reductions that are computed from such sums.

use ndarray::{ArrayD, IxDyn};

use super::arithmetic::exact;
use super::{Call, NotEvaluated, OpResult, axis};
use crate::prove::field;
use crate::prove::field_value::{Elements, FieldValue, row_major, slice};

/// The sums along these axes. The axes stay with extent 1 if `keep`, and are removed otherwise.
pub(crate) fn sum(elements: &Elements, axes: &[usize], keep: bool) -> ArrayD<u32> {
    let mut sums = slice(elements).to_vec();
    let mut shape = elements.shape().to_vec();
    for &axis in axes {
        let extent = std::mem::replace(&mut shape[axis], 1);
        let inner: usize = shape[axis + 1..].iter().product();
        let outer: usize = shape[..axis].iter().product();
        let mut next = Vec::with_capacity(outer * inner);
        let mut lanes = vec![0_u64; inner];
        for block in 0..outer {
            lanes.fill(0);
            for row in sums[block * extent * inner..][..extent * inner].chunks(inner.max(1)) {
                lanes
                    .iter_mut()
                    .zip(row)
                    .for_each(|(lane, &element)| *lane += u64::from(element));
            }
            next.extend(lanes.iter().map(|&lane| field::reduce(lane)));
        }
        sums = next;
    }
    if !keep {
        shape = (0..shape.len())
            .filter(|axis| !axes.contains(axis))
            .map(|axis| shape[axis])
            .collect();
    }
    ArrayD::from_shape_vec(shape, sums).expect("as many elements")
}

/// The means along these axes.
///
/// # Errors
/// [`NotEvaluated::Uncovered`] if the number of elements has no inverse.
pub(super) fn mean(
    elements: &Elements,
    axes: &[usize],
    keep: bool,
) -> Result<ArrayD<u32>, NotEvaluated> {
    let count: usize = axes.iter().map(|&axis| elements.shape()[axis]).product();
    let part = field::inverse(field::of_int(count as i64)).ok_or(NotEvaluated::Uncovered)?;
    Ok(sum(elements, axes, keep).mapv_into(|element| field::mul(element, part)))
}

pub(super) fn squares(elements: &Elements) -> Elements {
    elements
        .mapv(|element| field::mul(element, element))
        .into_shared()
}

/// ReduceSum, ReduceMean, ReduceSumSquare and ReduceL2.
pub(super) fn reduce(call: &Call) -> OpResult {
    let rank = call.shape(0)?.len();
    call.allowance.room(call.shape(0)?)?;
    let reduced = call.reduced(rank)?;
    let keep = call.flag("keepdims", true)?;
    if let (FieldValue::Int(integers), "ReduceSum") = (call.value(0)?, call.op()) {
        let mut sums = integers.mapv(Some);
        for &axis in reduced.iter().rev() {
            let axis = ndarray::Axis(axis);
            sums = sums.fold_axis(axis, Some(0_i64), |sum, number| {
                (*sum)?.checked_add((*number)?)
            });
            if keep {
                sums.insert_axis_inplace(axis);
            }
        }
        return Ok(vec![FieldValue::int(exact(Some(sums))?)]);
    }
    let elements = call.field(0)?;
    let made = match call.op() {
        "ReduceSum" => sum(elements, &reduced, keep),
        "ReduceMean" => mean(elements, &reduced, keep)?,
        op => {
            let sums = row_major(sum(&squares(elements), &reduced, keep));
            if op == "ReduceL2" {
                call.roots.of(&sums).into_owned()
            } else {
                sums.into_owned()
            }
        }
    };
    Ok(vec![FieldValue::field(made)])
}

/// GlobalAveragePool.
pub(super) fn global(call: &Call) -> OpResult {
    let elements = call.field(0)?;
    let spatial: Vec<usize> = (2..elements.ndim()).collect();
    Ok(vec![FieldValue::field(mean(elements, &spatial, true)?)])
}

/// CumSum.
pub(super) fn running(call: &Call) -> OpResult {
    let shape = call.shape(0)?.to_vec();
    let along = call
        .ints(1)?
        .and_then(|axis| axis.first().copied())
        .ok_or(NotEvaluated::Uncovered)?;
    let along = axis(along, shape.len())?;
    let (exclusive, reverse) = (call.flag("exclusive", false)?, call.flag("reverse", false)?);
    call.allowance.room(&shape)?;
    fn running<T: Copy>(
        from: &[T],
        shape: &[usize],
        along: usize,
        (exclusive, reverse): (bool, bool),
        zero: T,
        add: impl Fn(T, T) -> T,
    ) -> ArrayD<T> {
        let (extent, inner) = (shape[along], shape[along + 1..].iter().product::<usize>());
        let mut sums = from.to_vec();
        for lane in 0..from.len() / extent.max(1) {
            let start = lane / inner * extent * inner + lane % inner;
            let mut sum = zero;
            for step in 0..extent {
                let place = start + if reverse { extent - 1 - step } else { step } * inner;
                let next = add(sum, from[place]);
                sums[place] = if exclusive { sum } else { next };
                sum = next;
            }
        }
        ArrayD::from_shape_vec(IxDyn(shape), sums).expect("as many elements")
    }
    let how = (exclusive, reverse);
    let made = match call.value(0)? {
        FieldValue::Field(elements) => {
            FieldValue::field(running(slice(elements), &shape, along, how, 0, field::add))
        }
        FieldValue::Int(integers) => {
            let integers: Vec<Option<i64>> =
                slice(integers).iter().map(|&number| Some(number)).collect();
            FieldValue::int(exact(Some(running(
                &integers,
                &shape,
                along,
                how,
                Some(0),
                |a, b| a?.checked_add(b?),
            )))?)
        }
        _ => return Err(NotEvaluated::Uncovered),
    };
    Ok(vec![made])
}
