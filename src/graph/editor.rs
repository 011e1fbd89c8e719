//! Changing a graph by names, one small edit at a time. Deciding is done elsewhere.

use super::names::{Names, collect_training};
use super::{Graph, make};
use crate::hash::{HashMap, HashSet, set_of};
use crate::onnx::node::bodies;
use crate::onnx::proto::{AttributeProto, AttributeType, GraphProto, NodeProto, TensorProto};

/// A graph under change.
///
/// Values that go become other names of values that stay; an output of the model keeps its name.
pub struct Editor<'m> {
    graph: GraphProto,
    before: &'m Graph<'m>,
    names: Names<'m>,
    /// What is read in the place of values that went; put into the nodes at the end, all at once.
    renamed: HashMap<String, String>,
    /// Values that are made under the name of an output of the model.
    made_as: HashMap<String, String>,
    /// Values that came, and the node of the original graph that makes one, if it is such a node.
    came: HashMap<String, Option<usize>>,
    /// Values of the original graph that their nodes make under another name.
    left: HashSet<String>,
    outputs: HashSet<&'m str>,
    captured: HashSet<&'m str>,
    /// Initializers that a training graph refers to, and inputs with defaults: not to be touched.
    pinned: HashSet<&'m str>,
    /// Before IR version 4 an initializer is an input too; then new constants are nodes.
    constants_as_nodes: bool,
    made_first: Vec<NodeProto>,
    behind: HashMap<usize, Vec<NodeProto>>,
    gone: HashSet<usize>,
}

/// A graph after its changes, and what simplifying it asks of the graph before.
pub struct Edited<'m> {
    /// The graph.
    pub graph: GraphProto,
    /// The original graph.
    pub before: &'m Graph<'m>,
    /// Names whose tensors must stay.
    pub pinned: HashSet<&'m str>,
}

impl<'m> Editor<'m> {
    /// Begins with a copy of a model's main graph. Weights are shared, not copied.
    pub fn new(before: &'m Graph<'m>) -> Self {
        let (model, graph) = (before.model(), before.proto());
        let captured = captured(graph);
        let outputs = graph.output.iter().map(|info| info.name()).collect();
        let mut pinned: HashSet<&str> = graph.input.iter().map(|input| input.name()).collect();
        collect_training(model, &mut pinned, collect_names);
        Editor {
            names: Names::beside(before),
            graph: graph.clone(),
            before,
            renamed: HashMap::default(),
            made_as: HashMap::default(),
            came: HashMap::default(),
            left: HashSet::default(),
            outputs,
            captured,
            pinned,
            constants_as_nodes: model.proto.ir_version() < 4,
            made_first: vec![],
            behind: HashMap::default(),
            gone: HashSet::default(),
        }
    }

    /// A name that nothing has yet.
    pub fn fresh(&mut self, wish: &str) -> String {
        self.names.fresh(wish)
    }

    /// The name that a value of the original graph has now.
    pub fn current(&mut self, name: &str) -> String {
        let mut now = name.to_owned();
        let mut passed = vec![];
        while let Some(next) = self.renamed.get(&now) {
            passed.push(std::mem::replace(&mut now, next.clone()));
        }
        // The next one who asks has one step to go.
        passed.pop();
        for name in passed {
            self.renamed.insert(name, now.clone());
        }
        now
    }

    /// Makes input `slot` of a node read another value; absent inputs in between are left out.
    pub fn set_input(&mut self, node: usize, slot: usize, name: &str) {
        let inputs = &mut self.graph.node[node].input;
        if inputs.len() <= slot {
            inputs.resize(slot + 1, String::new());
        }
        inputs[slot] = name.to_owned();
    }

    /// Leaves an optional input out.
    pub fn clear_input(&mut self, node: usize, slot: usize) {
        let inputs = &mut self.graph.node[node].input;
        if slot < inputs.len() {
            inputs[slot].clear();
        }
        while inputs.last().is_some_and(String::is_empty) {
            inputs.pop();
        }
    }

    /// The name that an output of a node has now.
    pub fn output(&self, node: usize, slot: usize) -> &str {
        &self.graph.node[node].output[slot]
    }

    /// Sets a float attribute.
    pub fn set_float(&mut self, node: usize, name: &str, value: f32) {
        self.clear_attribute(node, name);
        self.graph.node[node].attribute.push(make::float(name, value));
    }

    /// Leaves an attribute out, so that it has its default.
    pub fn clear_attribute(&mut self, node: usize, name: &str) {
        self.graph.node[node].attribute.retain(|attribute| attribute.name() != name);
    }

    /// Adds a constant under a new name, and returns the name.
    pub fn add_constant(&mut self, wish: &str, mut tensor: TensorProto) -> String {
        let name = self.fresh(wish);
        tensor.name = Some(name.clone());
        if self.constants_as_nodes {
            self.insert_first(constant_node(tensor));
        } else {
            self.graph.initializer.push(tensor);
        }
        name
    }

    /// Stores what a node makes: tensors with the names of its values come, the node goes.
    pub fn store(&mut self, node: usize, tensors: Vec<TensorProto>) {
        self.gone.insert(node);
        for tensor in tensors {
            if self.constants_as_nodes {
                self.insert_behind(node, constant_node(tensor));
            } else {
                self.graph.initializer.push(tensor);
            }
        }
    }

