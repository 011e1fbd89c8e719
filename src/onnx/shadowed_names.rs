//! Finds constants in a body that have the name of a value of an enclosing graph.
//!
//! ONNX does not allow such names, although its checker accepts them. According to the
//! specification, the name refers to the inner constant inside the body. In onnxruntime, the name
//! refers to the outer value in all branches, if any branch reads the outer value.

use std::collections::HashSet;

use crate::onnx::node::bodies;
use crate::onnx::proto::GraphProto;

/// The name of a constant in a body that is also the name of a value of an enclosing graph, if
/// there is one.
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
