//! Gives the inputs and outputs of a model other float types, by Casts.
//!
//! Two exports of one network, in float32 and in float16, have inputs of different types. With
//! Casts at its inputs and outputs, the second model accepts the inputs of the first one. The
//! verdict then names these Casts.

use crate::ir::builder::{self, int};
use crate::onnx::node::{is_defined_in_bodies, rename_reads};
use crate::onnx::proto::{GraphProto, NodeProto, TypeProto, ValueInfoProto};
use crate::onnx::tensor::DataType;

/// Gives each of the `inputs` and `outputs`, which are pairs of a wanted value and one of the graph,
/// the float type of the wanted value. Skips pairs of equal types, and of types that are not floats.
pub(super) fn take_types(
    graph: &mut GraphProto,
    inputs: &[(ValueInfoProto, ValueInfoProto)],
    outputs: &[(ValueInfoProto, ValueInfoProto)],
) {
    for (wanted, own) in inputs {
        if let Some([to, from]) = other_floats(wanted, own)
            && let Some(inside) = free_name(graph, own.name())
        {
            rename_reads(&mut graph.node, own.name(), &inside);
            graph.node.insert(0, cast(own.name(), &inside, from));
            declare(&mut graph.input, own.name(), to);
        }
    }
    for (wanted, own) in outputs {
        if let Some([to, _]) = other_floats(wanted, own)
            && is_made(graph, own.name())
            && let Some(inside) = free_name(graph, own.name())
        {
            rename_reads(&mut graph.node, own.name(), &inside);
            make_instead(&mut graph.node, own.name(), &inside);
            graph.node.push(cast(&inside, own.name(), to));
            declare(&mut graph.output, own.name(), to);
        }
    }
}

/// The types of two values, if both are different float types.
fn other_floats(wanted: &ValueInfoProto, own: &ValueInfoProto) -> Option<[DataType; 2]> {
    let [wanted, own] = [float_type(wanted)?, float_type(own)?];
    (wanted != own).then_some([wanted, own])
}

fn float_type(value: &ValueInfoProto) -> Option<DataType> {
    let tensor = value.r#type.as_ref()?.tensor_type.as_ref()?;
    DataType::from_code(tensor.elem_type?).filter(|data_type| data_type.is_float())
}

/// A name for the value behind a Cast. `None` if the name exists, or if a body defines a value with
/// the name of the Cast's input.
fn free_name(graph: &GraphProto, name: &str) -> Option<String> {
    let free = format!("{name}/cast");
    let is_free = !is_known(graph, &free) && !is_defined_in_bodies(graph, name);
    is_free.then_some(free)
}

fn is_known(graph: &GraphProto, name: &str) -> bool {
    let stored = graph.initializer.iter().map(|tensor| tensor.name());
    let inputs = graph.input.iter().map(|input| input.name());
    is_made(graph, name)
        || stored.chain(inputs).any(|known| known == name)
        || is_defined_in_bodies(graph, name)
}

fn is_made(graph: &GraphProto, name: &str) -> bool {
    let mut made = graph.node.iter().flat_map(|node| &node.output);
    made.any(|made| made == name)
}

fn make_instead(nodes: &mut [NodeProto], from: &str, to: &str) {
    let made = nodes.iter_mut().flat_map(|node| &mut node.output);
    for name in made.filter(|name| *name == from) {
        to.clone_into(name);
    }
}

fn cast(from: &str, result: &str, to: DataType) -> NodeProto {
    NodeProto {
        attribute: vec![int("to", to.code().into())],
        ..builder::node(&NodeProto::default(), "Cast", result, &[from], result)
    }
}

/// Declares another element type for a value.
fn declare(values: &mut [ValueInfoProto], name: &str, to: DataType) {
    let value = values.iter_mut().find(|value| value.name() == name);
    let declared = value.and_then(|value| value.r#type.as_mut());
    if let Some(TypeProto {
        tensor_type: Some(tensor),
        ..
    }) = declared
    {
        tensor.elem_type = Some(to.code());
    }
}
