//! Restores flattened bodies.

use std::collections::HashSet;

use crate::hash::HashMap;
use crate::ir::builder;
use crate::ir::names::Names;
use crate::ir::regions::{
    BEGIN, Body, END, Flat, NUMBER, move_to, region_path, region_paths_after,
};
use crate::onnx::Model;
use crate::onnx::proto::{GraphProto, NodeProto, TensorProto};

/// The contents of one graph of a model.
#[derive(Default)]
struct Content {
    nodes: Vec<NodeProto>,
    initializers: Vec<TensorProto>,
}

/// The state of restoring a flattened graph.
struct Restoring<'r> {
    flat: &'r Flat<'r>,
    /// The body that defines each value. Values of the main graph are not listed.
    homes: HashMap<&'r str, usize>,
    content: HashMap<Option<usize>, Content>,
    /// Whether each body still exists. A body whose control-flow node was removed is dropped with
    /// its nodes.
    is_there: Vec<bool>,
    /// The values that the flattened graph declares.
    declared: HashSet<&'r str>,
    names: Names<'r>,
}

impl Flat<'_> {
    /// Restores the bodies of a flattened model after passes have changed it; `None` if a value is
    /// read where it is not visible.
    pub(crate) fn restore(&self, flat: &Model) -> Option<Model> {
        let graph = flat.graph();
        let mut restoring = Restoring {
            flat: self,
            homes: HashMap::default(),
            content: HashMap::default(),
            is_there: self.are_there(graph),
            declared: graph.value_info.iter().map(|info| info.name()).collect(),
            names: Names::new(flat),
        };
        restoring.place_initializers(graph);
        for node in &graph.node {
            restoring.put(node)?;
        }
        let mut outputs = graph.output.iter();
        if outputs.any(|output| restoring.homes.contains_key(output.name())) {
            return None;
        }
        Some(flat.with_graph(restoring.main(graph)?))
    }

    /// Whether each body still has its control-flow node in a flattened graph.
    fn are_there(&self, graph: &GraphProto) -> Vec<bool> {
        let mut there = vec![false; self.bodies.len()];
        for body in graph
            .node
            .iter()
            .flat_map(region_paths_after)
            .filter_map(|path| self.paths.get(path))
        {
            there[*body] = true;
        }
        there
    }

    /// The inner one of two graphs; `None` if neither encloses the other.
    fn inner(&self, one: Option<usize>, other: Option<usize>) -> Option<Option<usize>> {
        match (self.sees(one, other), self.sees(other, one)) {
            (true, _) => Some(one),
            (_, true) => Some(other),
            _ => None,
        }
    }

    /// Whether nodes in graph `from` can read values of graph `to`, because `to` is `from` or
    /// encloses it.
    fn sees(&self, from: Option<usize>, to: Option<usize>) -> bool {
        let mut next = from;
        while next != to {
            let Some(body) = next else { return false };
            next = self.bodies[body].around;
        }
        true
    }
}

impl<'r> Restoring<'r> {
    /// The body itself if it still exists, or else the innermost existing graph that encloses it.
    fn outside(&self, body: usize) -> Option<usize> {
        let mut next = Some(body);
        while let Some(body) = next.filter(|&body| !self.is_there[body]) {
            next = self.flat.bodies[body].around;
        }
        next
    }

    /// Moves the initializers into their bodies. An initializer of a removed body moves into the
    /// enclosing graph if a remaining node reads it; otherwise it is removed too. A new initializer that one body reads
    /// moves into this body, because onnxruntime optimizes a Conv in a body only if its weight is there.
    fn place_initializers(&mut self, graph: &'r GraphProto) {
        let readers = self.readers(graph);
        let before = self.flat.before.initializer.iter();
        let before: HashSet<&str> = before.map(|tensor| tensor.name()).collect();
        for tensor in &graph.initializer {
            let body = self.flat.names.get(tensor.name()).map(|(body, _)| *body);
            let is_removed = body.is_some_and(|body| !self.is_there[body]);
            let of_readers = readers.get(tensor.name());
            if is_removed && of_readers.is_none() {
                continue;
            }
            let is_new = body.is_none() && !before.contains(tensor.name());
            let home = match of_readers {
                Some(home) if is_new => *home,
                _ => body.and_then(|body| self.outside(body)),
            };
            self.homes.extend(home.map(|home| (tensor.name(), home)));
            let content = self.content.entry(home).or_default();
            content.initializers.push(tensor.clone());
        }
    }

