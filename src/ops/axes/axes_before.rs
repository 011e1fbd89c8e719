//! Finds the axes of a movement's input that hold the places of several axes of its output.

use crate::analysis::node_view::At;
use crate::shape::facts::{Shape, same};

/// The axes of the input of a movement that together hold the places along `axes` of its output.
/// All other axes keep their extents and their order. `axes` are in ascending order, and so is the
/// result.
///
/// `None` for other nodes, or if the movement mixes the places along `axes` with other places.
pub(crate) fn axes_before(at: &At, axes: &[usize]) -> Option<Vec<usize>> {
    match at.graph.domain_op(at.node) {
        ("", "Transpose") => before_transpose(at, axes),
        ("", "Flatten" | "Reshape" | "Squeeze" | "Unsqueeze") => before_reshape(at, axes),
        _ => None,
    }
}

fn before_transpose(at: &At, axes: &[usize]) -> Option<Vec<usize>> {
    at.only_attributes(&["perm"]).ok()?;
    let order = at.permutation(at.rank(0).ok()?).ok()?;
    let kept = (0..order.len()).filter(|axis| !axes.contains(axis));
    let keeps_order = kept.map(|axis| order[axis]).is_sorted();
    let mut before: Vec<usize> = axes.iter().map(|&axis| order[axis]).collect();
    before.sort_unstable();
    keeps_order.then_some(before)
}

/// The axes before a movement that keeps the order of all elements. The axes before and after
/// `axes` must have the same extents in the input and in the output.
fn before_reshape(at: &At, axes: &[usize]) -> Option<Vec<usize>> {
    at.only_attributes(&["allowzero", "axes", "axis"]).ok()?;
    let [before, after] = [at.shape(0).ok()?, at.output_shape(0).ok()?];
    let (&first, &last) = (axes.first()?, axes.last()?);
    let end = before.len().checked_sub(after.len() - last - 1)?;
    let are_adjacent = last + 1 - first == axes.len();
    let is_kept = first <= end
        && are_same(&before, &after, first)
        && are_same(&reversed(&before), &reversed(&after), before.len() - end);
    (are_adjacent && is_kept).then(|| (first..end).collect())
}

/// Whether the first `count` extents of two shapes are known to be equal.
fn are_same(one: &Shape, other: &Shape, count: usize) -> bool {
    let mut pairs = one.iter().zip(other).take(count);
    pairs.all(|(one, other)| same(one, other))
}

fn reversed(shape: &Shape) -> Shape {
    shape.iter().rev().cloned().collect()
}
