//! Operators that hand on what they read, under another name: Identity, a Dropout, a Cast to the type that is there, a
//! movement that moves nothing.

use prost::Message;
use tract_onnx::tract_hir::internal::TDim;

use super::constants::is_result;
use crate::graph::analysis::Analysis;
use crate::graph::at::At;
use crate::graph::editor::Editor;
use crate::graph::extents::same;
use crate::graph::flat::way;
use crate::graph::{Graph, NodeId, Reader, ValueId};
use crate::hash::{HashMap, HashSet};
use crate::onnx::operator::attributes;
use crate::onnx::proto::GraphProto;

/// Those whose readers can read what they read. Names of `pinned` values stay.
pub fn find(known: &Analysis, pinned: &HashSet<&str>) -> Vec<NodeId> {
    let goes = |&node: &NodeId| may_pass(known, node, pinned) && hands_on(known, node);
    known.graph.order().iter().copied().filter(goes).collect()
}

/// Movements that move nothing, likewise.
///
/// Before anything folds they are parts of sites, and go with these.
pub fn unmoved(known: &Analysis, pinned: &HashSet<&str>) -> Vec<NodeId> {
    let goes = |&node: &NodeId| {
        may_pass(known, node, pinned)
            && moves_nothing(&known.at(node)) == Some(true)
            && is_understood(known, node)
    };
    known.graph.order().iter().copied().filter(goes).collect()
}

/// Identities of a weight that others read too: exporters write one for each further use of a module, and what all uses
/// want of the weight is to be asked of one value.
pub fn sharing(graph: &Graph) -> Vec<NodeId> {
    let annotated = annotated(graph);
    let shares = |node: NodeId| {
        let (Some(source), Some(output)) = (graph.input(node, 0), graph.only_output(node)) else {
            return false;
        };
        graph.domain_op(node) == ("", "Identity")
            && graph.node(node).attribute.is_empty()
            && graph.initializer(source).is_some()
            && graph.readers(source).len() > 1
            && !graph.readers(output).is_empty()
            && !has_to_stay(graph, output)
            && !annotated.contains(graph.value_name(output))
    };
    graph.order().iter().copied().filter(|&node| shares(node)).collect()
}

/// The names that notes on quantization speak of.
fn annotated<'g>(graph: &'g Graph) -> HashSet<&'g str> {
    graph.proto().quantization_annotation.iter().map(|annotation| annotation.tensor_name()).collect()
}

/// Whether a graph may have either: an Identity, or two Transposes or Casts of one weight.
pub fn may_share(graph: &GraphProto) -> bool {
    let (mut seen, mut twice) = (HashSet::default(), HashSet::default());
    for node in &graph.node {
        match (node.op_type(), node.input.first()) {
            ("Identity", _) => return true,
            ("Transpose" | "Cast", Some(source)) if !seen.insert(source.as_str()) => {
                twice.insert(source.as_str());
            }
            _ => {}
        }
    }
    graph.initializer.iter().any(|tensor| twice.contains(tensor.name()))
}

/// Transposes and Casts of a weight that one before them makes as well, with what that makes: exporters write one for each
/// layer that shares the weight, and what all of them want would be folded for each.
pub fn repeated(graph: &Graph) -> Vec<(NodeId, ValueId)> {
    let annotated = annotated(graph);
    let mut firsts: HashMap<(ValueId, &str, &str, Vec<u8>), ValueId> = HashMap::default();
    let mut repeated = vec![];
    for &node in graph.order() {
        let (Some(source), Some(output)) = (graph.input(node, 0), graph.only_output(node)) else { continue };
        let proto = graph.node(node);
        let is_one = matches!(graph.domain_op(node), ("", "Transpose" | "Cast"))
            && graph.initializer(source).is_some()
            && proto.attribute.len() == 1;
        if !is_one {
            continue;
        }
        let key = (source, proto.op_type(), way(proto), proto.attribute[0].encode_to_vec());
        let first = *firsts.entry(key).or_insert(output);
        let goes = !has_to_stay(graph, output)
            && !annotated.contains(graph.value_name(output))
            && !graph.readers(output).is_empty();
        if first != output && goes {
            repeated.push((node, first));
        }
    }
    repeated
}

/// Takes them out.
pub fn remove(nodes: Vec<NodeId>, graph: &Graph, editor: &mut Editor) {
    let name = |value| graph.value_name(value);
    for node in nodes {
        if let (Some(source), Some(output)) = (graph.input(node, 0), graph.only_output(node)) {
            editor.remove(&[node], name(output), name(source));
        }
    }
}

/// Whether somebody knows a value by its name who is no node beside it.
fn has_to_stay(graph: &Graph, output: ValueId) -> bool {
    let is_captured = |reader: &Reader| matches!(reader, Reader::Capture { .. });
    graph.is_output(output) || is_result(graph, output) || graph.readers(output).iter().any(is_captured)
}

/// Whether all elements stay where they are; `None` where that is not known.
fn moves_nothing(at: &At) -> Option<bool> {
    let is_as_before = || {
        let (before, after) = (at.shape(0).ok()?, at.output_shape(0).ok()?);
        let is_same = |(one, other): (&Option<TDim>, &Option<TDim>)| same(one, other);
        Some(before.len() == after.len() && before.iter().zip(&after).all(is_same))
    };
    match at.proto().op_type() {
        "Concat" => Some(at.graph.inputs(at.node).len() == 1),
        "Expand" | "Reshape" => is_as_before(),
        // What is cut at one end may be put in at the other.
        "Pad" => Some(at.list("pads").ok()??.iter().all(|&count| count == 0)),
        // Backward all are there, too.
        "Slice" => {
            let steps = at.ints(4).ok()?.unwrap_or_default();
            Some(steps.iter().all(|&step| step == 1) && is_as_before()?)
        }
        "Transpose" => {
            let order = at.permutation(at.rank(0).ok()?).ok()?;
            Some(order.into_iter().eq(0..at.rank(0).ok()?))
        }
        _ => None,
    }
}

/// Whether nobody knows the result of a node by its name, and it is none of a constant.
fn may_pass(known: &Analysis, node: NodeId, pinned: &HashSet<&str>) -> bool {
    let Analysis { graph, constants, .. } = known;
    let (Some(source), Some(output)) = (graph.input(node, 0), graph.only_output(node)) else { return false };
    let has_name = has_to_stay(graph, output) || pinned.contains(graph.value_name(output));
    !has_name && !constants.is_constant(source) && !constants.is_quantized(output)
}

/// Whether all attributes of an operator of ONNX are known.
fn is_understood(known: &Analysis, node: NodeId) -> bool {
    let (domain, op) = known.graph.domain_op(node);
    let told = attributes(op).filter(|_| domain.is_empty());
    told.is_some_and(|told| known.at(node).only_attributes(told).is_ok())
}

/// Whether a node hands on what it reads.
fn hands_on(known: &Analysis, node: NodeId) -> bool {
    let graph = &known.graph;
    let is_one = match graph.op(node) {
        Some("Identity") => true,
        // An exporter writes one wherever a module asks for the type that a value has already.
        Some("Cast") => {
            let [from, to] = [graph.input(node, 0), graph.only_output(node)]
                .map(|value| value.and_then(|value| known.facts.data_type(value)));
            from.is_some() && from == to
        }
        // Before opset 7 it may be in training mode, and with more inputs from 12 on.
        Some("Dropout") => graph.inputs(node).len() == 1 && graph.model().own_opset() >= 7,
        _ => false,
    };
    is_one && is_understood(known, node)
}
