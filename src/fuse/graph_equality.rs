//! Compares two graphs, ignoring the names of intermediate values. The pipeline does this to find
//! out whether the rewrites of a run have undone each other. If they have, it returns the input
//! itself.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use prost::Message;

use crate::onnx::Model;
use crate::onnx::external_data::Externals;
use crate::onnx::proto::{GraphProto, NodeProto, TensorProto};
use crate::onnx::tensor;

/// The largest integer constant that is compared by its elements, as a number of elements. A larger
/// constant is compared by its name.
const SMALL: i64 = 1 << 10;

/// Whether both models have equal operators on equal values. Large constants and constants of
/// floats count as equal if they have the same name.
pub(super) fn is_unchanged(before: &Model, after: &Model) -> bool {
    let [one, other] = [before, after].map(|model| signature(model.graph(), model.externals()));
    one.is_some() && one == other
}

/// The sorted hashes of all operators, and the hashes of the graph's outputs in order. `None` if an
/// operator or an output reads a value that is not defined before it.
fn signature(graph: &GraphProto, externals: &Externals) -> Option<(Vec<u64>, Vec<u64>)> {
    let mut values: HashMap<&str, u64> = HashMap::new();
    values.insert("", hash_of("absent"));
    values.extend(
        graph
            .input
            .iter()
            .map(|input| (input.name(), hash_of(("input", input.name())))),
    );
    values.extend(
        graph
            .initializer
            .iter()
            .map(|tensor| (tensor.name(), constant(tensor, externals))),
    );
    let mut operators = Vec::with_capacity(graph.node.len());
    for node in &graph.node {
        let read: Vec<u64> = node
            .input
            .iter()
            .map(|name| values.get(&name[..]).copied())
            .collect::<Option<_>>()?;
        let operator = hash_of((node.domain(), node.op_type(), attributes(node), read));
        let made = node
            .output
            .iter()
            .enumerate()
            .filter(|(_, name)| !name.is_empty());
        values.extend(made.map(|(slot, name)| (&name[..], hash_of((operator, slot)))));
        operators.push(operator);
    }
    operators.sort_unstable();
    let outputs = graph
        .output
        .iter()
        .map(|output| values.get(output.name()).copied());
    Some((operators, outputs.collect::<Option<_>>()?))
}

/// The encoded attributes of an operator, sorted.
fn attributes(node: &NodeProto) -> Vec<Vec<u8>> {
    let mut encoded: Vec<Vec<u8>> = node.attribute.iter().map(Message::encode_to_vec).collect();
    encoded.sort();
    encoded
}

/// The hash of a constant: of its type, shape and elements if it has at most [`SMALL`] integers,
/// otherwise of its name.
fn constant(tensor: &TensorProto, externals: &Externals) -> u64 {
    let count = tensor
        .dims
        .iter()
        .try_fold(1i64, |count, &extent| count.checked_mul(extent));
    let is_small = count.is_some_and(|count| count <= SMALL);
    let elements = is_small
        .then(|| tensor::read_i64(tensor, externals).ok())
        .flatten();
    match elements {
        Some(elements) => hash_of((
            tensor.data_type(),
            &tensor.dims,
            elements.into_iter().collect::<Vec<_>>(),
        )),
        None => hash_of(("constant", tensor.name())),
    }
}

fn hash_of(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
