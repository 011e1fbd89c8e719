//! Edits a graph in small steps. Values are given by name. Other modules decide what to change.

use crate::hash::{HashMap, HashSet, set_of};
use crate::ir::names::{Names, collect_training};
use crate::ir::{Graph, NodeId, Reader, builder};
use crate::onnx::node::bodies;
use crate::onnx::proto::{AttributeProto, AttributeType, GraphProto, NodeProto, TensorProto};

/// A graph that is being edited.
///
/// The readers of a removed value read another value instead. An output of the model keeps its
/// name. Unchanged nodes are copied only at the end, because most nodes of a large graph may be
/// removed.
pub(crate) struct Editor<'m> {
    before: &'m Graph<'m>,
    names: Names<'m>,
    /// The changed nodes of the original graph, by their index; `None` for unchanged ones.
    changed: Vec<Option<Box<NodeProto>>>,
    /// Whether each node of the original graph is removed.
    is_removed: Vec<bool>,
    /// The replacements of removed values, which are applied to all nodes at the end.
    renamed: HashMap<String, String>,
    /// For each value that must be computed under the name of an output of the model, that name.
    made_as: HashMap<String, String>,
    /// The added values, each with the node of the original graph that computes it, or `None` if a
    /// new node does.
    added: HashMap<String, Option<NodeId>>,
    /// The names of values of the original graph whose nodes now output these values under other
    /// names.
    made_under_other_name: HashSet<String>,
    /// Names to which the caller or the training information refers.
    outputs: HashSet<&'m str>,
    captured: HashSet<&'m str>,
    /// Initializers to which a training graph refers, and inputs with defaults. Both must stay
    /// unchanged.
    pinned: HashSet<&'m str>,
    /// Whether new constants are Constant nodes. Before IR version 4, an initializer is an input
    /// too, so new initializers would change the inputs of the model.
    constants_as_nodes: bool,
    /// Added constants.
    constants: Vec<TensorProto>,
    made_first: Vec<NodeProto>,
    /// Nodes to insert, each after a node of the original graph or at the end.
    behind: Vec<(NodeId, Box<NodeProto>)>,
}

/// The values of a graph that are read.
struct ReadMarks<'m> {
    graph: &'m Graph<'m>,
    is_read: Vec<bool>,
}

impl ReadMarks<'_> {
    fn mark(&mut self, name: &str) {
        if let Some(value) = self.graph.value(name) {
            self.is_read[value.index()] = true;
        }
    }
}

/// An edited graph, with the parts of the original graph that simplification needs.
pub(crate) struct Edited<'m> {
    /// The graph.
    pub graph: GraphProto,
    /// The original graph.
    pub before: &'m Graph<'m>,
    /// The names of tensors that must stay.
    pub pinned: HashSet<&'m str>,
}

impl<'m> Editor<'m> {
    /// Creates an editor of the main graph of a model. Weights are shared and not copied.
    pub(crate) fn new(before: &'m Graph<'m>) -> Self {
        let (model, graph) = (before.model(), before.proto());
        let captured = captured(graph);
        let mut outputs = graph.output.iter().map(|info| info.name()).collect();
        collect_training(model, &mut outputs, collect_names);
        let mut pinned: HashSet<&str> = graph.input.iter().map(|input| input.name()).collect();
        collect_training(model, &mut pinned, collect_names);
        Editor {
            names: Names::beside(before),
            changed: std::iter::repeat_with(|| None)
                .take(graph.node.len())
                .collect(),
            is_removed: vec![false; graph.node.len()],
            before,
            renamed: HashMap::default(),
            made_as: HashMap::default(),
            added: HashMap::default(),
            made_under_other_name: HashSet::default(),
            outputs,
            captured,
            pinned,
            constants_as_nodes: model.proto.ir_version() < 4,
            constants: vec![],
            made_first: vec![],
            behind: vec![],
        }
    }

    /// A node of the original graph, with its edits.
    fn node(&self, node: NodeId) -> &NodeProto {
        self.changed[node]
            .as_deref()
            .unwrap_or(self.before.node(node))
    }

    /// Mutable access to a node of the original graph with its edits.
    fn node_mut(&mut self, node: NodeId) -> &mut NodeProto {
        self.changed[node].get_or_insert_with(|| Box::new(self.before.node(node).clone()))
    }

