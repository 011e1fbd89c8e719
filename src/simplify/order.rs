//! Nodes in the order in which the format wants them.

use std::collections::{BTreeSet, HashMap};

use crate::graph::editor::reads;
use crate::onnx::node::bodies;
use crate::onnx::proto::GraphProto;

/// Puts each node behind what it reads, as near to its old place as that allows. A graph that is in
/// order stays as it is; some writers leave theirs in none, and engines differ in whether they mind.
pub fn sort(graph: &mut GraphProto) {
    let makers: HashMap<&str, usize> = graph
        .node
        .iter()
        .enumerate()
        .flat_map(|(place, node)| node.output.iter().map(move |output| (output.as_str(), place)))
        .collect();
    let count = graph.node.len();
    let mut before: Vec<BTreeSet<usize>> = vec![];
    for (place, node) in graph.node.iter().enumerate() {
        let captured: Vec<String> = bodies(node).flat_map(reads).collect();
        let names = node.input.iter().chain(&captured);
        let makers = names.filter_map(|name| makers.get(name.as_str()).copied());
        before.push(makers.filter(|&maker| maker != place).collect());
    }
    if before.iter().enumerate().all(|(place, makers)| makers.last().is_none_or(|&last| last < place)) {
        return;
    }
    let mut after: Vec<Vec<usize>> = vec![vec![]; count];
    let mut waits: Vec<usize> = before.iter().map(BTreeSet::len).collect();
    for (place, makers) in before.iter().enumerate() {
        makers.iter().for_each(|&maker| after[maker].push(place));
    }
    let mut ready: BTreeSet<usize> = (0..count).filter(|&place| waits[place] == 0).collect();
    let mut order = vec![];
    while let Some(place) = ready.pop_first() {
        order.push(place);
        for &next in &after[place] {
            waits[next] -= 1;
            if waits[next] == 0 {
                ready.insert(next);
            }
        }
    }
    // A cycle was refused long before.
    if order.len() == count {
        let mut nodes: Vec<_> = std::mem::take(&mut graph.node).into_iter().map(Some).collect();
        graph.node = order.into_iter().filter_map(|place| nodes[place].take()).collect();
    }
}
