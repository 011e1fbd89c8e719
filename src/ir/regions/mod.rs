//! A model with the bodies of its If, Loop and Scan laid out in the main graph, and back.
//!
//! A body reads the values around it, and each value is made once: all nodes of a model form one
//! graph of values, and a fact about a value holds wherever it is read. So bodies need no rules of
//! their own. Two nodes replace each of them: one that makes the inputs of a loop's body, in the
//! domain [`BEGIN`], and one that reads the results of the bodies, in the domain [`END`]. Facts
//! pass neither of them unless inferred for it.
//!
//! A value of a body is named by the path to the body, such as `y.then_branch/x`, where `y` is the
//! first output of the If; so are the nodes. A new node that reads no value of a body belongs to
//! the main graph, where all bodies see it.

mod flatten;
mod restore;

use crate::hash::HashMap;
use crate::ir::{Graph, NodeId, Reader, ValueId};
use crate::onnx::Model;
use crate::onnx::proto::{GraphProto, NodeProto, StringStringEntryProto};

/// The domain of the node that makes what a loop gives to its body: it reads what the loop reads.
pub const BEGIN: &str = "unfold.begin";

/// The domain of the node that replaces an If or a loop: it reads the inputs of that node, and then
/// the results of its bodies, in the order of their names.
pub const END: &str = "unfold.end";

/// The attribute of both nodes that tells which belong together.
pub const NUMBER: &str = "unfold.number";

/// The attribute of [`END`] with the ways to the bodies, in the order of their names.
pub const WAYS: &str = "unfold.ways";

/// The note of a node that tells in which body it is.
const BODY: &str = "unfold.body";

/// A model without bodies, and how they were.
pub struct Flat<'m> {
    /// The model whose main graph has all nodes.
    pub model: Model,
    before: &'m GraphProto,
    /// The nodes with bodies.
    controls: Vec<&'m NodeProto>,
    bodies: Vec<Body>,
    /// Which body a way leads to.
    ways: HashMap<String, usize>,
    /// The names of values in the bodies, with the body of each.
    names: HashMap<String, (usize, &'m str)>,
    /// The names of nodes in the bodies.
    labels: HashMap<String, &'m str>,
}

/// A body of a model.
struct Body {
    /// The prefix of the names of its values.
    way: String,
    /// The body around it.
    around: Option<usize>,
}

/// Whether a value of one region can be read in another: it is made in the main graph, or in an
/// enclosing body.
pub fn sees(from: &str, made: &str) -> bool {
    made.is_empty() || made == from
}

/// The way to the body that a node of a flat model is in; empty in the main graph.
pub fn way(node: &NodeProto) -> &str {
    let note = node.metadata_props.iter().find(|entry| entry.key() == BODY);
    note.map_or("", |entry| entry.value())
}

/// The ways to the bodies of the node in whose place this one stands, in the order of their names.
pub fn ways_behind(end: &NodeProto) -> impl Iterator<Item = &str> {
    let own = end
        .attribute
        .iter()
        .filter(|attribute| end.domain() == END && attribute.name() == WAYS);
    own.flat_map(|attribute| &attribute.strings)
        .filter_map(|way| std::str::from_utf8(way).ok())
}

/// The results of the branch that an If takes if its condition holds or not, for each of its
/// results; `None` for other nodes.
pub fn branch<'g>(graph: &'g Graph, end: NodeId, holds: bool) -> Option<&'g [Option<ValueId>]> {
    let (_, results) = graph
        .inputs(end)
        .split_first()
        .filter(|_| graph.domain_op(end) == (END, "If"))?;
    // In the order of their names.
    let (otherwise, then) = results.split_at_checked(graph.outputs(end).len())?;
    Some(if holds { then } else { otherwise })
}

/// Lets a node be in the body that a way leads to, or in the main graph, where that is empty.
pub fn move_to(node: &mut NodeProto, way: &str) {
    node.metadata_props.retain(|entry| entry.key() != BODY);
    if !way.is_empty() {
        let entry = StringStringEntryProto::new(BODY, way);
        node.metadata_props.push(entry);
    }
}

/// Whether a value is a result of a body, which engines want a node of the body to make.
pub fn is_result(graph: &Graph, value: ValueId) -> bool {
    graph.readers(value).iter().any(
        |reader| matches!(reader, Reader::Node { node, .. } if graph.domain_op(*node).0 == END),
    )
}
