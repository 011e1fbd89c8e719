//! Parts of an axis whose extent is known only at run time.
//!
//! ```text
//! places = max(⌈n / k⌉, m)                            n: the extent, k: the number of parts
//! extentᵢ = min(max(n − i · places, 0), places)        i = 0, …, k − 1
//! ```
//!
//! `m` is the number of places of a part at the expected size. So `places` is never smaller than
//! `m`. At small sizes the first part has all places, and the other parts have none.

use crate::analysis::Analysis;
use crate::ir::builder::{Maker, int};
use crate::ir::{NodeId, ValueId};
use crate::onnx::operator::SHAPE_OF_AXES;
use crate::shape::facts::same;

/// The number of nodes that compute the extents.
pub(super) const COMPUTING: usize = 8;

/// The number of places of each part, if `places` places are cut into `parts` parts.
pub(super) fn open_extents(places: usize, parts: usize) -> Vec<usize> {
    let most = places.div_ceil(parts);
    let starts = (0..parts).map(|part| part * most);
    starts
        .map(|start| places.saturating_sub(start).min(most))
        .collect()
}

/// Computes the number of places of each part along an axis of a value, for a Split. A part has at
/// least `least` places, as long as that many places are left.
pub(super) fn computed_extents<'a>(
    analysis: &'a Analysis<'a>,
    (value, axis): (ValueId, usize),
    (parts, least): (usize, usize),
    like: NodeId,
) -> (String, Maker<'a>) {
    let mut maker = Maker::new(&analysis.graph, like);
    let (source, axis) = extent_source(analysis, (value, axis));
    let count = extent_of(&mut maker, analysis.graph.value_name(source), axis);
    let [divisor, rounding, least] =
        [parts, parts - 1, least].map(|number| maker.ints(&[number as i64]));
    let raised = maker.op("Add", &[&count, &rounding], vec![]);
    let share = maker.op("Div", &[&raised, &divisor], vec![]);
    let places = maker.op("Max", &[&share, &least], vec![]);
    let indices: Vec<i64> = (0..parts as i64).collect();
    let indices = maker.ints(&indices);
    let starts = maker.op("Mul", &[&places, &indices], vec![]);
    let left = maker.op("Sub", &[&count, &starts], vec![]);
    let none = maker.ints(&[0]);
    let left = maker.op("Max", &[&left, &none], vec![]);
    let extents = maker.op("Min", &[&left, &places], vec![]);
    (extents, maker)
}

/// A value and an axis from which a Shape reads the extent of `axis`. This is an input of the graph
/// that has the same extent, so that all regions read one Shape, or `value` itself if there is no
/// such input.
fn extent_source(analysis: &Analysis, (value, axis): (ValueId, usize)) -> (ValueId, usize) {
    let Analysis { graph, facts, .. } = analysis;
    let dim = facts
        .shape(value)
        .and_then(|shape| shape.get(axis).cloned());
    let dim = dim.unwrap_or_default();
    let inputs = (0..graph.value_count() as u32).map(ValueId);
    let mut inputs = inputs.filter(|&input| graph.is_input(input));
    let found = inputs.find_map(|input| {
        let shape = facts.shape(input)?;
        Some((input, shape.iter().position(|other| same(other, &dim))?))
    });
    found.unwrap_or((value, axis))
}

/// The extent of an axis, as a vector of one element.
fn extent_of(maker: &mut Maker, name: &str, axis: usize) -> String {
    let axis = axis as i64;
    if maker.opset() >= SHAPE_OF_AXES {
        let attributes = vec![int("start", axis), int("end", axis + 1)];
        return maker.op("Shape", &[name], attributes);
    }
    let shape = maker.op("Shape", &[name], vec![]);
    let axis = maker.ints(&[axis]);
    maker.op("Gather", &[&shape, &axis], vec![int("axis", 0)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_of_an_open_axis_add_up() {
        assert_eq!(open_extents(10, 4), [3, 3, 3, 1]);
        assert_eq!(open_extents(9, 8), [2, 2, 2, 2, 1, 0, 0, 0]);
        assert_eq!(open_extents(2, 2), [1, 1]);
    }
}
