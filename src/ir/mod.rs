//! A read-only index of the main graph: its values, their producers and readers, and the order of
//! its nodes.

pub(crate) mod axes;
pub(crate) mod builder;
mod csr;
pub(crate) mod editor;
pub(crate) mod equation;
mod index;
pub(crate) mod names;
pub(crate) mod node_set;
pub(crate) mod regions;
pub(crate) mod scope;

use crate::ir::csr::Csr;
use prost::Message;

use crate::error::Result;
use crate::hash::{HashMap, HashSet, map_of};
use crate::onnx::Model;
use crate::onnx::operator::Category;
use crate::onnx::proto::{GraphProto, NodeProto, TensorProto};
use crate::onnx::tensor;
pub(crate) use index::order;

/// A node, by its index in the graph's list of nodes.
pub(crate) type NodeId = usize;

/// A value, by its index in [`Graph`]'s table of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ValueId(pub u32);

impl ValueId {
    /// The index.
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// One reader of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Reader {
    /// Input `input` of node `node`.
    Node {
        /// The reading node.
        node: NodeId,
        /// The index of the input.
        input: usize,
    },
    /// The model's caller, an annotation of the value, or the training information.
    Output,
    /// The body of a control-flow node, which reads values of the enclosing graph.
    Capture {
        /// The If, Loop or Scan node.
        node: NodeId,
    },
}

/// An index over the main graph of a model.
pub(crate) struct Graph<'m> {
    model: &'m Model,
    proto: &'m GraphProto,
    names: Vec<&'m str>,
    ids: HashMap<&'m str, ValueId>,
    producers: Vec<Option<(NodeId, usize)>>,
    readers: Csr<Reader>,
    initializers: Vec<Option<&'m TensorProto>>,
    is_input: Vec<bool>,
    inputs: Csr<Option<ValueId>>,
    outputs: Csr<Option<ValueId>>,
    captures: Csr<ValueId>,
    /// The domain and the operator of each node. Equal pairs share their strings.
    operators: Vec<(&'m str, &'m str)>,
    categories: Vec<Option<Category>>,
    order: Vec<NodeId>,
    places: Vec<usize>,
    /// The names that occur in bodies and in the training information.
    inner: HashSet<&'m str>,
}

impl<'m> Graph<'m> {
    /// Indexes the main graph.
    ///
    /// # Errors
    /// If the graph is invalid: a value has two producers or none, or the nodes form a cycle.
    pub(crate) fn new(model: &'m Model) -> Result<Self> {
        let proto = model.graph();
        let nodes = proto.node.len();
        let made = proto
            .node
            .iter()
            .map(|node| node.output.len())
            .sum::<usize>();
        let values = proto.input.len() + proto.initializer.len() + made;
        let mut graph = Graph {
            model,
            proto,
            names: Vec::with_capacity(values),
            ids: map_of(values),
            producers: Vec::with_capacity(values),
            readers: Csr::with_capacity(0),
            initializers: Vec::with_capacity(values),
            is_input: Vec::with_capacity(values),
            inputs: Csr::with_capacity(nodes),
            outputs: Csr::with_capacity(nodes),
            captures: Csr::with_capacity(0),
            operators: index::operators(&proto.node),
            categories: proto.node.iter().map(NodeProto::category).collect(),
            order: vec![],
            places: vec![],
            inner: names::inner(model),
        };
        graph.index_values()?;
        graph.index_readers()?;
        graph.sort()?;
        Ok(graph)
    }

