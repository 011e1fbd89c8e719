//! Nodes in the order in which the format wants them.

use crate::hash::{HashMap, map_of};
use crate::ir::editor::reads;
use crate::ir::order;
use crate::onnx::node::bodies;
use crate::onnx::proto::GraphProto;

/// Sorts nodes topologically, each as near to its old place as possible. A sorted graph is
/// unchanged; some writers leave theirs unsorted, and only some engines accept that.
pub fn sort(graph: &mut GraphProto) {
    let count = graph.node.len();
    let mut makers: HashMap<&str, usize> = map_of(count);
    for (place, node) in graph.node.iter().enumerate() {
        makers.extend(node.output.iter().map(|output| (output.as_str(), place)));
    }
    let before = |place: usize| {
        let node = &graph.node[place];
        let names = node
            .input
            .iter()
            .map(String::as_str)
            .chain(bodies(node).flat_map(reads));
        names
            .filter_map(|name| makers.get(name).copied())
            .filter(move |&maker| maker != place)
    };
    if (0..count).all(|place| before(place).all(|maker| maker < place)) {
        return;
    }
    let after: Vec<(usize, usize)> = (0..count)
        .flat_map(|place| before(place).map(move |maker| (maker, place)))
        .collect();
    let order = order(count, &after);
    // A cycle was refused long before.
    if order.len() == count {
        let mut nodes: Vec<_> = std::mem::take(&mut graph.node)
            .into_iter()
            .map(Some)
            .collect();
        graph.node = order
            .into_iter()
            .filter_map(|place| nodes[place].take())
            .collect();
    }
}
