//! Finds names of constants in a body that already exist around it.
//!
//! ONNX does not allow such names, though its checker accepts them. By the specification, the inner
//! constant is valid inside the body. onnxruntime takes the outer value, in all branches, if any of
//! them reads it.

use std::collections::HashSet;

use crate::onnx::node::bodies;
use crate::onnx::proto::GraphProto;

/// The name of a constant of a body that also is the name of a value around it, if there is one.
pub(crate) fn hidden(graph: &GraphProto) -> Option<&str> {
    inside(graph, &mut vec![])
}

fn inside<'g>(graph: &'g GraphProto, around: &mut Vec<HashSet<&'g str>>) -> Option<&'g str> {
    let taken = constants(graph).find(|name| around.iter().any(|names| names.contains(name)));
    if taken.is_some() {
        return taken;
    }
    let mut bodies = graph.node.iter().flat_map(bodies).peekable();
    bodies.peek()?;
    let made = graph
        .node
        .iter()
        .flat_map(|node| &node.output)
        .map(String::as_str);
    around.push(
        constants(graph)
            .chain(graph.input.iter().map(|input| input.name()))
            .chain(made)
            .collect(),
    );
    let found = bodies.find_map(|body| inside(body, around));
    around.pop();
    found
}

fn constants(graph: &GraphProto) -> impl Iterator<Item = &str> {
    let names = graph.initializer.iter().map(|tensor| tensor.name());
    names.filter(|name| !name.is_empty())
}
