//! Writes a value with its axis factors in another order, or in other groups.

use crate::analysis::axis_factors::{Axes, AxisFactor, AxisFactors};
use crate::ir::builder::Maker;
use crate::shape::facts::same;

/// Adds the Reshapes and the Transpose that move the factors of a value from the axes `from` to the
/// axes `to`. Returns the name of the result. `None` if a Reshape would have two unknown extents.
pub(super) fn rearranged(
    factors: &AxisFactors,
    value: &str,
    [from, to]: [&Axes; 2],
    maker: &mut Maker,
) -> Option<String> {
    if from.concat() == to.concat() {
        return reshaped(factors, value, [from, to], maker);
    }
    if let Some(order) = order(from, to) {
        return Some(transposed(value, &order, maker));
    }
    let [apart, turned] = [from, to].map(single);
    let order = order(&apart, &turned)?;
    let value = reshaped(factors, value, [from, &apart], maker)?;
    let value = transposed(&value, &order, maker);
    reshaped(factors, &value, [&turned, to], maker)
}

/// The permutation that turns the axes `from` into the axes `to`. `None` if `to` contains other
/// axes than `from`. Axes of extent 1 keep their order.
fn order(from: &Axes, to: &Axes) -> Option<Vec<usize>> {
    let mut free: Vec<Option<&Vec<AxisFactor>>> = from.iter().map(Some).collect();
    let mut order = vec![];
    for axis in to {
        let place = free.iter().position(|held| *held == Some(axis))?;
        free[place] = None;
        order.push(place);
    }
    (order.len() == from.len()).then_some(order)
}

fn transposed(value: &str, order: &[usize], maker: &mut Maker) -> String {
    if order.is_sorted() {
        return value.to_owned();
    }
    let order: Vec<i64> = order.iter().map(|&axis| axis as i64).collect();
    maker.transpose(value, &order)
}

/// The factors of all axes in order, each as an axis of its own.
fn single(axes: &Axes) -> Axes {
    axes.iter().flatten().map(|&factor| vec![factor]).collect()
}

fn reshaped(
    factors: &AxisFactors,
    value: &str,
    [from, to]: [&Axes; 2],
    maker: &mut Maker,
) -> Option<String> {
    if from == to {
        return Some(value.to_owned());
    }
    let extents = target(factors, from, to)?;
    Some(maker.reshape(value, &extents))
}

/// The target extents of a Reshape. An unknown extent is copied from the axis with the same index,
/// if it has this extent, and is inferred otherwise. `None` if more than one extent would be
/// inferred.
fn target(factors: &AxisFactors, from: &Axes, to: &Axes) -> Option<Vec<i64>> {
    let mut extents = vec![];
    for (place, axis) in to.iter().enumerate() {
        let before = from.get(place);
        extents.push(match (number(factors, axis), before) {
            (Some(number), _) => Some(number).filter(|&number| number > 0)?,
            (None, Some(before)) if is_same(factors, before, axis) => 0,
            (None, _) => -1,
        });
    }
    match [0, -1].map(|mark| extents.iter().filter(|&&extent| extent == mark).count()) {
        // A single 0 becomes -1, because onnxruntime keeps a buffer for each shape that it
        // recognizes by a 0.
        [1, 0] => extents
            .iter_mut()
            .filter(|extent| **extent == 0)
            .for_each(|extent| *extent = -1),
        [_, 0 | 1] => {}
        _ => return None,
    }
    Some(extents)
}

fn number(factors: &AxisFactors, axis: &[AxisFactor]) -> Option<i64> {
    i64::try_from(factors.count(axis)?).ok()
}

fn is_same(factors: &AxisFactors, one: &[AxisFactor], other: &[AxisFactor]) -> bool {
    one == other || same(&factors.product(one), &factors.product(other))
}
