//! Nodes, constants and notes that nobody reads any more.

use std::collections::{HashMap, HashSet};

use crate::graph::editor::reads;
use crate::onnx::node::bodies;
use crate::onnx::proto::GraphProto;

/// Removes what was read once (`was_read`) and is not now. `pinned` initializers stay.
pub fn remove(graph: &mut GraphProto, was_read: &HashSet<String>, pinned: &HashSet<String>) {
    let Dead { nodes, values } = Dead::find(graph, was_read);
    let mut nodes = nodes.into_iter();
    graph.node.retain(|_| nodes.next() != Some(true));
    let kept = |name: &str| pinned.contains(name) || !values.contains(name);
    graph.initializer.retain(|tensor| kept(tensor.name()));
    graph.sparse_initializer.retain(|sparse| sparse.values.as_ref().is_none_or(|values| kept(values.name())));
    forget(graph, was_read);
}

/// What nobody reads any more.
struct Dead {
    /// Which nodes, by place.
    nodes: Vec<bool>,
    /// The initializers.
    values: HashSet<String>,
}

impl Dead {
    fn find(graph: &GraphProto, was_read: &HashSet<String>) -> Self {
        let outputs: HashSet<&str> = graph.output.iter().map(|output| output.name()).collect();
        let mut makers: HashMap<&str, usize> = HashMap::new();
        let mut count: HashMap<&str, usize> = HashMap::new();
        let captured: HashMap<usize, HashSet<String>> = graph
            .node
            .iter()
            .enumerate()
            .map(|(place, node)| (place, bodies(node).flat_map(reads).collect::<HashSet<_>>()))
            .filter(|(_, names)| !names.is_empty())
            .collect();
        let read_by = |place: usize| {
            let names = graph.node[place].input.iter().chain(captured.get(&place).into_iter().flatten());
            names.map(String::as_str)
        };
        for (place, node) in graph.node.iter().enumerate() {
            makers.extend(node.output.iter().map(|output| (output.as_str(), place)));
            read_by(place).for_each(|name| *count.entry(name).or_default() += 1);
        }
        let is_unread = |name: &str, count: &HashMap<&str, usize>| {
            !outputs.contains(name) && count.get(name).is_none_or(|&readers| readers == 0)
        };
        let is_dead = |place: usize, count: &HashMap<&str, usize>| {
            let mut made = graph.node[place].output.iter().filter(|name| !name.is_empty());
            made.clone().all(|name| is_unread(name, count)) && made.any(|name| was_read.contains(name))
        };
        let mut nodes = vec![false; graph.node.len()];
        let mut open: Vec<usize> = (0..nodes.len()).filter(|&place| is_dead(place, &count)).collect();
        while let Some(place) = open.pop() {
            if std::mem::replace(&mut nodes[place], true) {
                continue;
            }
            for name in read_by(place) {
                if let Some(readers) = count.get_mut(name) {
                    *readers -= 1;
                }
                if let Some(&maker) = makers.get(name)
                    && !nodes[maker]
                    && is_dead(maker, &count)
                {
                    open.push(maker);
                }
            }
        }
        let tensors = graph.initializer.iter().map(|tensor| tensor.name());
        let sparse = graph.sparse_initializer.iter().filter_map(|s| Some(s.values.as_ref()?.name()));
        let unread = tensors.chain(sparse).filter(|name| was_read.contains(*name) && is_unread(name, &count));
        Dead { nodes, values: unread.map(str::to_owned).collect() }
    }
}

/// Drops what was noted about values that are no more.
fn forget(graph: &mut GraphProto, was_read: &HashSet<String>) {
    let mut there: HashSet<&str> =
        graph.node.iter().flat_map(|node| &node.output).map(String::as_str).collect();
    there.extend(graph.initializer.iter().map(|tensor| tensor.name()));
    there.extend(graph.sparse_initializer.iter().filter_map(|s| Some(s.values.as_ref()?.name())));
    there.extend(graph.input.iter().map(|input| input.name()));
    let stale = |name: &str| was_read.contains(name) && !there.contains(name);
    graph.value_info.retain(|info| !stale(info.name()));
    graph.quantization_annotation.retain(|annotation| !stale(annotation.tensor_name()));
}