    /// The model whose graph is indexed.
    pub(crate) fn model(&self) -> &'m Model {
        self.model
    }

    /// The protobuf message of the main graph.
    pub(crate) fn proto(&self) -> &'m GraphProto {
        self.proto
    }

    /// The protobuf message of a node.
    pub(crate) fn node(&self, node: NodeId) -> &'m NodeProto {
        &self.proto.node[node]
    }

    /// The operator of a node, if it belongs to ONNX or is a known operator of a runtime.
    pub(crate) fn op(&self, node: NodeId) -> Option<&'m str> {
        let (domain, op) = self.domain_op(node);
        (domain.is_empty() || self.category(node).is_some()).then_some(op)
    }

    /// Whether a node has the operator `op`.
    pub(crate) fn is(&self, node: NodeId, op: &str) -> bool {
        self.op(node) == Some(op)
    }

    /// The category of a node's operator; `None` if it is unknown.
    pub(crate) fn category(&self, node: NodeId) -> Option<Category> {
        self.categories[node]
    }

    /// Whether a node only moves elements.
    pub(crate) fn is_movement(&self, node: NodeId) -> bool {
        self.category(node) == Some(Category::Movement)
    }

    /// The domain and the operator of a node; ONNX's own domain is `""`.
    pub(crate) fn domain_op(&self, node: NodeId) -> (&'m str, &'m str) {
        self.operators[node]
    }

    /// The name of the node, or of its first output if the node has none.
    pub(crate) fn name(&self, node: NodeId) -> &'m str {
        node_name(self.node(node))
    }

    /// The name of a value.
    pub(crate) fn value_name(&self, value: ValueId) -> &'m str {
        self.names[value.index()]
    }

    /// The value with a name; `None` if the main graph has no such value.
    pub(crate) fn value(&self, name: &str) -> Option<ValueId> {
        self.ids.get(name).copied()
    }

    /// Whether a value of the main graph, or anything inside a body or the training information,
    /// has this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.value(name).is_some() || self.inner.contains(name)
    }

    /// Whether a value with this name has a reader or is an output.
    pub(crate) fn reads(&self, name: &str) -> bool {
        self.value(name)
            .is_some_and(|value| !self.readers(value).is_empty())
    }

    /// The number of values.
    pub(crate) fn value_count(&self) -> usize {
        self.names.len()
    }

    /// The node that computes a value, and the index of its output; `None` for inputs and
    /// initializers.
    pub(crate) fn producer(&self, value: ValueId) -> Option<(NodeId, usize)> {
        self.producers[value.index()]
    }

    /// All readers of a value, with one entry for each input that it feeds.
    pub(crate) fn readers(&self, value: ValueId) -> &[Reader] {
        self.readers.row(value.index())
    }

    /// The initializer of a value, if it has one.
    pub(crate) fn initializer(&self, value: ValueId) -> Option<&'m TensorProto> {
        self.initializers[value.index()]
    }

    /// The values that training writes.
    pub(crate) fn trained(&self) -> impl Iterator<Item = ValueId> {
        let training = self.model.proto.training_info.iter();
        let bindings = training.flat_map(|training| {
            training
                .initialization_binding
                .iter()
                .chain(&training.update_binding)
        });
        bindings.filter_map(|binding| self.value(binding.key()))
    }

    /// The total number of bytes of the initializers and of the tensors in nodes. A tensor whose
    /// size is unknown counts as 0.
    pub(crate) fn weight_bytes(&self) -> u64 {
        let attributes = self.proto.node.iter().flat_map(|node| &node.attribute);
        let constants = attributes.filter_map(|attribute| attribute.t.as_deref());
        self.proto
            .initializer
            .iter()
            .chain(constants)
            .map(|tensor| self.tensor_bytes(tensor) as u64)
            .sum()
    }

    fn tensor_bytes(&self, tensor: &TensorProto) -> usize {
        if tensor.is_external() || tensor::is_held(tensor) {
            tensor::data(tensor, self.model.externals()).map_or(0, |data| data.len())
        } else {
            tensor.encoded_len()
        }
    }

    /// Whether the value is an input of the model.
    pub(crate) fn is_input(&self, value: ValueId) -> bool {
        self.is_input[value.index()]
    }

    /// Whether the value is an output of the model, annotated, or read by the training information.
    pub(crate) fn is_output(&self, value: ValueId) -> bool {
        // [`Reader::Output`] is the last reader. A value may have a million readers, so the list is
        // not searched.
        self.readers(value).last() == Some(&Reader::Output)
    }

    /// The inputs of a node; `None` for an optional input that is left out.
    pub(crate) fn inputs(&self, node: NodeId) -> &[Option<ValueId>] {
        self.inputs.row(node)
    }

    /// One input of a node, if it is present.
    pub(crate) fn input(&self, node: NodeId, slot: usize) -> Option<ValueId> {
        self.inputs.row(node).get(slot).copied().flatten()
    }

    /// Whether a node reads the elements of an input, and not only its shape or element type.
    pub(crate) fn reads_elements(&self, node: NodeId, slot: usize) -> bool {
        let only_shape = self.category(node).is_some_and(Category::reads_only_shape);
        !(only_shape || (slot == 1 && self.is(node, "CastLike")))
    }

    /// The outputs of a node; `None` for an optional output that is left out.
    pub(crate) fn outputs(&self, node: NodeId) -> &[Option<ValueId>] {
        self.outputs.row(node)
    }

    /// One output of a node, if it is present.
    pub(crate) fn output(&self, node: NodeId, slot: usize) -> Option<ValueId> {
        self.outputs.row(node).get(slot).copied().flatten()
    }

    /// The values of this graph that the bodies inside a node read.
    pub(crate) fn captures(&self, node: NodeId) -> &[ValueId] {
        self.captures.row(node)
    }

    /// The nodes in topological order.
    pub(crate) fn order(&self) -> &[NodeId] {
        &self.order
    }

    /// The index of the node in [`Graph::order`].
    pub(crate) fn place(&self, node: NodeId) -> usize {
        self.places[node]
    }

    /// The node that is the only reader of a value, with the index of its input; `None` if the
    /// value has no reader, several readers, or a reader that is not a node.
    pub(crate) fn only_reader(&self, value: ValueId) -> Option<(NodeId, usize)> {
        match *self.readers(value) {
            [Reader::Node { node, input }] => Some((node, input)),
            _ => None,
        }
    }

    /// The first output of a node; `None` if another output has readers, or if the first is left
    /// out.
    pub(crate) fn only_output(&self, node: NodeId) -> Option<ValueId> {
        match self.outputs(node) {
            [Some(only)] => Some(*only),
            [Some(first), rest @ ..] if rest.iter().all(|o| self.is_unread(*o)) => Some(*first),
            _ => None,
        }
    }

    fn is_unread(&self, output: Option<ValueId>) -> bool {
        output.is_none_or(|value| self.readers(value).is_empty())
    }
}

/// The name of the node, or of its first output if the node has none.
pub(crate) fn node_name(node: &NodeProto) -> &str {
    match node.name() {
        "" => node
            .output
            .iter()
            .find(|o| !o.is_empty())
            .map_or(node.op_type(), |o| o),
        name => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_nodes_are_in_the_order() {
        let model = Model::open("models/digits/un-dynamo.onnx").unwrap();
        let graph = Graph::new(&model).unwrap();
        assert_eq!(graph.order().len(), graph.proto().node.len());
    }
}