    /// Returns a name that does not exist yet, and that is `wish` if possible.
    pub(crate) fn fresh(&mut self, wish: &str) -> String {
        self.names.fresh(wish)
    }

    /// The name under which readers now find a value of the original graph.
    pub(crate) fn current(&mut self, name: &str) -> String {
        let mut now = name.to_owned();
        let mut passed = vec![];
        while let Some(next) = self.renamed.get(&now) {
            passed.push(std::mem::replace(&mut now, next.clone()));
        }
        // Shortens the chain, so that the next lookup takes one step.
        passed.pop();
        for name in passed {
            self.renamed.insert(name, now.clone());
        }
        now
    }

    /// Lets input `slot` of a node read the value `name`. If the node has fewer inputs, the missing
    /// inputs before `slot` get empty names.
    pub(crate) fn set_input(&mut self, node: NodeId, slot: usize, name: &str) {
        let inputs = &mut self.node_mut(node).input;
        if inputs.len() <= slot {
            inputs.resize(slot + 1, String::new());
        }
        inputs[slot] = name.to_owned();
    }

    /// Removes an optional input.
    pub(crate) fn clear_input(&mut self, node: NodeId, slot: usize) {
        let inputs = &mut self.node_mut(node).input;
        if slot < inputs.len() {
            inputs[slot].clear();
        }
        while inputs.last().is_some_and(String::is_empty) {
            inputs.pop();
        }
    }

    /// The present name of an output of a node.
    pub(crate) fn output(&self, node: NodeId, slot: usize) -> &str {
        &self.node(node).output[slot]
    }

    /// Sets a float attribute.
    pub(crate) fn set_float(&mut self, node: NodeId, name: &str, value: f32) {
        self.clear_attribute(node, name);
        self.node_mut(node)
            .attribute
            .push(builder::float(name, value));
    }

    /// Removes an attribute, so that its default applies.
    pub(crate) fn clear_attribute(&mut self, node: NodeId, name: &str) {
        self.node_mut(node)
            .attribute
            .retain(|attribute| attribute.name() != name);
    }

    /// Adds a constant under a new name, and returns this name.
    pub(crate) fn add_constant(&mut self, wish: &str, mut tensor: TensorProto) -> String {
        let name = self.fresh(wish);
        tensor.name = Some(name.clone());
        if self.constants_as_nodes {
            self.insert_first(constant_node(tensor));
        } else {
            self.constants.push(tensor);
        }
        name
    }

    /// Reserves capacity for `constants` additional constants.
    pub(crate) fn reserve(&mut self, constants: usize) {
        self.constants.reserve(constants);
    }

    /// Replaces a node by tensors with the names of its outputs.
    pub(crate) fn store(&mut self, node: NodeId, tensors: Vec<TensorProto>) {
        self.is_removed[node] = true;
        for tensor in tensors {
            if self.constants_as_nodes {
                self.insert_behind(node, constant_node(tensor));
            } else {
                self.constants.push(tensor);
            }
        }
    }

    /// Inserts a node directly after a node of the original graph.
    pub(crate) fn insert_behind(&mut self, node: NodeId, made: NodeProto) {
        self.note_outputs(&made);
        self.behind.push((node, Box::new(made)));
    }

    /// Inserts a node before all nodes of the original graph.
    pub(crate) fn insert_first(&mut self, made: NodeProto) {
        self.note_outputs(&made);
        self.made_first.push(made);
    }

    fn note_outputs(&mut self, made: &NodeProto) {
        self.added
            .extend(made.output.iter().map(|name| (name.clone(), None)));
    }

    /// Gives an output of a node a new name, so that another node can output a value under the old
    /// name. Returns the new and the old name.
    pub(crate) fn rename_output(
        &mut self,
        node: NodeId,
        slot: usize,
        what: &str,
    ) -> (String, String) {
        let outer = self.output(node, slot).to_owned();
        let inner = self.fresh(&format!("{outer}_{what}"));
        self.node_mut(node).output[slot] = inner.clone();
        self.added.remove(&outer);
        self.made_under_other_name.insert(outer.clone());
        self.added.insert(inner.clone(), Some(node));
        (inner, outer)
    }

