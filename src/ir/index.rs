//! Builds the index of a graph: its values, their readers, and a topological order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::error::{Error, Result};
use crate::hash::{HashMap, HashSet};
use crate::ir::csr::Csr;
use crate::ir::names::of_gradients;
use crate::ir::{Graph, NodeId, Reader, ValueId, node_name};
use crate::onnx::Model;
use crate::onnx::node::bodies;
use crate::onnx::proto::{GraphProto, NodeProto};

impl<'m> Graph<'m> {
    fn intern(&mut self, name: &'m str) -> ValueId {
        if let Some(&id) = self.ids.get(name) {
            return id;
        }
        let id = ValueId(self.names.len() as u32);
        self.names.push(name);
        self.ids.insert(name, id);
        self.producers.push(None);
        self.initializers.push(None);
        self.is_input.push(false);
        id
    }

    fn error(&self, at: &str, reason: impl Into<String>) -> Error {
        Error::Graph {
            file: self.model.file(),
            node: at.to_owned(),
            reason: reason.into(),
        }
    }

    pub(super) fn index_values(&mut self) -> Result<()> {
        let proto = self.proto;
        for input in &proto.input {
            let id = self.intern(input.name());
            if std::mem::replace(&mut self.is_input[id.index()], true) {
                return Err(self.error(input.name(), "two inputs have this name"));
            }
        }
        let dense = proto.initializer.iter();
        let sparse = proto
            .sparse_initializer
            .iter()
            .filter_map(|s| s.values.as_ref());
        for tensor in dense {
            let id = self.intern(tensor.name());
            if self.initializers[id.index()].replace(tensor).is_some() {
                return Err(self.error(tensor.name(), "two initializers have this name"));
            }
        }
        for values in sparse {
            // Only the name of a sparse initializer is recorded, so that nodes may read its value.
            // Its elements are not read.
            self.intern(values.name());
        }
        let mut outputs = vec![];
        for (node, made) in proto.node.iter().enumerate() {
            outputs.clear();
            for (slot, name) in made.output.iter().enumerate() {
                if name.is_empty() {
                    outputs.push(None);
                    continue;
                }
                let id = self.intern(name);
                let taken = self.producers[id.index()].replace((node, slot)).is_some()
                    || self.initializers[id.index()].is_some()
                    || self.is_input[id.index()];
                if taken {
                    return Err(self.error(name, "the value is made twice"));
                }
                outputs.push(Some(id));
            }
            self.outputs.push(outputs.drain(..));
        }
        Ok(())
    }

    pub(super) fn index_readers(&mut self) -> Result<()> {
        let proto = self.proto;
        let mut readers = Vec::with_capacity(2 * proto.node.len());
        for node in 0..proto.node.len() {
            self.index_inputs(node, &mut readers)?;
            self.index_captures(node, &mut readers)?;
        }
        for output in &proto.output {
            let Some(&id) = self.ids.get(output.name()) else {
                return Err(self.error(output.name(), "nothing makes this graph output"));
            };
            readers.push((id.index(), Reader::Output));
        }
        // A value to which an annotation or the training information refers counts as an output.
        let annotations = proto.quantization_annotation.iter();
        let annotated = annotations.map(|annotation| annotation.tensor_name());
        for name in annotated.chain(read_by_training(self.model)) {
            if let Some(id) = self.ids.get(name)
                && self.producers[id.index()].is_some()
            {
                readers.push((id.index(), Reader::Output));
            }
        }
        self.readers = Csr::grouped(self.names.len(), &readers);
        Ok(())
    }

    fn index_inputs(&mut self, node: NodeId, readers: &mut Vec<(usize, Reader)>) -> Result<()> {
        let proto = &self.proto.node[node];
        let mut inputs = Vec::with_capacity(proto.input.len());
        for (input, name) in proto.input.iter().enumerate() {
            if name.is_empty() {
                inputs.push(None);
                continue;
            }
            let Some(&id) = self.ids.get(name.as_str()) else {
                let reason = format!("reads `{name}`, which nothing makes");
                return Err(self.error(node_name(proto), reason));
            };
            readers.push((id.index(), Reader::Node { node, input }));
            inputs.push(Some(id));
        }
        self.inputs.push(inputs);
        Ok(())
    }

