//! Common subexpression elimination: keeps one of several equal operators on equal values, and one
//! of several equal small constants.

use std::hash::{BuildHasher, Hash, Hasher};

use bytes::Bytes;
use prost::Message;

use crate::hash::{HashMap, HashSet};
use crate::ir::editor::captured;
use crate::ir::regions::{END, region_path, region_paths_after, sees};
use crate::onnx::Model;
use crate::onnx::node::{bodies, constant_tensor};
use crate::onnx::operator::{Category, is_quantized};
use crate::onnx::proto::{AttributeProto, GraphProto, NodeProto, TensorProto};
use crate::onnx::tensor;

/// The domain of trees, scalers and encoders, which are functions of their inputs.
const LEARNED: &str = "ai.onnx.ml";

/// The number of bytes up to which constants are compared. Larger constants are weights, and are
/// not read only for a comparison.
const SMALL: usize = 1 << 16;

/// The producer of a value.
#[derive(Clone, Copy)]
enum Producer<'g> {
    /// A small constant.
    Constant(&'g str, &'g TensorProto),
    /// An operator.
    Node(&'g NodeProto),
}

impl<'g> Producer<'g> {
    /// The names of the results of the producer.
    fn names(self) -> impl Iterator<Item = &'g str> {
        let (constant, made) = match self {
            Producer::Constant(name, _) => (Some(name), &[][..]),
            Producer::Node(node) => (None, &node.output[..]),
        };
        constant.into_iter().chain(made.iter().map(String::as_str))
    }

    /// The name of the first result of the producer.
    fn name(self) -> &'g str {
        self.names().next().unwrap_or_default()
    }
}

/// The first of several equal producers, and the region path of its body. Large graphs have
/// millions of producers, so only their hashes are indexed, and producers with equal hashes are
/// compared.
struct First<'g> {
    way: &'g str,
    maker: Producer<'g>,
    /// The index of the next producer with the same hash.
    next: Option<u32>,
}

/// Whether two constants with equal elements represent equal numbers. Rounding may have made
/// different numbers equal.
pub(super) type Same<'s> = &'s dyn Fn(&str, &str) -> bool;

/// Finds equal values in a graph whose nodes are in order, and maps each of them to the first equal
/// value, which replaces it. Outputs of the model and of bodies, values that bodies read, and
/// `pinned` tensors keep their names.
pub(super) fn find(
    graph: &GraphProto,
    model: &Model,
    pinned: &HashSet<&str>,
    same: Same,
) -> HashMap<String, String> {
    let ways = region_paths(graph);
    let mut fixed = fixed_names(graph, pinned, &ways);
    let outputs = graph.output.iter().map(|output| output.name());
    let ends: HashSet<&str> = outputs
        .clone()
        .filter(|name| !fixed.contains(name))
        .collect();
    fixed.extend(outputs);
    let spelled: Vec<Option<Box<TensorProto>>> = graph.node.iter().map(spelled_out).collect();
    let mut equals = Equals::new(model, &fixed, &ends);
    equals.add_tensors(graph, &ways, pinned, same);
    equals.add_nodes(graph, &spelled, same);
    let mut instead = equals.finish();
    let read: HashSet<&str> = graph
        .node
        .iter()
        .flat_map(|node| &node.input)
        .map(String::as_str)
        .filter(|name| instead.contains_key(name))
        .collect();
    // Stored floats are not replaced. Only the operators that read stored floats are merged.
    // Otherwise, results that this run stores could equal each other or a Constant, and a second
    // run would merge them.
    let floats = stored_floats(graph);
    instead.retain(|twin, first| {
        read.contains(twin) && !floats.contains(twin) && !floats.contains(first)
    });
    instead
        .into_iter()
        .map(|(twin, first)| (twin.to_owned(), first.to_owned()))
        .collect()
}

/// The region paths of all bodies. They are read from the nodes inside of bodies and from the nodes
/// that have bodies, since a body without nodes may still have constants.
fn region_paths(graph: &GraphProto) -> HashSet<&str> {
    let behind_nodes = graph.node.iter().flat_map(region_paths_after);
    graph
        .node
        .iter()
        .map(region_path)
        .chain(behind_nodes)
        .filter(|path| !path.is_empty())
        .collect()
}

/// The names that must stay: of values that bodies read, of annotated and `pinned` tensors, and of
/// results of bodies.
fn fixed_names<'g>(
    graph: &'g GraphProto,
    pinned: &HashSet<&'g str>,
    ways: &HashSet<&str>,
) -> HashSet<&'g str> {
    let mut fixed: HashSet<&str> = captured(graph);
    let annotations = graph.quantization_annotation.iter();
    fixed.extend(annotations.map(|annotation| annotation.tensor_name()));
    fixed.extend(pinned);
    let ends = graph.node.iter().filter(|node| node.domain() == END);
    let results = ends.flat_map(|node| &node.input).map(String::as_str);
    // An END also reads values from outside of its bodies, whose names are not needed.
    fixed.extend(results.filter(|name| !way_to(name, ways).is_empty()));
    fixed
}

