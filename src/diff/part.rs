//! Cuts a part out of a model, between given values.

use std::collections::{HashMap, HashSet};

use crate::analysis::Analysis;
use crate::ir::{Graph, NodeId, ValueId};
use crate::onnx::Model;
use crate::onnx::node::bodies_mut;
use crate::onnx::proto::{
    Dim, Dimension, GraphProto, NodeProto, TensorProto, TensorShapeProto, TensorType, TypeProto,
    ValueInfoProto,
};
use crate::shape::facts::extent;

/// The ends of a part of a model.
#[derive(Default)]
pub(super) struct PartEnds {
    /// The values that become inputs or outputs, with their names in the part.
    pub names: HashMap<ValueId, String>,
    /// The values at which the part begins. The nodes that compute these values are not in the
    /// part.
    pub begins: HashSet<ValueId>,
    /// The declared inputs, under the names in the part.
    pub inputs: Vec<ValueInfoProto>,
    /// The values at which the part ends.
    pub ends: Vec<ValueId>,
    /// The declared outputs, under the names in the part.
    pub outputs: Vec<ValueInfoProto>,
    /// The tensors that replace computed constants at which the part begins.
    pub constants: Vec<TensorProto>,
}

/// Whether `name` is the name of one of `values`.
fn is_one_of(graph: &Graph, name: &str, values: &HashSet<ValueId>) -> bool {
    graph
        .value(name)
        .is_some_and(|value| values.contains(&value))
}

/// Cuts the part between the given ends out of a model. The part refers to the external data of the
/// model.
pub(super) fn part(graph: &Graph, ends: PartEnds) -> Model {
    let nodes = nodes_between(graph, &ends);
    let names = names(graph, &nodes, &ends);
    let mut read: HashSet<ValueId> = nodes.iter().flat_map(|&node| reads(graph, node)).collect();
    read.extend(&ends.ends);
    for begin in &ends.begins {
        read.remove(begin);
    }
    let mut initializer: Vec<TensorProto> = graph
        .proto()
        .initializer
        .iter()
        .filter(|tensor| is_one_of(graph, tensor.name(), &read))
        .cloned()
        .collect();
    for tensor in &mut initializer {
        rename(&mut tensor.name, &names);
    }
    initializer.extend(ends.constants);
    let mut node: Vec<NodeProto> = nodes.iter().map(|&node| graph.node(node).clone()).collect();
    rename_nodes(&mut node, &names);
    let part = GraphProto {
        name: graph.proto().name.clone(),
        node,
        initializer,
        input: ends.inputs,
        output: ends.outputs,
        ..GraphProto::default()
    };
    let mut model = graph.model().with_graph(part);
    model.forget_source();
    model.proto.metadata_props.clear();
    model.proto.training_info.clear();
    model
}

/// The values that a node and its bodies read.
pub(super) fn reads<'g>(graph: &'g Graph, node: NodeId) -> impl Iterator<Item = ValueId> + use<'g> {
    let inputs = graph.inputs(node).iter().flatten();
    inputs.chain(graph.captures(node)).copied()
}

/// The nodes between the beginnings and the ends, in the order of execution.
fn nodes_between(graph: &Graph, ends: &PartEnds) -> Vec<NodeId> {
    let mut found = HashSet::new();
    let mut open = ends.ends.clone();
    while let Some(value) = open.pop() {
        if ends.begins.contains(&value) {
            continue;
        }
        if let Some((node, _)) = graph.producer(value)
            && found.insert(node)
        {
            open.extend(reads(graph, node));
        }
    }
    let order = graph.order().iter().copied();
    order.filter(|node| found.contains(node)).collect()
}

/// The new names of the part's inputs and outputs by their old names. If another value already has
/// one of these new names, it is renamed too.
fn names<'g>(graph: &Graph<'g>, nodes: &[NodeId], ends: &PartEnds) -> HashMap<&'g str, String> {
    let taken: HashSet<&String> = ends.names.values().collect();
    let mut names = HashMap::new();
    for &node in nodes {
        let made = graph.outputs(node).iter().flatten().copied();
        for value in made.chain(reads(graph, node)) {
            let old = graph.value_name(value);
            match ends.names.get(&value) {
                Some(new) => names.insert(old, new.clone()),
                None if taken.contains(&old.to_owned()) => {
                    names.insert(old, format!("{old}/inner"))
                }
                None => None,
            };
        }
    }
    names
}

fn rename(name: &mut Option<String>, names: &HashMap<&str, String>) {
    if let Some(now) = name.as_deref().and_then(|name| names.get(name)) {
        *name = Some(now.clone());
    }
}

/// Renames values in nodes and in their bodies.
fn rename_nodes(nodes: &mut [NodeProto], names: &HashMap<&str, String>) {
    for node in nodes {
        for name in node.input.iter_mut().chain(&mut node.output) {
            if let Some(now) = names.get(name.as_str()) {
                name.clone_from(now);
            }
        }
        for body in bodies_mut(node) {
            rename_nodes(&mut body.node, names);
            for output in &mut body.output {
                rename(&mut output.name, names);
            }
        }
    }
}

/// The declaration of a value with the name `name`. `None` if the value's type or an extent is
/// unknown.
pub(super) fn declaration(
    analysis: &Analysis,
    value: ValueId,
    name: &str,
) -> Option<ValueInfoProto> {
    let shape = analysis.facts.shape(value)?;
    let mut dim = vec![];
    for axis in &shape {
        dim.push(Dimension {
            value: Some(Dim::DimValue(extent(axis)? as i64)),
            ..Dimension::default()
        });
    }
    let tensor = TensorType {
        elem_type: Some(analysis.facts.data_type(value)?.code()),
        shape: Some(TensorShapeProto { dim }),
    };
    Some(ValueInfoProto {
        name: Some(name.to_owned()),
        r#type: Some(TypeProto {
            tensor_type: Some(tensor),
            ..TypeProto::default()
        }),
        ..ValueInfoProto::default()
    })
}
