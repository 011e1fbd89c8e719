//! Whether two graphs are equal except for the names of intermediate values. If a model was split
//! and joined again, the input itself is kept.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use prost::Message;

use crate::onnx::Model;
use crate::onnx::external_data::Externals;
use crate::onnx::proto::{GraphProto, NodeProto, TensorProto};
use crate::onnx::tensor;

/// Constants with more elements are compared by their names.
const SMALL: i64 = 1 << 10;

/// Whether both models have equal operators on equal values. Large constants are equal if they have
/// one name.
pub(super) fn is_unchanged(before: &Model, after: &Model) -> bool {
    let [one, other] = [before, after].map(|model| signature(model.graph(), model.externals()));
    one.is_some() && one == other
}

/// A hash for each operator, in order, and for each output. `None` for unsorted operators.
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

/// The attributes of an operator, in the order of their names.
fn attributes(node: &NodeProto) -> Vec<Vec<u8>> {
    let mut encoded: Vec<Vec<u8>> = node.attribute.iter().map(Message::encode_to_vec).collect();
    encoded.sort();
    encoded
}

/// The hash of a constant: of its elements if they are few integers, otherwise of its name.
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