/// The names of initializers of floats.
fn stored_floats(graph: &GraphProto) -> HashSet<&str> {
    graph
        .initializer
        .iter()
        .filter(|tensor| tensor::float_type(tensor).is_some())
        .map(|tensor| tensor.name())
        .collect()
}

/// Lets nodes read the replacements in `instead`.
pub(super) fn merge_into(graph: &mut GraphProto, instead: &HashMap<String, String>) {
    for node in &mut graph.node {
        node.read_instead(|input| instead.get(input).map(String::as_str));
    }
}

/// The duplicates that were found so far.
struct Equals<'g, 'f> {
    model: &'f Model,
    firsts: Vec<First<'g>>,
    /// The first producer with each hash, as an index into `firsts`.
    by_hash: HashMap<u64, u32>,
    /// Maps the name of a value to the value that replaces it.
    instead: HashMap<&'g str, &'g str>,
    /// Outputs of the model, each with an equal value that an earlier operator outputs.
    outputs: HashMap<&'g str, &'g str>,
    fixed: &'f HashSet<&'f str>,
    /// The outputs of the model whose names must stay only because they are outputs.
    ends: &'f HashSet<&'f str>,
}

impl<'g, 'f> Equals<'g, 'f> {
    fn new(model: &'f Model, fixed: &'f HashSet<&'f str>, ends: &'f HashSet<&'f str>) -> Self {
        let (by_hash, instead, outputs) = Default::default();
        Equals {
            model,
            firsts: vec![],
            by_hash,
            instead,
            outputs,
            fixed,
            ends,
        }
    }

    /// The value that replaces each duplicate. If a duplicate is an output of the model, the output
    /// replaces the equal value that was computed before it.
    fn finish(self) -> HashMap<&'g str, &'g str> {
        let mut instead = self.instead;
        let mut ends: HashMap<&str, &str> = HashMap::default();
        for (output, first) in self.outputs {
            let is_free = !self.fixed.contains(first) && !instead.contains_key(first);
            if is_free && ends.get(first).is_none_or(|other| output < *other) {
                ends.insert(first, output);
            }
        }
        for now in instead.values_mut() {
            *now = ends.get(now).copied().unwrap_or(now);
        }
        instead.extend(ends);
        instead
    }

    /// Adds small constants that are not `pinned`. Constants of the main graph are added first, so
    /// that equal constants of bodies are replaced by them.
    fn add_tensors(
        &mut self,
        graph: &'g GraphProto,
        ways: &HashSet<&str>,
        pinned: &HashSet<&str>,
        same: Same,
    ) {
        let (main, inner): (Vec<_>, Vec<_>) = graph
            .initializer
            .iter()
            .map(|tensor| (way_to(tensor.name(), ways), tensor))
            .partition(|(way, _)| way.is_empty());
        for (way, tensor) in main.into_iter().chain(inner) {
            if !pinned.contains(tensor.name()) {
                self.add(way, Producer::Constant(tensor.name(), tensor), same);
            }
        }
    }

    /// Adds operators, and Constants by their elements. `spelled` holds the elements of a Constant
    /// that is a list.
    fn add_nodes(
        &mut self,
        graph: &'g GraphProto,
        spelled: &'g [Option<Box<TensorProto>>],
        same: Same,
    ) {
        for (node, spelled) in graph.node.iter().zip(spelled) {
            if !is_pure(node) {
                continue;
            }
            if node.op_type() != "Constant" {
                self.add(region_path(node), Producer::Node(node), &|_, _| true);
                continue;
            }
            let tensor = constant_attribute(node).or(spelled.as_deref());
            if let (Some(tensor), [name]) = (tensor, &node.output[..]) {
                self.add(region_path(node), Producer::Constant(name, tensor), same);
            }
        }
    }

    /// Adds a producer, either as the first of its kind, or as a duplicate of the first.
    fn add(&mut self, way: &'g str, maker: Producer<'g>, same: Same) {
        let Some(hash) = self.hash(maker) else { return };
        let new = self.firsts.len() as u32;
        let mut place = *self.by_hash.entry(hash).or_insert(new);
        while place != new {
            let first = &self.firsts[place as usize];
            if self.are_equal(maker, first.maker)
                && sees(way, first.way)
                && same(first.maker.name(), maker.name())
            {
                if !maker.names().any(|name| self.fixed.contains(name)) {
                    let pairs = maker.names().zip(first.maker.names());
                    self.instead
                        .extend(pairs.filter(|(name, _)| !name.is_empty()));
                } else if let (Producer::Node(node), Producer::Node(other)) = (maker, first.maker)
                    && let ([output], [first_output]) = (&node.output[..], &other.output[..])
                    && way.is_empty()
                    && self.ends.contains(output.as_str())
                {
                    self.outputs.insert(output, first_output);
                }
                return;
            }
            place = *self.firsts[place as usize].next.get_or_insert(new);
        }
        self.firsts.push(First {
            way,
            maker,
            next: None,
        });
    }

