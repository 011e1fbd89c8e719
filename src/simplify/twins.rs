//! Movements of one value that make the same of it, once nothing is between it and them.

use std::collections::{HashMap, HashSet};

use super::{KnownShapes, is_movement};
use crate::graph::facts::Shape;
use crate::onnx::proto::{GraphProto, NodeProto};

/// Lets the first of several movements that make the same of a seed serve the readers of all. The nodes
/// are in order, so that the first needs nothing that comes of the others.
pub fn merge(graph: &mut GraphProto, seeds: &[String], known: &KnownShapes) {
    let outputs: HashSet<String> = graph.output.iter().map(|output| output.name().to_owned()).collect();
    let mut open: HashSet<String> = seeds.iter().cloned().collect();
    let mut instead: HashMap<String, String> = HashMap::new();
    let mut there: HashMap<String, Vec<usize>> = HashMap::new();
    for place in 0..graph.node.len() {
        for input in &mut graph.node[place].input {
            if let Some(first) = instead.get(input) {
                first.clone_into(input);
            }
        }
        let node = &graph.node[place];
        let [output] = &node.output[..] else { continue };
        if !is_movement(node) {
            continue;
        }
        let there = there.entry(node.input[0].clone()).or_default();
        let first = there.iter().map(|&first| &graph.node[first]).find(|first| is_same(first, node, known));
        match first.map(|first| first.output[0].clone()) {
            Some(first) if open.contains(&node.input[0]) && !outputs.contains(output) => {
                instead.insert(output.clone(), first.clone());
                open.insert(first);
            }
            _ => there.push(place),
        }
    }
}

/// Whether two movements of one value make the same of it.
fn is_same(one: &NodeProto, other: &NodeProto, known: &KnownShapes) -> bool {
    let turns = |node: &NodeProto| node.op_type() == "Transpose";
    match (turns(one), turns(other)) {
        (true, true) => match (one.attr_ints("perm"), other.attr_ints("perm")) {
            (Ok(one), Ok(other)) => one == other,
            _ => false,
        },
        (false, false) => {
            let shape = |node: &NodeProto| (known.shape)(&node.output[0]).filter(is_known);
            shape(one).is_some_and(|one| shape(other) == Some(one))
        }
        _ => false,
    }
}

fn is_known(shape: &Shape) -> bool {
    shape.iter().all(Option::is_some)
}