    fn index_captures(&mut self, node: NodeId, readers: &mut Vec<(usize, Reader)>) -> Result<()> {
        let proto = &self.proto.node[node];
        let mut captured = vec![];
        bodies(proto).for_each(|body| free_names(body, &mut captured));
        let mut captures = vec![];
        for name in captured {
            match self.ids.get(name) {
                Some(&id) => captures.push(id),
                // A body of a custom operator may read names that are defined elsewhere, so this is
                // not an error.
                None if !proto.op().0.is_empty() => {}
                None => {
                    let reason = format!("has a body that reads `{name}`, which nothing makes");
                    return Err(self.error(node_name(proto), reason));
                }
            }
        }
        captures.sort();
        captures.dedup();
        let capture = Reader::Capture { node };
        readers.extend(captures.iter().map(|id| (id.index(), capture)));
        self.captures.push(captures);
        Ok(())
    }

    pub(super) fn sort(&mut self) -> Result<()> {
        let count = self.proto.node.len();
        let mut after = Vec::with_capacity(2 * count);
        for node in 0..count {
            let read = self
                .inputs(node)
                .iter()
                .flatten()
                .chain(self.captures(node));
            after.extend(read.filter_map(|&value| Some((self.producer(value)?.0, node))));
        }
        self.order = order(count, &after);
        if self.order.len() < count {
            let done: HashSet<NodeId> = self.order.iter().copied().collect();
            let stuck = (0..count)
                .find(|node| !done.contains(node))
                .unwrap_or_default();
            return Err(Error::Cycle {
                file: self.model.file(),
                node: self.name(stuck).to_owned(),
            });
        }
        self.places = vec![0; count];
        for (place, &node) in self.order.iter().enumerate() {
            self.places[node] = place;
        }
        Ok(())
    }
}

/// The domain and the operator of each node. Equal pairs share the strings of the first node that
/// has them, so that comparing the operators of millions of nodes touches few cache lines.
pub(super) fn operators(nodes: &[NodeProto]) -> Vec<(&str, &str)> {
    let mut firsts = HashMap::default();
    nodes
        .iter()
        .map(|node| *firsts.entry(node.op()).or_insert(node.op()))
        .collect()
}

/// A topological order of nodes, by Kahn's algorithm. A pair `(a, b)` puts `a` before `b`.
/// Otherwise nodes with lower indices come first. Nodes in or after a cycle are left out.
pub(crate) fn order(count: usize, pairs: &[(NodeId, NodeId)]) -> Vec<NodeId> {
    let mut waits = vec![0usize; count];
    pairs.iter().for_each(|&(_, node)| waits[node] += 1);
    let after = Csr::grouped(count, pairs);
    let mut ready: BinaryHeap<Reverse<NodeId>> = (0..count)
        .filter(|&node| waits[node] == 0)
        .map(Reverse)
        .collect();
    let mut order = Vec::with_capacity(count);
    while let Some(Reverse(node)) = ready.pop() {
        order.push(node);
        for &next in after.row(node) {
            waits[next] -= 1;
            if waits[next] == 0 {
                ready.push(Reverse(next));
            }
        }
    }
    order
}

/// Collects the names that a body and the bodies inside it read but do not define.
fn free_names<'m>(body: &'m GraphProto, free: &mut Vec<&'m str>) {
    let mut made: HashSet<&str> = body.input.iter().map(|input| input.name()).collect();
    made.extend(body.initializer.iter().map(|tensor| tensor.name()));
    made.extend(
        body.sparse_initializer
            .iter()
            .filter_map(|s| Some(s.values.as_ref()?.name())),
    );
    made.extend(
        body.node
            .iter()
            .flat_map(|node| node.output.iter().map(String::as_str)),
    );
    let mut read: Vec<&str> = vec![];
    for node in &body.node {
        read.extend(
            node.input
                .iter()
                .map(String::as_str)
                .filter(|name| !name.is_empty()),
        );
        bodies(node).for_each(|inner| free_names(inner, &mut read));
    }
    read.extend(body.output.iter().map(|output| output.name()));
    free.extend(read.into_iter().filter(|name| !made.contains(name)));
}

/// The names that the training graphs of a model read but do not define, and the names in their
/// Gradient nodes.
fn read_by_training(model: &Model) -> Vec<&str> {
    let mut read = vec![];
    for training in &model.proto.training_info {
        for graph in training.initialization.iter().chain(&training.algorithm) {
            free_names(graph, &mut read);
            read.extend(of_gradients(graph));
        }
        let bindings = training
            .initialization_binding
            .iter()
            .chain(&training.update_binding);
        read.extend(bindings.map(|binding| binding.value()));
    }
    read
}
