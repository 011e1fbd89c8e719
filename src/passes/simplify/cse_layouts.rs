//! Common subexpression elimination of movements: Reshapes, Transposes and other movements of one
//! value that have equal results.

use crate::hash::{HashMap, HashSet};
use crate::ir::regions::{region_path, sees};
use crate::onnx::proto::{GraphProto, NodeProto};
use crate::passes::simplify::cse::merge_into;
use crate::passes::simplify::{KnownShapes, is_movement};
use crate::shape::facts::Shape;

/// Merges movements of one seed that have equal results: all readers of these results read the
/// first of them. The nodes are in order, so the first of the merged movements reads no result of
/// the later ones. Returns whether movements were merged.
pub(super) fn merge(graph: &mut GraphProto, seeds: &[String], shapes: &KnownShapes) -> bool {
    let outputs: HashSet<&str> = graph.output.iter().map(|output| output.name()).collect();
    let mut open: HashSet<&str> = seeds.iter().map(String::as_str).collect();
    let mut instead: HashMap<&str, &str> = HashMap::default();
    let mut movements: HashMap<&str, Vec<&NodeProto>> = HashMap::default();
    for node in graph.node.iter().filter(|node| is_movement(node)) {
        let [output] = &node.output[..] else { continue };
        let input = instead
            .get(node.input[0].as_str())
            .copied()
            .unwrap_or(&node.input[0]);
        let firsts = movements.entry(input).or_default();
        let may_merge = open.contains(input) && !outputs.contains(output.as_str());
        // Movements that write outputs of the model are not compared, because one value may have
        // very many of them.
        let first = match may_merge {
            true => firsts.iter().find(|first| {
                sees(region_path(node), region_path(first)) && are_equal(first, node, shapes)
            }),
            false => None,
        };
        match first {
            Some(first) => {
                instead.insert(output, &first.output[0]);
                open.insert(&first.output[0]);
            }
            None => firsts.push(node),
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

/// Whether two movements of one value have equal results.
fn are_equal(one: &NodeProto, other: &NodeProto, shapes: &KnownShapes) -> bool {
    match (one.op_type(), other.op_type()) {
        ("Transpose", "Transpose") => match (one.attr_ints("perm"), other.attr_ints("perm")) {
            (Ok(one), Ok(other)) => one == other,
            _ => false,
        },
        ("Transpose", _) | (_, "Transpose") => false,
        _ => result_shape(one, shapes)
            .is_some_and(|shape| result_shape(other, shapes) == Some(shape)),
    }
}

/// The shape of a movement's result, if each extent is known.
fn result_shape(node: &NodeProto, shapes: &KnownShapes) -> Option<Shape> {
    (shapes.shape)(&node.output[0]).filter(|shape| shape.iter().all(Option::is_some))
}
