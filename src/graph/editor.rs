//! Changing a graph by names, one small edit at a time. Deciding is done elsewhere.

use std::collections::{HashMap, HashSet};

use super::names::Names;
use crate::onnx::Model;
use crate::onnx::proto::{AttributeProto, AttributeType, GraphProto, NodeProto, TensorProto};

/// A graph under change.
///
/// Values that go become other names of values that stay; an output of the model keeps its name.
pub struct Editor {
    graph: GraphProto,
    names: Names,
    renamed: HashMap<String, String>,
    /// Initializers that a training graph refers to, and inputs with defaults: not to be touched.
    pinned: HashSet<String>,
    /// Before IR version 4 an initializer is an input too; then new constants are nodes.
    constants_as_nodes: bool,
    was_read: HashSet<String>,
    made_first: Vec<NodeProto>,
    behind: HashMap<usize, Vec<NodeProto>>,
    gone: HashSet<usize>,
}

impl Editor {
    /// Begins with a copy of the model's main graph. Weights are shared, not copied.
    pub fn new(model: &Model) -> Self {
        let graph = model.graph().clone();
        let mut pinned: HashSet<String> = graph.input.iter().map(|input| input.name().to_owned()).collect();
        for training in &model.proto.training_info {
            let bindings = training.initialization_binding.iter().chain(&training.update_binding);
            pinned.extend(bindings.flat_map(|b| [b.key().to_owned(), b.value().to_owned()]));
            let graphs = training.initialization.iter().chain(&training.algorithm);
            graphs.for_each(|graph| collect_names(graph, &mut pinned));
        }
        let was_read = reads(&graph);
        Editor {
            graph,
            names: Names::of(model),
            renamed: HashMap::new(),
            pinned,
            constants_as_nodes: model.proto.ir_version() < 4,
            was_read,
            made_first: vec![],
            behind: HashMap::new(),
            gone: HashSet::new(),
        }
    }

    /// A name that nothing has yet.
    pub fn fresh(&mut self, wish: &str) -> String {
        self.names.fresh(wish)
    }

    /// The name that a value of the original graph has now.
    pub fn current<'s>(&'s self, name: &'s str) -> &'s str {
        let mut name = name;
        while let Some(now) = self.renamed.get(name) {
            name = now;
        }
        name
    }

