//! One of the two models of a comparison: its graph, and the digests of its values.

use std::collections::{HashMap, HashSet};

use prost::Message;

use crate::error::Result;
use crate::ir::{Graph, NodeId, ValueId};
use crate::onnx::Model;
use crate::onnx::node::bodies;
use crate::onnx::proto::NodeProto;
use crate::prove::{Digest, Hash};

/// A graph with the digests of its values.
pub(super) struct ComparedModel<'m> {
    pub graph: Graph<'m>,
    /// The nodes in the order of execution, without Constants.
    pub nodes: Vec<NodeId>,
    digests: Vec<Option<Digest>>,
    /// Whether an output depends on each node.
    is_needed: Vec<bool>,
}

impl<'m> ComparedModel<'m> {
    /// Builds the graph of a model. `known` holds the digests that the proof recorded, by the names
    /// of values.
    ///
    /// # Errors
    /// If the graph is invalid.
    pub(super) fn new(model: &'m Model, known: &HashMap<String, Digest>) -> Result<Self> {
        let graph = Graph::new(model)?;
        let names = (0..graph.value_count()).map(|index| graph.value_name(ValueId(index as u32)));
        let digests = names.map(|name| known.get(name).copied()).collect();
        let order = graph.order().iter().copied();
        let nodes = order.filter(|&node| !graph.is(node, "Constant")).collect();
        let is_needed = needed(&graph);
        let mut side = Self {
            graph,
            nodes,
            digests,
            is_needed,
        };
        side.derive();
        Ok(side)
    }

    /// The digest of a value. `None` if it is unknown.
    pub(super) fn digest(&self, value: ValueId) -> Option<Digest> {
        self.digests[value.index()]
    }

    /// Whether an output depends on a node.
    pub(super) fn is_needed(&self, node: NodeId) -> bool {
        self.is_needed[node]
    }

    /// The results of a node that are read.
    pub(super) fn results(&self, node: NodeId) -> impl Iterator<Item = ValueId> {
        let results = self.graph.outputs(node).iter().flatten().copied();
        results.filter(|&value| !self.graph.readers(value).is_empty())
    }

    /// The values that a node and its bodies read.
    pub(super) fn reads(&self, node: NodeId) -> impl Iterator<Item = ValueId> {
        let inputs = self.graph.inputs(node).iter().flatten();
        inputs.chain(self.graph.captures(node)).copied()
    }

    /// Whether the model stores a value as an initializer or a Constant.
    pub(super) fn is_stored(&self, value: ValueId) -> bool {
        let producer = self.graph.producer(value);
        self.graph.initializer(value).is_some()
            || producer.is_some_and(|(node, _)| self.graph.is(node, "Constant"))
    }

    /// The digests of all values.
    pub(super) fn values(&self) -> HashSet<Digest> {
        self.digests.iter().flatten().copied().collect()
    }

    /// The digests of the values that the model stores.
    pub(super) fn stored(&self) -> HashSet<Digest> {
        let values = (0..self.graph.value_count()).map(|index| ValueId(index as u32));
        let stored = values.filter(|&value| self.is_stored(value));
        stored.filter_map(|value| self.digest(value)).collect()
    }

    /// Derives missing digests of results from the node's operator and the digests of its inputs.
    /// Digests are missing because the proof does not evaluate nodes on which no output depends,
    /// and removes some activations.
    fn derive(&mut self) {
        for place in 0..self.nodes.len() {
            let node = self.nodes[place];
            let proto = self.graph.node(node);
            let Some(inputs) = self.inputs(node).filter(|_| bodies(proto).next().is_none()) else {
                continue;
            };
            for (slot, value) in self.graph.outputs(node).iter().enumerate() {
                if let Some(value) = value {
                    let digest = &mut self.digests[value.index()];
                    digest.get_or_insert_with(|| function_value(proto, &inputs, slot));
                }
            }
        }
    }

    /// The digests of the inputs of a node, and 0 for an omitted input. `None` if a digest is
    /// unknown.
    fn inputs(&self, node: NodeId) -> Option<Vec<Digest>> {
        let inputs = self.graph.inputs(node).iter();
        inputs
            .map(|input| input.map_or(Some(0), |value| self.digest(value)))
            .collect()
    }
}

/// The digest of the result at index `slot` of a node that the proof did not evaluate.
fn function_value(node: &NodeProto, inputs: &[Digest], slot: usize) -> Digest {
    let mut hash = Hash::new(0, "derived");
    let (domain, operator) = node.op();
    hash.text(domain);
    hash.text(operator);
    let mut attributes: Vec<Vec<u8>> = node.attribute.iter().map(Message::encode_to_vec).collect();
    attributes.sort();
    for attribute in &attributes {
        hash.bytes(attribute);
    }
    for &input in inputs {
        hash.digest(input);
    }
    hash.number(slot as u64);
    hash.finish()
}

/// Whether an output depends on each node.
fn needed(graph: &Graph) -> Vec<bool> {
    let mut needed = vec![false; graph.proto().node.len()];
    let outputs = graph.proto().output.iter();
    let mut open: Vec<ValueId> = outputs
        .filter_map(|output| graph.value(output.name()))
        .collect();
    while let Some(value) = open.pop() {
        let Some((node, _)) = graph.producer(value) else {
            continue;
        };
        if !needed[node] {
            needed[node] = true;
            open.extend(graph.inputs(node).iter().flatten());
            open.extend(graph.captures(node));
        }
    }
    needed
}