    /// The graph whose nodes read each value; the main graph if nodes of several graphs, or a control-flow node, read it.
    fn readers(&self, graph: &'r GraphProto) -> HashMap<&'r str, Option<usize>> {
        let mut readers: HashMap<&str, Option<usize>> = HashMap::default();
        for node in graph.node.iter().filter(|node| self.stays(node)) {
            let is_control = [BEGIN, END].contains(&node.domain());
            let body = self.flat.paths.get(region_path(node)).copied();
            let home = body.filter(|_| !is_control);
            for read in &node.input {
                let others = readers.entry(read).or_insert(home);
                *others = others.filter(|_| *others == home);
            }
        }
        let outputs = graph.output.iter().map(|output| (output.name(), None));
        readers.extend(outputs);
        readers
    }

    /// Whether the body of a node still exists. If it was removed, its nodes are removed too.
    fn stays(&self, node: &NodeProto) -> bool {
        let body = self.flat.paths.get(region_path(node));
        body.is_none_or(|&body| self.is_there[body])
    }

    /// Rebuilds the main graph with the bodies in it.
    fn main(&mut self, flat: &GraphProto) -> Option<GraphProto> {
        let Content {
            nodes,
            initializers,
        } = self.content.remove(&None).unwrap_or_default();
        let mut main = GraphProto {
            node: vec![],
            initializer: initializers,
            ..flat.clone()
        };
        let infos = self.flat.before.value_info.iter();
        let declared: HashSet<&str> = infos.map(|info| info.name()).collect();
        let outputs = nodes.iter().flat_map(|node| &node.output);
        let made: HashSet<&str> = outputs.map(String::as_str).collect();
        main.value_info.retain(|info| {
            let is_new = info.r#type.is_some() && made.contains(info.name());
            is_new || declared.contains(info.name())
        });
        let restored = nodes.iter().map(|node| self.node(node, None));
        main.node = restored.collect::<Option<_>>()?;
        Some(main)
    }

    /// Assigns a node to the innermost one of the graph of its region path and the graphs that
    /// define its inputs. `None` if one of these graphs neither encloses nor is within another.
    fn put(&mut self, node: &'r NodeProto) -> Option<()> {
        let noted = region_path(node);
        let mut home = if noted.is_empty() {
            None
        } else {
            Some(*self.flat.paths.get(noted)?)
        };
        if ![BEGIN, END].contains(&node.domain()) {
            for read in &node.input {
                home = self
                    .flat
                    .inner(home, self.homes.get(read.as_str()).copied())?;
            }
        }
        self.homes.extend(home.into_iter().flat_map(|home| {
            node.output
                .iter()
                .filter(|name| !name.is_empty())
                .map(move |name| (name.as_str(), home))
        }));
        if node.domain() != BEGIN {
            self.content
                .entry(home)
                .or_default()
                .nodes
                .push(node.clone());
        }
        Some(())
    }

    /// The name of a value in the graph that defines it.
    fn name(&self, flat: &str) -> String {
        let inner = self
            .flat
            .names
            .get(flat)
            .filter(|(body, _)| self.is_there[*body]);
        inner.map_or(flat, |(_, name)| name).to_owned()
    }

    /// The name of a value in a body that reads it; `None` if it is not visible there, or if
    /// another value hides its name.
    fn read(&self, flat: &str, from: Option<usize>) -> Option<String> {
        let home = self.homes.get(flat).copied();
        let name = self.name(flat);
        let mut next = from;
        while next != home {
            let Body { path, around } = &self.flat.bodies[next?];
            if self
                .flat
                .names
                .contains_key(&[path, name.as_str()].concat())
            {
                return None;
            }
            next = *around;
        }
        Some(name)
    }

    fn node(&mut self, node: &NodeProto, home: Option<usize>) -> Option<NodeProto> {
        if node.domain() == END {
            return self.control(node, home);
        }
        let mut restored = node.clone();
        self.restore_names(&mut restored, home)?;
        Some(restored)
    }

    fn restore_names(&self, node: &mut NodeProto, home: Option<usize>) -> Option<()> {
        for name in &mut node.input {
            *name = self.read(name, home)?;
        }
        for name in &mut node.output {
            *name = self.name(name);
        }
        if home.is_some() {
            let labels = &self.flat.labels;
            node.name = node.name.as_ref().map(|name| match labels.get(name) {
                Some(label) => (*label).to_owned(),
                None => name.clone(),
            });
        }
        move_to(node, "");
        Some(())
    }

    /// Rebuilds a control-flow node with its bodies from the node that replaces it.
    fn control(&mut self, end: &NodeProto, home: Option<usize>) -> Option<NodeProto> {
        let number = usize::try_from(end.attr_i(NUMBER).ok()??).ok()?;
        let before = *self.flat.controls.get(number)?;
        let count = before.input.len();
        let mut made = end.input.get(count..)?;
        let mut restored = NodeProto {
            input: end.input[..count].to_vec(),
            output: end.output.clone(),
            name: end.name.clone(),
            metadata_props: end.metadata_props.clone(),
            ..before.clone()
        };
        self.restore_names(&mut restored, home)?;
        let mut bodies: Vec<_> = restored
            .attribute
            .iter_mut()
            .filter(|attribute| attribute.g.is_some())
            .collect();
        bodies.sort_by(|one, other| one.name().cmp(other.name()));
        for (attribute, path) in bodies.into_iter().zip(region_paths_after(end)) {
            let home = *self.flat.paths.get(path)?;
            let body = attribute.g.as_mut()?;
            let results;
            (results, made) = made.split_at_checked(body.output.len())?;
            self.body(body, home, results)?;
        }
        Some(restored)
    }

    /// Rebuilds a body with the results `results`.
    fn body(&mut self, body: &mut GraphProto, home: usize, results: &[String]) -> Option<()> {
        let Content {
            nodes,
            initializers,
        } = self.content.remove(&Some(home)).unwrap_or_default();
        body.node = nodes
            .iter()
            .map(|node| self.node(node, Some(home)))
            .collect::<Option<_>>()?;
        body.initializer = initializers;
        for tensor in &mut body.initializer {
            tensor.name = Some(self.name(tensor.name()));
        }
        let path = self.flat.bodies[home].path.clone();
        body.value_info.retain(|info| {
            self.declared
                .contains([&path, info.name()].concat().as_str())
        });
        let now = results
            .iter()
            .map(|flat| self.read(flat, Some(home)))
            .collect::<Option<Vec<_>>>()?;
        let same = body
            .output
            .iter()
            .zip(&now)
            .filter(|(output, now)| output.name() == now.as_str());
        let mut taken: HashSet<&str> = same.map(|(_, now)| now.as_str()).collect();
        for (output, name) in body.output.iter_mut().zip(&now) {
            let maker = body.node.iter().find(|node| node.output.contains(name));
            if output.name() == name || (maker.is_some() && taken.insert(name)) {
                output.name = Some(name.clone());
                continue;
            }
            // Engines require that a node of the body computes each result, and that no two results
            // share a value.
            let copy = self
                .names
                .fresh(&format!("{path}{}_identity", output.name()));
            let maker = maker.cloned().unwrap_or_default();
            body.node
                .push(builder::node(&maker, "Identity", &copy, &[name], &copy));
            output.name = Some(copy);
        }
        Some(())
    }
}
