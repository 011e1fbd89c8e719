//! Nodes, constants and notes that nobody reads any more.

use std::collections::{HashMap, HashSet};

use crate::graph::editor::{bodies, reads};
use crate::onnx::proto::GraphProto;

/// Removes what was read once (`was_read`) and is not now. `pinned` initializers stay.
pub fn remove(graph: &mut GraphProto, was_read: &HashSet<String>, pinned: &HashSet<String>) {
    let mut count: HashMap<String, usize> = HashMap::new();
    let outputs: HashSet<String> = graph.output.iter().map(|output| output.name().to_owned()).collect();
    let makers: HashMap<String, usize> = graph
        .node
        .iter()
        .enumerate()
        .flat_map(|(place, node)| node.output.iter().map(move |output| (output.clone(), place)))
        .collect();
    let read_by = |place: usize, graph: &GraphProto| -> Vec<String> {
        let node = &graph.node[place];
        let mut names: Vec<String> = node.input.clone();
        bodies(node).for_each(|body| names.extend(reads_of_body(body)));
        names
    };
    for place in 0..graph.node.len() {
        for name in read_by(place, graph) {
            *count.entry(name).or_default() += 1;
        }
    }
    let is_unread = |name: &str, count: &HashMap<String, usize>| {
        !outputs.contains(name) && count.get(name).is_none_or(|&readers| readers == 0)
    };
    let is_dead = |place: usize, graph: &GraphProto, count: &HashMap<String, usize>| {
        let made: Vec<&String> = graph.node[place].output.iter().filter(|name| !name.is_empty()).collect();
        made.iter().all(|name| is_unread(name, count)) && made.iter().any(|name| was_read.contains(*name))
    };
    let mut gone = vec![false; graph.node.len()];
    let mut open: Vec<usize> = (0..graph.node.len()).filter(|&place| is_dead(place, graph, &count)).collect();
    while let Some(place) = open.pop() {
        if std::mem::replace(&mut gone[place], true) {
            continue;
        }
        for name in read_by(place, graph) {
            if let Some(readers) = count.get_mut(&name) {
                *readers -= 1;
            }
            if let Some(&maker) = makers.get(&name)
                && !gone[maker]
                && is_dead(maker, graph, &count)
            {
                open.push(maker);
            }
        }
    }
    let mut place = 0;
    graph.node.retain(|_| {
        place += 1;
        !gone[place - 1]
    });
    let kept = |name: &str| !was_read.contains(name) || pinned.contains(name) || !is_unread(name, &count);
    graph.initializer.retain(|tensor| kept(tensor.name()));
    graph.sparse_initializer.retain(|sparse| sparse.values.as_ref().is_none_or(|values| kept(values.name())));
    forget(graph, was_read);
}

/// Drops what was noted about values that are no more.
fn forget(graph: &mut GraphProto, was_read: &HashSet<String>) {
    let mut there: HashSet<String> = graph.node.iter().flat_map(|node| node.output.iter().cloned()).collect();
    there.extend(graph.initializer.iter().map(|tensor| tensor.name().to_owned()));
    there.extend(graph.sparse_initializer.iter().filter_map(|s| Some(s.values.as_ref()?.name().to_owned())));
    there.extend(graph.input.iter().map(|input| input.name().to_owned()));
    let stale = |name: &str| was_read.contains(name) && !there.contains(name);
    graph.value_info.retain(|info| !stale(info.name()));
    graph.quantization_annotation.retain(|annotation| !stale(annotation.tensor_name()));
}

fn reads_of_body(body: &GraphProto) -> Vec<String> {
    let mut names: Vec<String> = reads(body).into_iter().collect();
    names.sort();
    names
}
