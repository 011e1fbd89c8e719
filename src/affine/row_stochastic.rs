//! Row-stochastic values: elements that add up to 1 along an axis, such as the result of a Softmax.
//!
//! If `Σ pᵢ = 1`, then `Σ pᵢ·(xᵢ + t) = Σ pᵢ·xᵢ + t`. So a constant `t` that is added to all `xᵢ`
//! passes attention unchanged.

use crate::analysis::node_view::At;
use crate::onnx::operator::Category;
use crate::shape::facts::same;

/// The largest number of operators that are followed back from a product in search of a Softmax.
const DEPTH: usize = 8;

/// Whether the elements that a node reads at `slot` add up to 1 along the axis `along`, for every
/// input of the model.
pub(crate) fn add_up_to_one(at: &At, slot: usize, along: usize) -> bool {
    let Ok(mut value) = at.input(slot) else {
        return false;
    };
    let mut along = along;
    for _ in 0..DEPTH {
        let Some((node, 0)) = at.graph.producer(value) else {
            return false;
        };
        let made = At { node, ..*at };
        let (Ok(input), Ok(shape)) = (made.input(0), made.output_shape(0)) else {
            return false;
        };
        match at.graph.op(node) {
            Some("Softmax") => return made.softmax_axis(shape.len()) == Ok(along),
            Some("Identity" | "Dropout" | "Cast" | "CastLike")
                if made.check_handing_on().is_ok() => {}
            Some("Transpose") => match made.permutation(shape.len()) {
                Ok(perm) => along = perm[along],
                Err(_) => return false,
            },
            Some(_) if at.graph.category(node) == Some(Category::Movement) => {
                // If the extents of this axis and of all later axes are unchanged, the movement
                // keeps the axis. In the input, the axis has the same distance from the last axis.
                let Ok(before) = made.shape(0) else {
                    return false;
                };
                let behind = shape.len() - along;
                let Some(there) = before.len().checked_sub(behind) else {
                    return false;
                };
                if !shape[along..]
                    .iter()
                    .zip(&before[there..])
                    .all(|(made, given)| same(made, given))
                {
                    return false;
                }
                along = there;
            }
            _ => return false,
        }
        value = input;
    }
    false
}
