//! Flattens bodies into the main graph.

use std::collections::BTreeSet;

use crate::hash::{HashMap, HashSet};
use crate::ir::regions::{BEGIN, BODY, Body, END, Flat, NUMBER, REGION_PATHS, move_to};
use crate::ir::{Graph, builder};
use crate::onnx::Model;
use crate::onnx::node::bodies;
use crate::onnx::proto::{AttributeType, Dim, GraphProto, NodeProto, ValueInfoProto};

impl<'m> Flat<'m> {
    /// Flattens the bodies of a model; `None` if it has none that can be flattened.
    pub(crate) fn new(model: &'m Model) -> Option<Self> {
        let graph = model.graph();
        if !graph.node.iter().any(is_flattened) || is_taken(graph) {
            return None;
        }
        Graph::new(model).ok()?;
        let mut flattening = Flattening::default();
        flattening.nodes(graph, &Inside::default())?;
        let Flattening {
            mut made,
            mut said,
            controls,
            bodies,
            paths,
            names,
            labels,
            ..
        } = flattening;
        let mut flat = GraphProto {
            node: made.node,
            ..graph.clone()
        };
        flat.initializer.append(&mut made.initializer);
        // The names that bodies declare become taken, so that new values of the main graph do not
        // get them.
        let declared: HashSet<&str> = graph.value_info.iter().map(|info| info.name()).collect();
        said.extend(names.values().map(|(_, name)| *name));
        let inner = said
            .into_iter()
            .filter(|name| !declared.contains(name))
            .map(str::to_owned);
        made.value_info
            .extend(inner.map(|name| named(ValueInfoProto::default(), name)));
        flat.value_info.append(&mut made.value_info);
        let model = model.with_graph(flat);
        Graph::new(&model).ok()?;
        Some(Flat {
            model,
            before: graph,
            controls,
            bodies,
            paths,
            names,
            labels,
        })
    }
}

/// Whether a graph already has the metadata or the domains that mark a flattened graph.
fn is_taken(graph: &GraphProto) -> bool {
    graph.node.iter().any(|node| {
        let noted = node.metadata_props.iter().any(|entry| entry.key() == BODY);
        noted || [BEGIN, END].contains(&node.domain()) || bodies(node).any(is_taken)
    })
}

/// The scope of a body: the names of the values that it can read.
#[derive(Default)]
struct Inside<'s> {
    /// The index of the body; `None` for the main graph.
    body: Option<usize>,
    path: String,
    own: HashSet<&'s str>,
    around: Option<&'s Inside<'s>>,
    /// The index of the innermost enclosing loop, if any. Declared extents in the body may differ
    /// between iterations of this loop.
    round: Option<usize>,
}

impl Inside<'_> {
    /// The name in the flattened graph of a value that this body reads.
    fn resolve(&self, name: &str) -> String {
        match self.around {
            Some(around) if !name.is_empty() && !self.own.contains(name) => around.resolve(name),
            _ => self.name(name),
        }
    }

    /// The name in the flattened graph of a value that this body defines.
    fn name(&self, name: &str) -> String {
        if name.is_empty() {
            String::new()
        } else {
            [&self.path, name].concat()
        }
    }
}

#[derive(Default)]
struct Flattening<'m> {
    /// The nodes of all graphs, and the constants and declarations of bodies.
    made: GraphProto,
    controls: Vec<&'m NodeProto>,
    bodies: Vec<Body>,
    paths: HashMap<String, usize>,
    names: HashMap<String, (usize, &'m str)>,
    labels: HashMap<String, &'m str>,
    /// The names that bodies declare or annotate.
    said: BTreeSet<&'m str>,
    /// The new symbols of extents in loops, by the loop and the declared symbol.
    symbols: HashMap<(usize, String), String>,
}