    /// Removes nodes. The readers of `output` read `source` instead. If the name `output` must
    /// stay, the value `source` is computed under this name, or copied by an Identity.
    pub(crate) fn remove(&mut self, nodes: &[NodeId], output: &str, source: &str) {
        self.drop_nodes(nodes);
        let (output, source) = (self.current(output), self.current(source));
        if output == source {
            return;
        }
        if !self.has_to_stay(&output) {
            self.renamed.insert(output, source);
        } else if self.is_made(&source) && !self.has_to_stay(&source) {
            self.made_as.insert(source.clone(), output.clone());
            self.renamed.insert(source, output);
        } else {
            let name = self.fresh(&format!("{output}_identity"));
            let like = nodes
                .last()
                .map(|&node| self.node(node).clone())
                .unwrap_or_default();
            let made = builder::node(&like, "Identity", &name, &[&source], &output);
            self.behind.push((NodeId::MAX, Box::new(made)));
        }
    }

    /// Removes nodes whose outputs other nodes now compute.
    pub(crate) fn drop_nodes(&mut self, nodes: &[NodeId]) {
        nodes.iter().for_each(|&node| self.is_removed[node] = true);
    }

    /// Whether a name must stay, because an output has this name or a body reads it.
    fn has_to_stay(&self, name: &str) -> bool {
        self.outputs.contains(name) || self.captured.contains(name)
    }

    fn is_made(&self, name: &str) -> bool {
        match self.added.get(name) {
            Some(None) => true,
            Some(Some(node)) => !self.is_removed[*node],
            None => {
                let value = self.before.value(name);
                let producer = value.and_then(|value| self.before.producer(value));
                let is_left = producer.is_some_and(|(node, _)| !self.is_removed[node]);
                is_left && !self.made_under_other_name.contains(name)
            }
        }
    }

    /// Returns the edited graph.
    pub(crate) fn finish(self) -> GraphProto {
        self.edited().graph
    }

    /// Returns the edited graph, with the original graph and the names that must stay.
    pub(crate) fn edited(mut self) -> Edited<'m> {
        let initializer = self.stored();
        let node = self.placed();
        let graph = GraphProto {
            node,
            initializer,
            ..self.before.proto().frame()
        };
        Edited {
            graph,
            before: self.before,
            pinned: self.pinned,
        }
    }

    /// All nodes in order, with the present names of values.
    fn placed(&mut self) -> Vec<NodeProto> {
        let mut behind = std::mem::take(&mut self.behind);
        behind.sort_by_key(|&(place, _)| place);
        let stay = self
            .is_removed
            .iter()
            .filter(|is_removed| !**is_removed)
            .count();
        let mut ordered = Vec::with_capacity(self.made_first.len() + stay + behind.len());
        ordered.append(&mut self.made_first);
        let (mut behind, mut sharded) = (behind.into_iter().peekable(), vec![]);
        for place in 0..self.is_removed.len() {
            if !self.is_removed[place] {
                let changed = self.changed[place].take();
                let node = changed.map_or_else(|| self.before.node(place).clone(), |node| *node);
                if !node.device_configurations.is_empty() {
                    sharded.push((ordered.len(), place));
                }
                ordered.push(node);
            }
            while let Some((_, made)) = behind.next_if(|&(before, _)| before == place) {
                ordered.push(*made);
            }
        }
        ordered.extend(behind.map(|(_, made)| *made));
        for node in &mut ordered {
            for input in &mut node.input {
                if self.renamed.contains_key(input) {
                    *input = self.current(input);
                }
            }
            for output in &mut node.output {
                if let Some(name) = self.made_as.get(output) {
                    name.clone_into(output);
                }
            }
        }
        for (now, place) in sharded {
            name_shards(&mut ordered[now], self.before.node(place));
        }
        ordered
    }

    /// The constants of the edited graph. A constant whose readers were all removed is left out.
    fn stored(&mut self) -> Vec<TensorProto> {
        let newly_read = self.newly_read();
        let mut kept: Vec<&TensorProto> = vec![];
        for tensor in &self.before.proto().initializer {
            if self.is_kept(tensor.name(), &newly_read) {
                kept.push(tensor);
            }
        }
        let mut stored = Vec::with_capacity(kept.len() + self.constants.len());
        stored.extend(kept.into_iter().cloned());
        stored.append(&mut self.constants);
        stored
    }

    /// Whether the initializer `name` is kept: it is still read, has a new reader, or never had a
    /// reader.
    fn is_kept(&self, name: &str, newly_read: &[bool]) -> bool {
        let Some(value) = self.before.value(name) else {
            return true;
        };
        let readers = self.before.readers(value);
        newly_read[value.index()]
            || readers.is_empty()
            || readers.iter().any(|reader| self.still_reads(reader))
    }

    fn still_reads(&self, reader: &Reader) -> bool {
        match *reader {
            Reader::Node { node, .. } => !self.is_removed[node] && self.changed[node].is_none(),
            Reader::Output | Reader::Capture { .. } => true,
        }
    }

    /// Whether each value of the original graph is read by a changed or an added node, by an
    /// annotation or in training.
    fn newly_read(&self) -> Vec<bool> {
        let mut read = ReadMarks {
            graph: self.before,
            is_read: vec![false; self.before.value_count()],
        };
        let changed = self.changed.iter().flatten().map(|node| &**node);
        let behind = self.behind.iter().map(|(_, node)| &**node);
        for node in changed.chain(&self.made_first).chain(behind) {
            node.input.iter().for_each(|name| read.mark(name));
            for body in bodies(node) {
                reads(body).into_iter().for_each(|name| read.mark(name));
            }
        }
        self.renamed.values().for_each(|name| read.mark(name));
        self.pinned.iter().for_each(|name| read.mark(name));
        for annotation in &self.before.proto().quantization_annotation {
            for entry in &annotation.quant_parameter_tensor_names {
                read.mark(entry.value());
            }
        }
        read.is_read
    }

    /// Maps the name of each replacement to the name of the value that it replaces.
    pub(crate) fn origins(&self) -> HashMap<String, String> {
        self.renamed
            .iter()
            .map(|(old, new)| (new.clone(), old.clone()))
            .collect()
    }
}