    /// A node as it is now.
    pub fn node(&self, node: usize) -> &NodeProto {
        &self.graph.node[node]
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

    /// Sets a float attribute.
    pub fn set_float(&mut self, node: usize, name: &str, value: f32) {
        let attributes = &mut self.graph.node[node].attribute;
        attributes.retain(|attribute| attribute.name() != name);
        attributes.push(AttributeProto {
            name: Some(name.to_owned()),
            f: Some(value),
            r#type: Some(AttributeType::Float as i32),
            ..Default::default()
        });
    }

    /// Adds a constant under a new name, and returns the name.
    pub fn add_constant(&mut self, wish: &str, mut tensor: TensorProto) -> String {
        let name = self.fresh(wish);
        tensor.name = Some(name.clone());
        if self.constants_as_nodes {
            self.made_first.push(NodeProto {
                op_type: Some("Constant".into()),
                name: Some(name.clone()),
                output: vec![name.clone()],
                attribute: vec![AttributeProto {
                    name: Some("value".into()),
                    t: Some(Box::new(tensor)),
                    r#type: Some(AttributeType::Tensor as i32),
                    ..Default::default()
                }],
                ..Default::default()
            });
        } else {
            self.graph.initializer.push(tensor);
        }
        name
    }

    /// Inserts a node right behind another of the original graph.
    pub fn insert_behind(&mut self, node: usize, made: NodeProto) {
        self.behind.entry(node).or_default().push(made);
    }

    /// Inserts a node before all of the original graph.
    pub fn insert_first(&mut self, made: NodeProto) {
        self.made_first.push(made);
    }

    /// Puts nodes behind one that keeps its place but not the name of its output: whatever read
    /// `output` reads what the last of `made` makes. Returns the new name of the node's own output.
    pub fn rename_output(&mut self, node: usize, slot: usize) -> (String, String) {
        let outer = self.graph.node[node].output[slot].clone();
        let inner = self.fresh(&format!("{outer}_unbiased"));
        self.graph.node[node].output[slot] = inner.clone();
        (inner, outer)
    }

    /// Takes nodes out. What read `output` reads `source` instead; where `output` is a name that
    /// has to stay, the value of `source` gets it.
    pub fn remove(&mut self, nodes: &[usize], output: &str, source: &str) {
        self.gone.extend(nodes);
        let (output, source) = (self.current(output).to_owned(), self.current(source).to_owned());
        self.join(&output, &source);
    }

    /// Takes nodes out whose outputs other nodes make from now on.
    pub fn drop_nodes(&mut self, nodes: &[usize]) {
        self.gone.extend(nodes);
    }

    fn join(&mut self, output: &str, source: &str) {
        if output == source {
            return;
        }
        let is_output = |name: &str| self.graph.output.iter().any(|info| info.name() == name);
        if !is_output(output) && !self.is_captured(output) {
            self.replace_reads(output, source);
            self.renamed.insert(output.to_owned(), source.to_owned());
            return;
        }
        if self.is_made(source) && !is_output(source) && !self.is_captured(source) {
            self.replace_reads(source, output);
            let made = self.graph.node.iter_mut().chain(self.behind.values_mut().flatten());
            for name in made.flat_map(|node| &mut node.output).filter(|name| *name == source) {
                output.clone_into(name);
            }
            self.renamed.insert(source.to_owned(), output.to_owned());
            return;
        }
        let name = self.fresh(&format!("{output}_identity"));
        self.graph.node.push(NodeProto {
            op_type: Some("Identity".into()),
            name: Some(name),
            input: vec![source.to_owned()],
            output: vec![output.to_owned()],
            ..Default::default()
        });
    }

    fn is_made(&self, name: &str) -> bool {
        let kept = self.graph.node.iter().enumerate().filter(|(i, _)| !self.gone.contains(i)).map(|(_, n)| n);
        let mut nodes = kept.chain(self.behind.values().flatten());
        nodes.any(|node| node.output.iter().any(|output| output == name))
    }

    fn is_captured(&self, name: &str) -> bool {
        let mut names = HashSet::new();
        for node in &self.graph.node {
            bodies(node).for_each(|body| collect_names(body, &mut names));
        }
        names.contains(name)
    }

    fn replace_reads(&mut self, from: &str, to: &str) {
        let nodes = self.graph.node.iter_mut().chain(self.behind.values_mut().flatten());
        for input in nodes.flat_map(|node| &mut node.input).filter(|input| *input == from) {
            to.clone_into(input);
        }
    }

    /// Puts everything in its place and takes out what nobody reads any more. What nobody read
    /// before stays.
    pub fn finish(mut self) -> GraphProto {
        let nodes = std::mem::take(&mut self.graph.node);
        let mut ordered = std::mem::take(&mut self.made_first);
        for (place, node) in nodes.into_iter().enumerate() {
            if !self.gone.contains(&place) {
                ordered.push(node);
            }
            ordered.extend(self.behind.remove(&place).into_iter().flatten());
        }
        self.graph.node = ordered;
        self.graph
    }

    /// What values that got another name were called in the original graph.
    pub fn origins(&self) -> HashMap<String, String> {
        self.renamed.iter().map(|(old, new)| (new.clone(), old.clone())).collect()
    }

    /// What was read in the original graph.
    pub fn was_read(&self) -> HashSet<String> {
        self.was_read.clone()
    }

    /// Names whose tensors must stay.
    pub fn pinned(&self) -> HashSet<String> {
        self.pinned.clone()
    }
}

/// The bodies inside a node.
pub fn bodies(node: &NodeProto) -> impl Iterator<Item = &GraphProto> {
    node.attribute.iter().flat_map(|attribute| attribute.g.iter().map(|g| &**g).chain(&attribute.graphs))
}

fn collect_names(graph: &GraphProto, names: &mut HashSet<String>) {
    for node in &graph.node {
        names.extend(node.input.iter().chain(&node.output).cloned());
        bodies(node).for_each(|body| collect_names(body, names));
    }
    names.extend(graph.output.iter().map(|output| output.name().to_owned()));
    names.extend(graph.initializer.iter().map(|tensor| tensor.name().to_owned()));
}

/// Everything that something in the graph reads, or that is an output.
pub fn reads(graph: &GraphProto) -> HashSet<String> {
    let mut names: HashSet<String> = graph.output.iter().map(|output| output.name().to_owned()).collect();
    for node in &graph.node {
        names.extend(node.input.iter().filter(|name| !name.is_empty()).cloned());
        bodies(node).for_each(|body| collect_names(body, &mut names));
    }
    names
}