impl<'m> Flattening<'m> {
    fn nodes(&mut self, graph: &'m GraphProto, scope: &Inside) -> Option<()> {
        for node in &graph.node {
            if is_flattened(node) {
                self.control(node, scope)?;
                continue;
            }
            let mut laid = self.like(node, scope);
            laid.attribute.clone_from(&node.attribute);
            laid.output = node.output.iter().map(|name| scope.name(name)).collect();
            self.made.node.push(laid);
        }
        Some(())
    }

    /// A copy of a node with its inputs and its region path, without attributes and outputs.
    fn like(&mut self, node: &'m NodeProto, scope: &Inside) -> NodeProto {
        let mut laid = NodeProto {
            attribute: vec![],
            output: vec![],
            input: vec![],
            ..node.clone()
        };
        laid.input = node.input.iter().map(|name| scope.resolve(name)).collect();
        if scope.body.is_some() {
            let name = scope.name(node.name());
            self.labels.insert(name.clone(), node.name());
            laid.name = Some(name);
            move_to(&mut laid, &scope.path);
        }
        laid
    }

    fn control(&mut self, node: &'m NodeProto, scope: &Inside) -> Option<()> {
        let parts = parts(node)?;
        let number = builder::int(NUMBER, self.controls.len() as i64);
        self.controls.push(node);
        let is_loop = node.op_type() != "If";
        let round = if is_loop {
            Some(self.controls.len())
        } else {
            scope.round
        };
        let mut end = self.like(node, scope);
        end.domain = Some(END.into());
        end.output = node.output.iter().map(|name| scope.name(name)).collect();
        end.attribute = node
            .attribute
            .iter()
            .filter(|a| a.g.is_none())
            .cloned()
            .collect();
        end.attribute.push(number);
        let first = node.output.iter().find(|name| !name.is_empty())?;
        let stem = scope.name(first);
        let paths: Vec<String> = parts
            .iter()
            .map(|(part, _)| format!("{stem}.{part}/"))
            .collect();
        end.attribute.push(builder::strings(REGION_PATHS, &paths));
        for ((_, body), path) in parts.into_iter().zip(paths) {
            let inner = self.enter(body, path, scope, round)?;
            if is_loop {
                self.made.node.push(begin(&end, body, &inner));
            }
            self.contents(body, &inner)?;
            let results = body.output.iter();
            end.input
                .extend(results.map(|output| inner.resolve(output.name())));
        }
        self.made.node.push(end);
        Some(())
    }

    /// Registers a body and the names of its values; `None` if two bodies have the same region
    /// path.
    fn enter<'s>(
        &mut self,
        body: &'m GraphProto,
        path: String,
        scope: &'s Inside<'s>,
        round: Option<usize>,
    ) -> Option<Inside<'s>>
    where
        'm: 's,
    {
        let index = self.bodies.len();
        let inner = Inside {
            body: Some(index),
            own: own_names(body),
            around: Some(scope),
            round,
            path: path.clone(),
        };
        self.bodies.push(Body {
            path: path.clone(),
            around: scope.body,
        });
        for name in own_names(body) {
            self.names.insert(inner.name(name), (index, name));
        }
        if self.paths.insert(path, index).is_some() {
            return None;
        }
        Some(inner)
    }

    /// Flattens the constants, declarations and nodes of a body.
    fn contents(&mut self, body: &'m GraphProto, inner: &Inside) -> Option<()> {
        for tensor in &body.initializer {
            self.made.initializer.push(tensor.clone());
            self.made.initializer.last_mut()?.name = Some(inner.name(tensor.name()));
        }
        for info in body.input.iter().chain(&body.value_info) {
            self.said.insert(info.name());
            let declared = self.declared(info, inner);
            self.made.value_info.push(declared);
        }
        self.nodes(body, inner)
    }

    /// The declaration of a value in a body. A symbol inside a loop gets a new name, because it may
    /// have a different extent in each iteration.
    fn declared(&mut self, info: &ValueInfoProto, scope: &Inside) -> ValueInfoProto {
        let mut info = named(info.clone(), scope.name(info.name()));
        let shape = info
            .r#type
            .as_mut()
            .and_then(|t| t.tensor_type.as_mut())
            .and_then(|t| t.shape.as_mut());
        if let (Some(round), Some(shape)) = (scope.round, shape) {
            for dim in &mut shape.dim {
                if let Some(Dim::DimParam(symbol)) = &mut dim.value {
                    let count = self.symbols.len();
                    let own = self.symbols.entry((round, std::mem::take(symbol)));
                    *symbol = own.or_insert_with(|| format!("unfold_{count}")).clone();
                }
            }
        }
        info
    }
}

