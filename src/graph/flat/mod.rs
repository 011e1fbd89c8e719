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

use super::{Graph, Reader, ValueId};
use crate::hash::HashMap;
use crate::onnx::Model;
use crate::onnx::proto::{GraphProto, NodeProto};

/// The domain of the node that makes what a loop gives to its body: it reads what the loop reads.
pub const BEGIN: &str = "unfold.begin";

/// The domain of the node in the place of an If or a loop: it reads what that reads, and then what its bodies make,
/// in the order of their names.
pub const END: &str = "unfold.end";

/// The attribute of both nodes that tells which belong together.
pub const NUMBER: &str = "unfold.number";

/// The note of a node that tells in which body it is.
const BODY: &str = "unfold.body";

/// The attributes that are bodies.
const BODIES: [&str; 3] = ["then_branch", "else_branch", "body"];

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

/// The way to the body that is this attribute of a node, by the name that the first output of the node has in a flat model.
fn way_of(first: &str, part: &str) -> String {
    format!("{first}.{part}/")
}

/// The ways to the bodies that a node may have in whose place another one stands.
pub fn ways_behind(end: &NodeProto) -> impl Iterator<Item = String> {
    let first = end.output.iter().find(|name| !name.is_empty());
    first.into_iter().flat_map(|first| BODIES.map(|part| way_of(first, part)))
}

/// Whether a body makes a value for what is around it, which engines want a node of the body to make.
pub fn is_result(graph: &Graph, value: ValueId) -> bool {
    let ends =
        |reader: &Reader| matches!(reader, Reader::Node { node, .. } if graph.domain_op(*node).0 == END);
    graph.readers(value).iter().any(ends)
}
