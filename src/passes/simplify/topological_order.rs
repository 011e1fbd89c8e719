//! Sorts nodes into the order that the format requires.

use crate::hash::{HashMap, map_of};
use crate::ir::editor::reads;
use crate::ir::order;
use crate::onnx::node::bodies;
use crate::onnx::proto::{GraphProto, NodeProto};

/// Sorts nodes topologically, each as near to its old place as possible. A sorted graph is
/// unchanged. Some writers do not sort their graphs, and only some engines accept that.
pub(super) fn sort(graph: &mut GraphProto) {
    let count = graph.node.len();
    let mut makers: HashMap<&str, usize> = map_of(count);
    for (place, node) in graph.node.iter().enumerate() {
        makers.extend(node.output.iter().map(|output| (output.as_str(), place)));
    }
    let mut pairs = vec![];
    for (place, node) in graph.node.iter().enumerate() {
        let read = makers_read(node, &makers).filter(|&maker| maker != place);
        pairs.extend(read.map(|maker| (maker, place)));
    }
    if pairs.iter().all(|(maker, reader)| maker < reader) {
        return;
    }
    let order = order(count, &pairs);
    // A graph with a cycle is refused earlier.
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

/// The indices of the nodes that produce the values that a node and its bodies read.
fn makers_read<'m>(
    node: &'m NodeProto,
    makers: &'m HashMap<&str, usize>,
) -> impl Iterator<Item = usize> {
    let captured = bodies(node).flat_map(reads);
    let names = node.input.iter().map(String::as_str).chain(captured);
    names.filter_map(|name| makers.get(name).copied())
}
