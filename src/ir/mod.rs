//! A read-only view of the main graph: producers, readers, and facts about its values.

pub mod axes;
pub mod builder;
mod csr;
pub mod editor;
pub mod equation;
pub mod names;
pub mod node_set;
pub mod regions;
pub mod scope;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::ir::csr::Csr;
use prost::Message;

use crate::error::{Error, Result};
use crate::hash::{HashMap, HashSet, map_of};
use crate::onnx::Model;
use crate::onnx::node::bodies;
use crate::onnx::operator::Category;
use crate::onnx::proto::{GraphProto, NodeProto, TensorProto};
use crate::onnx::tensor;

/// A node, by its place in the graph's list.
pub type NodeId = usize;

/// A value, by its place in [`Graph`]'s table of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

impl ValueId {
    /// The place.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// One reader of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reader {
    /// Input `input` of node `node`.
    Node {
        /// The node that reads.
        node: NodeId,
        /// Which of its inputs.
        input: usize,
    },
    /// The model's caller, whoever reads an annotation of the value, or what trains the model.
    Output,
    /// The body of a control-flow node, which sees the values around it.
    Capture {
        /// The If, Loop or Scan node.
        node: NodeId,
    },
}

/// An index over the main graph of a model.
///
/// ```
/// use unfold::ir::Graph;
/// use unfold::onnx::Model;
/// let model = Model::open("models/digits/un-dynamo.onnx")?;
/// let graph = Graph::new(&model)?;
/// assert_eq!(graph.order().len(), graph.proto().node.len());
/// # Ok::<(), unfold::error::Error>(())
/// ```
pub struct Graph<'m> {
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
    /// Domain and operator of each node, said once for all nodes that have the same.
    operators: Vec<(&'m str, &'m str)>,
    categories: Vec<Option<Category>>,
    order: Vec<NodeId>,
    places: Vec<usize>,
    /// The names that bodies have, and what trains the model.
    inner: HashSet<&'m str>,
}

impl<'m> Graph<'m> {
    /// Indexes the main graph.
    ///
    /// # Errors
    /// If the graph is invalid: a value with two producers or none, or a cycle.
    pub fn new(model: &'m Model) -> Result<Self> {
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
            operators: operators(&proto.node),
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

    fn index_values(&mut self) -> Result<()> {
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
            // Known to exist, and to be no input; its content stays closed.
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

    fn index_readers(&mut self) -> Result<()> {
        let proto = self.proto;
        let mut readers = Vec::with_capacity(2 * proto.node.len());
        let (mut inputs, mut captured) = (vec![], vec![]);
        for (node, reads) in proto.node.iter().enumerate() {
            for (input, name) in reads.input.iter().enumerate() {
                if name.is_empty() {
                    inputs.push(None);
                    continue;
                }
                let Some(&id) = self.ids.get(name.as_str()) else {
                    let reason = format!("reads `{name}`, which nothing makes");
                    return Err(self.error(node_name(reads), reason));
                };
                readers.push((id.index(), Reader::Node { node, input }));
                inputs.push(Some(id));
            }
            self.inputs.push(inputs.drain(..));
            bodies(reads).for_each(|body| free_names(body, &mut captured));
            let mut captures = vec![];
            for name in captured.drain(..) {
                match self.ids.get(name) {
                    Some(&id) => captures.push(id),
                    // The captures of a custom operator's body are unknown.
                    None if !reads.op().0.is_empty() => {}
                    None => {
                        let reason = format!("has a body that reads `{name}`, which nothing makes");
                        return Err(self.error(node_name(reads), reason));
                    }
                }
            }
            captures.sort();
            captures.dedup();
            readers.extend(
                captures
                    .iter()
                    .map(|id| (id.index(), Reader::Capture { node })),
            );
            self.captures.push(captures);
        }
        for output in &proto.output {
            let Some(&id) = self.ids.get(output.name()) else {
                return Err(self.error(output.name(), "nothing makes this graph output"));
            };
            readers.push((id.index(), Reader::Output));
        }
        // A quantization annotation counts as a reader.
        for annotation in &self.proto.quantization_annotation {
            if let Some(id) = self
                .ids
                .get(annotation.tensor_name())
                .filter(|id| self.producers[id.index()].is_some())
            {
                readers.push((id.index(), Reader::Output));
            }
        }
        for name in read_by_training(self.model) {
            if let Some(id) = self
                .ids
                .get(name)
                .filter(|id| self.producers[id.index()].is_some())
            {
                readers.push((id.index(), Reader::Output));
            }
        }
        self.readers = Csr::grouped(self.names.len(), &readers);
        Ok(())
    }

    fn sort(&mut self) -> Result<()> {
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

    /// The model that it indexes.
    pub fn model(&self) -> &'m Model {
        self.model
    }

    /// The main graph's message.
    pub fn proto(&self) -> &'m GraphProto {
        self.proto
    }

    /// A node's message.
    pub fn node(&self, node: NodeId) -> &'m NodeProto {
        &self.proto.node[node]
    }

