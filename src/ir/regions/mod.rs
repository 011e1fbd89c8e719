//! Flattens the bodies of If, Loop and Scan into the main graph of a model, and restores them.
//!
//! A body may read values of the enclosing graphs, and each value has one definition. So the nodes
//! of all bodies can form one graph, in which a fact about a value holds for all of its readers.
//! Bodies therefore need no rules of their own. Two nodes replace each control-flow node: one in
//! the domain [`BEGIN`] computes the inputs of a loop's body, and one in the domain [`END`] reads
//! the results of the bodies. Facts pass through these two nodes only if a rule infers them.
//!
//! The name of a value in a body is prefixed by the region path of the body, such as
//! `y.then_branch/x`, where `y` is the first output of the If. The names of nodes in a body get the
//! same prefix. A new node that reads no value of a body belongs to the main graph, which all
//! bodies can read.

mod flatten;
mod restore;

use crate::hash::HashMap;
use crate::ir::{Graph, NodeId, Reader, ValueId};
use crate::onnx::Model;
use crate::onnx::proto::{GraphProto, NodeProto, StringStringEntryProto};

/// The domain of the node that computes the inputs of a loop's body. The node reads the inputs of
/// the loop.
pub(crate) const BEGIN: &str = "unfold.begin";

/// The domain of the node that replaces an If or a loop. The node reads the inputs of the If or
/// loop, followed by the results of its bodies. The bodies are sorted by attribute name.
pub(crate) const END: &str = "unfold.end";

/// The attribute that pairs a [`BEGIN`] with its [`END`]: both have this number.
pub(crate) const NUMBER: &str = "unfold.number";

/// The attribute of [`END`] with the region paths of its bodies, sorted by the names of the
/// attributes that held the bodies.
pub(crate) const REGION_PATHS: &str = "unfold.ways";

/// The metadata key under which a node has the region path of its body.
const BODY: &str = "unfold.body";

/// A model with flattened bodies, and the data to restore them.
pub(crate) struct Flat<'m> {
    /// The model whose main graph has all nodes.
    pub model: Model,
    before: &'m GraphProto,
    /// The nodes with bodies.
    controls: Vec<&'m NodeProto>,
    bodies: Vec<Body>,
    /// The index of the body at each region path.
    paths: HashMap<String, usize>,
    /// The body and the original name of each value in a body, by its name in the flattened graph.
    names: HashMap<String, (usize, &'m str)>,
    /// The original names of nodes in the bodies, by their names in the flattened graph.
    labels: HashMap<String, &'m str>,
}

/// A body of a model.
struct Body {
    /// The prefix of the names of the values in the body.
    path: String,
    /// The index of the enclosing body; `None` if this is the main graph.
    around: Option<usize>,
}

/// Whether nodes of region `from` can read values of region `made`, because the two are equal or
/// `made` is the main graph. Other enclosing regions do not count.
pub(crate) fn sees(from: &str, made: &str) -> bool {
    made.is_empty() || made == from
}

/// The region path of a node of a flattened model, which is empty in the main graph.
pub(crate) fn region_path(node: &NodeProto) -> &str {
    let note = node.metadata_props.iter().find(|entry| entry.key() == BODY);
    note.map_or("", |entry| entry.value())
}

/// The region paths of the bodies of the node that `end` replaces, sorted by attribute name.
pub(crate) fn region_paths_after(end: &NodeProto) -> impl Iterator<Item = &str> {
    let own = end
        .attribute
        .iter()
        .filter(|attribute| end.domain() == END && attribute.name() == REGION_PATHS);
    own.flat_map(|attribute| &attribute.strings)
        .filter_map(|path| std::str::from_utf8(path).ok())
}

/// The values that an If returns if its condition equals `holds`, one for each output; `None` for
/// other nodes.
pub(crate) fn branch<'g>(
    graph: &'g Graph,
    end: NodeId,
    holds: bool,
) -> Option<&'g [Option<ValueId>]> {
    let (_, results) = graph
        .inputs(end)
        .split_first()
        .filter(|_| graph.domain_op(end) == (END, "If"))?;
    // `else_branch` sorts before `then_branch`.
    let (otherwise, then) = results.split_at_checked(graph.outputs(end).len())?;
    Some(if holds { then } else { otherwise })
}

/// Moves a node into the body at a region path, or into the main graph if the path is empty.
pub(crate) fn move_to(node: &mut NodeProto, path: &str) {
    node.metadata_props.retain(|entry| entry.key() != BODY);
    if !path.is_empty() {
        let entry = StringStringEntryProto::new(BODY, path);
        node.metadata_props.push(entry);
    }
}

/// Whether a value is a result of a body. Such a value must be computed by a node of its body,
/// because engines require this.
pub(crate) fn is_result(graph: &Graph, value: ValueId) -> bool {
    graph.readers(value).iter().any(
        |reader| matches!(reader, Reader::Node { node, .. } if graph.domain_op(*node).0 == END),
    )
}