/// The [`BEGIN`](super::BEGIN) node, which computes the inputs of the body of a loop.
fn begin(end: &NodeProto, body: &GraphProto, inner: &Inside) -> NodeProto {
    let inputs = body.input.iter();
    let mut begin = NodeProto {
        domain: Some(BEGIN.into()),
        output: inputs.map(|input| inner.name(input.name())).collect(),
        ..end.clone()
    };
    begin
        .attribute
        .retain(|attribute| attribute.name() != REGION_PATHS);
    move_to(&mut begin, &inner.path);
    begin
}

fn is_flattened(node: &NodeProto) -> bool {
    bodies(node).next().is_some() && is_understood(node)
}

/// Whether unfold understands all bodies of a node, and the bodies inside them. If one of these
/// bodies is not understood, the node stays unchanged in the main graph.
fn is_understood(node: &NodeProto) -> bool {
    let Some(parts) = parts(node) else {
        return false;
    };
    let mut inner = parts.into_iter().flat_map(|(_, body)| &body.node);
    inner.all(|node| bodies(node).next().is_none() || is_understood(node))
}

/// The bodies of a node, sorted by attribute name; `None` if unfold does not understand the bodies
/// of its operator.
fn parts(node: &NodeProto) -> Option<Vec<(&str, &GraphProto)>> {
    let mut parts: Vec<(&str, &GraphProto)> = node
        .attribute
        .iter()
        .filter_map(|attribute| Some((attribute.name(), attribute.g.as_deref()?)))
        .collect();
    parts.sort_by_key(|(name, _)| *name);
    let (inputs, outputs) = (node.input.len(), node.output.len());
    let (names, given, made) = match node.op() {
        ("", "If") => (&["else_branch", "then_branch"][..], 0, outputs),
        ("", "Loop") => (&["body"][..], inputs, outputs + 1),
        ("", "Scan") => (&["body"][..], inputs, outputs),
        _ => return None,
    };
    let has_lists = node.attribute.iter().any(|attribute| {
        let is_graph = attribute.r#type() == AttributeType::Graph;
        !attribute.graphs.is_empty() || attribute.g.is_some() != is_graph
    });
    let own_names = parts.iter().map(|(name, _)| *name);
    let has_own_bodies = own_names.eq(names.iter().copied());
    let are_plain = parts.iter().all(|(_, body)| {
        body.input.len() == given
            && body.output.len() == made
            && body.sparse_initializer.is_empty()
            && body.quantization_annotation.is_empty()
    });
    (!has_lists && has_own_bodies && are_plain).then_some(parts)
}

/// The names of the values that a body defines.
fn own_names(body: &GraphProto) -> HashSet<&str> {
    let made = body
        .node
        .iter()
        .flat_map(|node| &node.output)
        .map(String::as_str);
    let stored = body.initializer.iter().map(|tensor| tensor.name());
    let given = body.input.iter().map(|input| input.name());
    made.chain(stored)
        .chain(given)
        .filter(|name| !name.is_empty())
        .collect()
}

fn named(info: ValueInfoProto, name: String) -> ValueInfoProto {
    ValueInfoProto {
        name: Some(name),
        ..info
    }
}