/// Renames values in the sharding of a node to their present names, and drops entries of removed
/// values.
fn name_shards(node: &mut NodeProto, before: &NodeProto) {
    let NodeProto {
        input,
        output,
        device_configurations,
        ..
    } = node;
    for configuration in device_configurations {
        configuration.sharding_spec.retain_mut(|spec| {
            let name = spec.tensor_name();
            let slots = [&before.input, &before.output]
                .map(|names| names.iter().position(|other| other == name));
            let now = match (slots[0], slots[1]) {
                (Some(slot), _) => input.get(slot),
                (None, Some(slot)) => output.get(slot),
                (None, None) => return true,
            };
            spec.tensor_name = now.filter(|now| !now.is_empty()).cloned();
            spec.tensor_name.is_some()
        });
    }
}

/// All names that occur in the bodies of a graph's nodes.
pub(crate) fn captured(graph: &GraphProto) -> HashSet<&str> {
    let mut names = HashSet::default();
    for node in &graph.node {
        bodies(node).for_each(|body| collect_names(body, &mut names));
    }
    names
}

/// Converts a tensor into a Constant node whose output has the tensor's name.
fn constant_node(tensor: TensorProto) -> NodeProto {
    let name = tensor.name.clone();
    NodeProto {
        op_type: Some("Constant".into()),
        name: name.clone(),
        output: name.into_iter().collect(),
        attribute: vec![AttributeProto {
            name: Some("value".into()),
            t: Some(Box::new(tensor)),
            r#type: Some(AttributeType::Tensor as i32),
            ..Default::default()
        }],
        ..Default::default()
    }
}

pub(crate) fn collect_names<'m>(graph: &'m GraphProto, names: &mut HashSet<&'m str>) {
    for node in &graph.node {
        names.extend(node.input.iter().chain(&node.output).map(String::as_str));
        bodies(node).for_each(|body| collect_names(body, names));
    }
    names.extend(graph.output.iter().map(|output| output.name()));
    names.extend(graph.initializer.iter().map(|tensor| tensor.name()));
}

/// The names of all values that the graph or its bodies read, and of its outputs.
pub(crate) fn reads(graph: &GraphProto) -> HashSet<&str> {
    let mut names = set_of(graph.node.len() + graph.initializer.len());
    names.extend(graph.output.iter().map(|output| output.name()));
    for node in &graph.node {
        names.extend(
            node.input
                .iter()
                .filter(|name| !name.is_empty())
                .map(String::as_str),
        );
        bodies(node).for_each(|body| collect_names(body, &mut names));
    }
    names
}