    /// The operator of a node, if it is one of ONNX's own or of a runtime's that is known.
    pub fn op(&self, node: NodeId) -> Option<&'m str> {
        let (domain, op) = self.domain_op(node);
        (domain.is_empty() || self.category(node).is_some()).then_some(op)
    }

    /// Whether a node is this operator.
    pub fn is(&self, node: NodeId, op: &str) -> bool {
        self.op(node) == Some(op)
    }

    /// The category of a node's operator; `None` where it is unknown.
    pub fn category(&self, node: NodeId) -> Option<Category> {
        self.categories[node]
    }

    /// Whether a node only moves elements.
    pub fn is_movement(&self, node: NodeId) -> bool {
        self.category(node) == Some(Category::Movement)
    }

    /// Domain (with ONNX's own as `""`) and operator of a node.
    pub fn domain_op(&self, node: NodeId) -> (&'m str, &'m str) {
        self.operators[node]
    }

    /// The node's name, or its first output where it has none.
    pub fn name(&self, node: NodeId) -> &'m str {
        node_name(self.node(node))
    }

    /// The name of a value.
    pub fn value_name(&self, value: ValueId) -> &'m str {
        self.names[value.index()]
    }

    /// The value of that name.
    pub fn value(&self, name: &str) -> Option<ValueId> {
        self.ids.get(name).copied()
    }

    /// Whether a value, or a name inside of a body, has this name.
    pub fn has(&self, name: &str) -> bool {
        self.value(name).is_some() || self.inner.contains(name)
    }

    /// Whether anything reads a value of that name, or it is an output.
    pub fn reads(&self, name: &str) -> bool {
        self.value(name)
            .is_some_and(|value| !self.readers(value).is_empty())
    }

    /// How many values there are.
    pub fn value_count(&self) -> usize {
        self.names.len()
    }

    /// The node that makes a value, and at which of its outputs.
    pub fn producer(&self, value: ValueId) -> Option<(NodeId, usize)> {
        self.producers[value.index()]
    }

    /// Everything that reads a value, one entry for each input that it feeds.
    pub fn readers(&self, value: ValueId) -> &[Reader] {
        self.readers.row(value.index())
    }

    /// The initializer behind a value.
    pub fn initializer(&self, value: ValueId) -> Option<&'m TensorProto> {
        self.initializers[value.index()]
    }

    /// The values that training writes.
    pub fn trained(&self) -> impl Iterator<Item = ValueId> {
        let training = self.model.proto.training_info.iter();
        let bindings = training.flat_map(|training| {
            training
                .initialization_binding
                .iter()
                .chain(&training.update_binding)
        });
        bindings.filter_map(|binding| self.value(binding.key()))
    }

    /// Bytes of the initializers, and of the constants in nodes, as far as they are known.
    pub(crate) fn weight_bytes(&self) -> u64 {
        let attributes = self.proto.node.iter().flat_map(|node| &node.attribute);
        let constants = attributes.filter_map(|attribute| attribute.t.as_deref());
        let stored =
            |tensor: &TensorProto| match tensor::is_external(tensor) || tensor::is_held(tensor) {
                true => tensor::data(tensor, self.model.externals()).map_or(0, |data| data.len()),
                false => tensor.encoded_len(),
            };
        self.proto
            .initializer
            .iter()
            .chain(constants)
            .map(|tensor| stored(tensor) as u64)
            .sum()
    }

    /// Whether a caller may give the value.
    pub fn is_input(&self, value: ValueId) -> bool {
        self.is_input[value.index()]
    }

    /// Whether the value is an output of the model, annotated, or read by what trains the model.
    pub fn is_output(&self, value: ValueId) -> bool {
        // The outputs come last: a value may have a million readers.
        self.readers(value).last() == Some(&Reader::Output)
    }

    /// The inputs of a node; `None` is an optional input left out.
    pub fn inputs(&self, node: NodeId) -> &[Option<ValueId>] {
        self.inputs.row(node)
    }

    /// One input of a node, if it is present.
    pub fn input(&self, node: NodeId, slot: usize) -> Option<ValueId> {
        self.inputs.row(node).get(slot).copied().flatten()
    }

    /// Whether a node looks at the elements of an input, and not at its shape or element type alone.
    pub fn reads_elements(&self, node: NodeId, slot: usize) -> bool {
        let only_shape = self.category(node).is_some_and(Category::reads_only_shape);
        !(only_shape || (slot == 1 && self.is(node, "CastLike")))
    }

    /// The outputs of a node; `None` is an optional output left out.
    pub fn outputs(&self, node: NodeId) -> &[Option<ValueId>] {
        self.outputs.row(node)
    }

    /// One output of a node, if it is present.
    pub fn output(&self, node: NodeId, slot: usize) -> Option<ValueId> {
        self.outputs.row(node).get(slot).copied().flatten()
    }

    /// The values of this graph that the bodies inside a node read.
    pub fn captures(&self, node: NodeId) -> &[ValueId] {
        self.captures.row(node)
    }

    /// The nodes, each after everything that it reads.
    pub fn order(&self) -> &[NodeId] {
        &self.order
    }

    /// The node's place in [`Graph::order`].
    pub fn place(&self, node: NodeId) -> usize {
        self.places[node]
    }

    /// The only reader of a value, if it is a node, and at which of its inputs.
    pub fn only_reader(&self, value: ValueId) -> Option<(NodeId, usize)> {
        match *self.readers(value) {
            [Reader::Node { node, input }] => Some((node, input)),
            _ => None,
        }
    }

    /// The only output of a node that anything could read.
    pub fn only_output(&self, node: NodeId) -> Option<ValueId> {
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

/// Domain and operator of each node. Each pair is where the first node has it: millions of nodes name a few dozen, and
/// whoever compares one with another looks at the same memory.
fn operators(nodes: &[NodeProto]) -> Vec<(&str, &str)> {
    let mut firsts = HashMap::default();
    nodes
        .iter()
        .map(|node| *firsts.entry(node.op()).or_insert(node.op()))
        .collect()
}

/// A topological order of nodes, by Kahn's algorithm. A pair `(a, b)` puts `a` before `b`; ties go by number. Nodes in or
/// behind a cycle are left out.
pub fn order(count: usize, pairs: &[(NodeId, NodeId)]) -> Vec<NodeId> {
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

/// The node's name, or its first output where it has none.
pub fn node_name(node: &NodeProto) -> &str {
    match node.name() {
        "" => node
            .output
            .iter()
            .find(|o| !o.is_empty())
            .map_or(node.op_type(), |o| o),
        name => name,
    }
}

/// Names that a body reads and does not make, with those of the bodies inside it.
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

/// Names that the training graphs of a model read and do not make, and the names of their
/// gradients.
fn read_by_training(model: &Model) -> Vec<&str> {
    let mut read = vec![];
    for training in &model.proto.training_info {
        for graph in training.initialization.iter().chain(&training.algorithm) {
            free_names(graph, &mut read);
            read.extend(names::of_gradients(graph));
        }
        let bindings = training
            .initialization_binding
            .iter()
            .chain(&training.update_binding);
        read.extend(bindings.map(|binding| binding.value()));
    }
    read
}