    /// The hash of a producer. `None` for producers that are not compared.
    fn hash(&self, maker: Producer) -> Option<u64> {
        let mut state = self.by_hash.hasher().build_hasher();
        match maker {
            Producer::Constant(_, tensor) => {
                (
                    tensor.data_type(),
                    &tensor.dims,
                    elements(tensor, self.model)?,
                )
                    .hash(&mut state);
            }
            Producer::Node(node) => {
                (node.op(), attributes(node)).hash(&mut state);
                node.input
                    .iter()
                    .for_each(|name| self.now(name).hash(&mut state));
            }
        }
        Some(state.finish())
    }

    /// Whether two producers compute equal values.
    fn are_equal(&self, one: Producer, other: Producer) -> bool {
        match (one, other) {
            (Producer::Constant(_, one), Producer::Constant(_, other)) => {
                are_alike(one, other, self.model)
            }
            (Producer::Node(one), Producer::Node(other)) => {
                one.op() == other.op()
                    && one.overload() == other.overload()
                    && one
                        .input
                        .iter()
                        .map(|name| self.now(name))
                        .eq(other.input.iter().map(|name| self.now(name)))
                    && made(one).eq(made(other))
                    && attributes(one) == attributes(other)
            }
            _ => false,
        }
    }

    /// The value that is read in place of the value with this name: the equal value that was found
    /// first, or the value itself.
    fn now<'n>(&self, name: &'n str) -> &'n str
    where
        'g: 'n,
    {
        self.instead
            .get(name)
            .or_else(|| self.outputs.get(name))
            .copied()
            .unwrap_or(name)
    }
}

/// Whether two constants are small and equal.
pub(super) fn are_alike(one: &TensorProto, other: &TensorProto, model: &Model) -> bool {
    one.data_type() == other.data_type()
        && one.dims == other.dims
        && elements(one, model).is_some_and(|own| elements(other, model) == Some(own))
}

/// The bytes of a constant. `None` if it is large.
fn elements(tensor: &TensorProto, model: &Model) -> Option<Bytes> {
    let data = tensor::data(tensor, model.externals()).ok();
    data.filter(|data| data.len() <= SMALL)?.all().ok()
}

/// The region path of the body that a constant is in, by its name. Empty for the main graph.
fn way_to<'n>(name: &'n str, ways: &HashSet<&str>) -> &'n str {
    let mut beginnings = name.rmatch_indices('/').map(|(end, _)| &name[..=end]);
    beginnings
        .find(|way| ways.contains(way))
        .unwrap_or_default()
}

/// The tensor of a Constant whose attribute is a tensor. `None` for other nodes.
fn constant_attribute(node: &NodeProto) -> Option<&TensorProto> {
    match &node.attribute[..] {
        [attribute] if attribute.name() == "value" => attribute.t.as_deref(),
        _ => None,
    }
}

/// The tensor of a Constant whose attribute is a scalar, a list or a text. `None` for other nodes.
fn spelled_out(node: &NodeProto) -> Option<Box<TensorProto>> {
    let is_alone = node.op() == ("", "Constant")
        && node.attribute.len() == 1
        && constant_attribute(node).is_none();
    if is_alone {
        constant_tensor(node).map(Box::new)
    } else {
        None
    }
}

/// A node's attributes, in an order independent of the exporter.
fn attributes(node: &NodeProto) -> Vec<Vec<u8>> {
    let mut attributes: Vec<Vec<u8>> = node.attribute.iter().map(without_text).collect();
    attributes.sort_unstable();
    attributes
}

/// An attribute as bytes, without its documentation.
fn without_text(attribute: &AttributeProto) -> Vec<u8> {
    if attribute.doc_string.is_none() {
        return attribute.encode_to_vec();
    }
    let attribute = AttributeProto {
        doc_string: None,
        ..attribute.clone()
    };
    attribute.encode_to_vec()
}

/// Whether each output of a node has a name.
fn made(node: &NodeProto) -> impl Iterator<Item = bool> + '_ {
    node.output.iter().map(|name| !name.is_empty())
}

/// Whether a node computes equal outputs from equal inputs in every run. An operator of an unknown
/// domain may do anything. Quantization operators stay, because engines search for pairs of them
/// around weights.
fn is_pure(node: &NodeProto) -> bool {
    let (domain, op) = node.op();
    let is_known = matches!(domain, "" | LEARNED) || node.category().is_some();
    let may_drop = op == "Dropout" && node.output.len() + node.input.len() > 2;
    is_known
        && !may_drop
        && !is_quantized(domain, op)
        && !node.category().is_some_and(Category::is_random)
        && bodies(node).next().is_none()
}