    /// Inserts a node right behind another of the original graph.
    pub fn insert_behind(&mut self, node: usize, made: NodeProto) {
        self.comes(&made);
        self.behind.entry(node).or_default().push(made);
    }

    /// Inserts a node before all of the original graph.
    pub fn insert_first(&mut self, made: NodeProto) {
        self.comes(&made);
        self.made_first.push(made);
    }

    fn comes(&mut self, made: &NodeProto) {
        self.came.extend(made.output.iter().map(|name| (name.clone(), None)));
    }

    /// Puts nodes behind one that keeps its place but not the name of its output: whatever read
    /// `output` reads what the last of `made` makes. Returns the new name of the node's own output, which says what it
    /// is, and the old one.
    pub fn rename_output(&mut self, node: usize, slot: usize, what: &str) -> (String, String) {
        let outer = self.graph.node[node].output[slot].clone();
        let inner = self.fresh(&format!("{outer}_{what}"));
        self.graph.node[node].output[slot] = inner.clone();
        self.came.remove(&outer);
        self.left.insert(outer.clone());
        self.came.insert(inner.clone(), Some(node));
        (inner, outer)
    }

    /// Takes nodes out. What read `output` reads `source` instead; where `output` is a name that
    /// has to stay, the value of `source` gets it.
    pub fn remove(&mut self, nodes: &[usize], output: &str, source: &str) {
        self.gone.extend(nodes);
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
            let like = nodes.last().map(|&node| self.graph.node[node].clone()).unwrap_or_default();
            self.graph.node.push(make::node(&like, "Identity", &name, &[&source], &output));
        }
    }

    /// Takes nodes out whose outputs other nodes make from now on.
    pub fn drop_nodes(&mut self, nodes: &[usize]) {
        self.gone.extend(nodes);
    }

    /// Whether a name is that of an output, or one that a body reads.
    fn has_to_stay(&self, name: &str) -> bool {
        self.outputs.contains(name) || self.captured.contains(name)
    }

    fn is_made(&self, name: &str) -> bool {
        let stays = |node: &usize| !self.gone.contains(node);
        match self.came.get(name) {
            Some(maker) => maker.as_ref().is_none_or(stays),
            None => {
                let maker = || self.before.producer(self.before.value(name)?);
                !self.left.contains(name) && maker().is_some_and(|(node, _)| stays(&node))
            }
        }
    }

    /// Puts everything in its place.
    pub fn finish(self) -> GraphProto {
        self.edited().graph
    }

    /// The same, with the graph before and what must stay.
    pub fn edited(mut self) -> Edited<'m> {
        let nodes = std::mem::take(&mut self.graph.node);
        let mut ordered = std::mem::take(&mut self.made_first);
        ordered.reserve(nodes.len());
        let mut sharded = vec![];
        for (place, node) in nodes.into_iter().enumerate() {
            if !self.gone.contains(&place) {
                if !node.device_configurations.is_empty() {
                    sharded.push((ordered.len(), place));
                }
                ordered.push(node);
            }
            ordered.extend(self.behind.remove(&place).into_iter().flatten());
        }
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
            if let Some(before) = self.before.proto().node.get(place) {
                name_shards(&mut ordered[now], before);
            }
        }
        self.graph.node = ordered;
        Edited { graph: self.graph, before: self.before, pinned: self.pinned }
    }

    /// What values that got another name were called in the original graph.
    pub fn origins(&self) -> HashMap<String, String> {
        self.renamed.iter().map(|(old, new)| (new.clone(), old.clone())).collect()
    }
}

/// Lets what says how the values of a node are sharded call them as the node does now.
fn name_shards(node: &mut NodeProto, before: &NodeProto) {
    let NodeProto { input, output, device_configurations, .. } = node;
    for spec in device_configurations.iter_mut().flat_map(|configuration| &mut configuration.sharding_spec) {
        let name = spec.tensor_name();
        let slot = |names: &[String]| names.iter().position(|there| there == name);
        let now = match slot(&before.input) {
            Some(slot) => input.get(slot),
            None => slot(&before.output).and_then(|slot| output.get(slot)),
        };
        spec.tensor_name = now.cloned().or(spec.tensor_name.take());
    }
}

/// All names in the bodies of a graph's nodes.
pub fn captured(graph: &GraphProto) -> HashSet<&str> {
    let mut names = HashSet::default();
    for node in &graph.node {
        bodies(node).for_each(|body| collect_names(body, &mut names));
    }
    names
}

/// A node that makes a tensor under its name.
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

/// Everything that something in the graph reads, or that is an output.
pub fn reads(graph: &GraphProto) -> HashSet<&str> {
    let mut names = set_of(graph.node.len() + graph.initializer.len());
    names.extend(graph.output.iter().map(|output| output.name()));
    for node in &graph.node {
        names.extend(node.input.iter().filter(|name| !name.is_empty()).map(String::as_str));
        bodies(node).for_each(|body| collect_names(body, &mut names));
    }
    names
}
