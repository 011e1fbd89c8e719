//! A model with the bodies of its If, Loop and Scan laid out in the main graph, and back.
//!
//! A body sees the values around it, and each value is made once: all nodes of a model are one graph of values, and
//! what is true of a value is true wherever it is read. So bodies need no rules of their own. In their place stand two
//! nodes: one that makes what a loop gives to its body, in the domain [`BEGIN`], and one that reads what the bodies
//! make, in the domain [`END`]. Neither lets anything pass that is not said of it.
//!
//! A value of a body is called by the way to it, such as `y.then_branch/x`, where `y` is the first output of the If;
//! so are the nodes. What is new and reads nothing of a body is in the main graph, where all bodies see it.

mod flatten;
mod restore;

use super::{Graph, NodeId, Reader, ValueId};
use crate::hash::HashMap;
use crate::onnx::Model;
use crate::onnx::proto::{GraphProto, NodeProto, StringStringEntryProto};

/// The domain of the node that makes what a loop gives to its body: it reads what the loop reads.
pub const BEGIN: &str = "unfold.begin";

/// The domain of the node in the place of an If or a loop: it reads what that reads, and then what its bodies make,
/// in the order of their names.
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
    /// What values of bodies are called there, and which body it is.
    names: HashMap<String, (usize, &'m str)>,
    /// What nodes of bodies are called there.
    labels: HashMap<String, &'m str>,
}

/// A body of a model.
struct Body {
    /// What the names of its values begin with.
    way: String,
    /// The body around it.
    around: Option<usize>,
}

/// Whether what is made on one way can be read on another: it is made in the main graph, or in the same body.
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
    let own = end.attribute.iter().filter(|attribute| end.domain() == END && attribute.name() == WAYS);
    own.flat_map(|attribute| &attribute.strings).filter_map(|way| std::str::from_utf8(way).ok())
}

/// What the branches make that an If takes where its condition holds or does not, for each of its results; `None` of another
/// node.
pub fn branch<'g>(graph: &'g Graph, end: NodeId, holds: bool) -> Option<&'g [Option<ValueId>]> {
    let (_, results) = graph.inputs(end).split_first().filter(|_| graph.domain_op(end) == (END, "If"))?;
    // In the order of their names.
    let (otherwise, then) = results.split_at_checked(graph.outputs(end).len())?;
    Some(if holds { then } else { otherwise })
}

/// Lets a node be in the body that a way leads to, or in the main graph, where that is empty.
pub fn move_to(node: &mut NodeProto, way: &str) {
    node.metadata_props.retain(|entry| entry.key() != BODY);
    if !way.is_empty() {
        let entry = StringStringEntryProto { key: Some(BODY.into()), value: Some(way.to_owned()) };
        node.metadata_props.push(entry);
    }
}

/// Whether a body makes a value for what is around it, which engines want a node of the body to make.
pub fn is_result(graph: &Graph, value: ValueId) -> bool {
    let ends =
        |reader: &Reader| matches!(reader, Reader::Node { node, .. } if graph.domain_op(*node).0 == END);
    graph.readers(value).iter().any(ends)
}
