//! Movements of one value that make the same of it, once nothing is between it and them.

use crate::hash::{HashMap, HashSet};
use crate::ir::regions::{sees, way};
use crate::onnx::proto::{GraphProto, NodeProto};
use crate::passes::simplify::cse::merge_into;
use crate::passes::simplify::{KnownShapes, is_movement};
use crate::shape::facts::Shape;

/// Merges movements of a seed with equal results: the first serves the readers of all. Nodes are in
/// order, so that the first reads no result of the others. Returns whether any were merged.
pub fn merge(graph: &mut GraphProto, seeds: &[String], known: &KnownShapes) -> bool {
    let outputs: HashSet<&str> = graph.output.iter().map(|output| output.name()).collect();
    let mut open: HashSet<&str> = seeds.iter().map(String::as_str).collect();
    let mut instead: HashMap<&str, &str> = HashMap::default();
    let mut there: HashMap<&str, Vec<&NodeProto>> = HashMap::default();
    for node in graph.node.iter().filter(|node| is_movement(node)) {
        let [output] = &node.output[..] else { continue };
        let input = instead
            .get(node.input[0].as_str())
            .copied()
            .unwrap_or(&node.input[0]);
        let there = there.entry(input).or_default();
        let may_merge = open.contains(input) && !outputs.contains(output.as_str());
        let is_first =
            |first: &&&NodeProto| sees(way(node), way(first)) && is_same(first, node, known);
        // Very many outputs may be movements of one value.
        let first = if may_merge {
            there.iter().find(is_first)
        } else {
            None
        };
        match first {
            Some(first) => {
                instead.insert(output, &first.output[0]);
                open.insert(&first.output[0]);
            }
            None => there.push(node),
        }
    }
    if instead.is_empty() {
        return false;
    }
    let instead: HashMap<String, String> = instead
        .into_iter()
        .map(|(twin, first)| (twin.to_owned(), first.to_owned()))
        .collect();
    merge_into(graph, &instead);
    true
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
