//! Powers of two at products with weights that are selected at run time, such as the weights of
//! experts.
//!
//! A mixture of experts selects the weight of each token from a constant array, `x · weights[expert]`. The product has
//! no constant operand, but the array absorbs the power of its result.

use crate::affine::rule::Side;
use crate::analysis::node_view::At;
use crate::ir::NodeId;
use crate::onnx::operator::Category;

/// The node that selects the weight of a MatMul, and its array, which absorbs a power instead of the result. `None` if
/// another node reads the array or the weight.
pub(super) fn carrier(at: &At, side: Side) -> Option<(NodeId, Side)> {
    let is_product = at.graph.is(at.node, "MatMul") && at.constant_operand().is_none();
    if side != Side::Result || !is_product {
        return None;
    }
    let node = [1, 0].into_iter().find_map(|slot| selection(at, slot))?;
    Some((node, Side::Constant(0)))
}

/// The node that selects an operand from a constant array. `None` if no node does, or if the array
/// or a value after the array has another reader.
fn selection(at: &At, slot: usize) -> Option<NodeId> {
    let mut value = at.graph.input(at.node, slot)?;
    while at.graph.only_reader(value).is_some() {
        let (node, _) = at.graph.producer(value)?;
        // If a node has a second result, as a Split has, this result would also get the power. So
        // only nodes with one result pass the power.
        at.graph.only_output(node)?;
        let category = at.graph.category(node)?;
        if !matches!(category, Category::Movement | Category::Selection) {
            return None;
        }
        value = at.graph.input(node, 0)?;
        if at.constants.is_constant(value) {
            let is_alone = at.graph.only_reader(value).is_some();
            let is_plain = !at.constants.is_dequantized(value);
            return (is_alone && is_plain).then_some(node);
        }
    }
    None
}
