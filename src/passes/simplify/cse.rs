//! Equal things once: operators that compute the same of the same values, or of small constants that hold the same; and
//! small constants of integers.

use std::hash::{BuildHasher, Hash, Hasher};

use bytes::Bytes;
use prost::Message;

use crate::hash::{HashMap, HashSet};
use crate::ir::editor::captured;
use crate::ir::regions::{END, sees, way, ways_behind};
use crate::onnx::Model;
use crate::onnx::node::{bodies, constant_tensor};
use crate::onnx::operator::{Category, is_quantized};
use crate::onnx::proto::{AttributeProto, GraphProto, NodeProto, TensorProto};
use crate::onnx::tensor;

/// Its name for `--skip`.
pub const KIND: &str = "duplicate";

/// The domain of trees, scalers and encoders, which are functions of their inputs.
const LEARNED: &str = "ai.onnx.ml";

/// Bytes up to which constants are compared. Larger ones are weights, which are not read for it.
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
    /// Its results.
    fn names(self) -> impl Iterator<Item = &'g str> {
        let (constant, made) = match self {
            Producer::Constant(name, _) => (Some(name), &[][..]),
            Producer::Node(node) => (None, &node.output[..]),
        };
        constant.into_iter().chain(made.iter().map(String::as_str))
    }
}

/// The first producer of its kind, and the region path of its body. Large graphs have millions:
/// only the hash is kept, and producers of equal hash are compared.
struct First<'g> {
    way: &'g str,
    maker: Producer<'g>,
    /// The next one of the same hash.
    next: Option<u32>,
}

/// Whether two constants with equal elements stand for equal numbers: rounding maps different
/// numbers to one.
pub type Same<'s> = &'s dyn Fn(&str, &str) -> bool;

/// The values that others take the place of, in a graph whose nodes are in order: those that were made first. Outputs of
/// the model and of bodies, and what bodies read have names that stay, and so have `pinned` tensors.
pub fn find(
    graph: &GraphProto,
    model: &Model,
    pinned: &HashSet<&str>,
    same: Same,
) -> HashMap<String, String> {
    let mut fixed: HashSet<&str> = captured(graph);
    fixed.extend(
        graph
            .quantization_annotation
            .iter()
            .map(|annotation| annotation.tensor_name()),
    );
    fixed.extend(pinned);
    // A body may have constants and no node any more.
    let of_ends = graph.node.iter().flat_map(ways_behind);
    let ways = graph.node.iter().map(way).chain(of_ends);
    let ways: HashSet<&str> = ways.filter(|way| !way.is_empty()).collect();
    let ends = graph.node.iter().filter(|node| node.domain() == END);
    // Of what the node in its place read itself, nobody needs the name.
    let of_bodies = |name: &&str| !way_to(name, &ways).is_empty();
    fixed.extend(
        ends.flat_map(|node| &node.input)
            .map(String::as_str)
            .filter(of_bodies),
    );
    let ends = graph.output.iter().map(|output| output.name());
    let outputs: HashSet<&str> = ends.filter(|name| !fixed.contains(name)).collect();
    fixed.extend(graph.output.iter().map(|output| output.name()));
    let spelled: Vec<Option<Box<TensorProto>>> = graph.node.iter().map(spelled_out).collect();
    let mut equals = Equals::new(model, &fixed, &outputs);
    let tensors = graph
        .initializer
        .iter()
        .map(|tensor| (way_to(tensor.name(), &ways), tensor));
    // Bodies see those of the main graph, whichever came first.
    let (main, inner): (Vec<_>, Vec<_>) = tensors.partition(|(way, _)| way.is_empty());
    for (way, tensor) in main
        .into_iter()
        .chain(inner)
        .filter(|(_, tensor)| !pinned.contains(tensor.name()))
    {
        equals.add(way, Producer::Constant(tensor.name(), tensor), same);
    }
    for (node, spelled) in graph
        .node
        .iter()
        .zip(&spelled)
        .filter(|(node, _)| is_pure(node))
    {
        match (
            node.op_type(),
            held(node).or(spelled.as_deref()),
            &node.output[..],
        ) {
            ("Constant", Some(tensor), [name]) => {
                equals.add(way(node), Producer::Constant(name, tensor), same)
            }
            ("Constant", ..) => {}
            _ => equals.add(way(node), Producer::Node(node), &|_, _| true),
        }
    }
    let mut instead = equals.finish();
    let inputs = graph
        .node
        .iter()
        .flat_map(|node| &node.input)
        .map(String::as_str);
    let read: HashSet<&str> = inputs.filter(|name| instead.contains_key(name)).collect();
    instead.retain(|twin, _| read.contains(twin));
    // Stored floats are merged only with the operators that read them, so that a second run is not asked whether results that
    // the first one stored are equal, to each other or to a Constant.
    let floats = graph
        .initializer
        .iter()
        .filter(|tensor| tensor::float_type(tensor).is_some());
    let floats: HashSet<&str> = floats.map(|tensor| tensor.name()).collect();
    instead.retain(|twin, first| !floats.contains(twin) && !floats.contains(first));
    instead
        .into_iter()
        .map(|(twin, first)| (twin.to_owned(), first.to_owned()))
        .collect()
}

/// Lets the readers of values read others.
pub fn merge_into(graph: &mut GraphProto, instead: &HashMap<String, String>) {
    for node in &mut graph.node {
        node.read_instead(|input| instead.get(input).map(String::as_str));
    }
}

/// The duplicates so far.
struct Equals<'g, 'f> {
    model: &'f Model,
    firsts: Vec<First<'g>>,
    /// The first of those that have a hash.
    by_hash: HashMap<u64, u32>,
    /// Whose readers read which other value.
    instead: HashMap<&'g str, &'g str>,
    /// Outputs of the model, each with an equal value that an earlier operator makes.
    outputs: HashMap<&'g str, &'g str>,
    fixed: &'f HashSet<&'f str>,
    /// The outputs of the model that no body and no pinned node reads by name.
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

    /// The value that readers of another are to read; an output replaces the equal values made before it.
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

    /// Notes who is first, or that the values of the first are read.
    fn add(&mut self, way: &'g str, maker: Producer<'g>, same: Same) {
        let Some(hash) = self.hash(maker) else { return };
        let new = self.firsts.len() as u32;
        let mut place = *self.by_hash.entry(hash).or_insert(new);
        while place != new {
            let first = &self.firsts[place as usize];
            let name = |maker: Producer<'g>| maker.names().next().unwrap_or_default();
            if self.are_equal(maker, first.maker)
                && sees(way, first.way)
                && same(name(first.maker), name(maker))
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

    /// `None` for producers that are not compared.
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

    /// Whether two make the same.
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

    /// The value that is read where an operator reads one of this name.
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

/// Whether two constants are small, and hold the same.
pub fn are_alike(one: &TensorProto, other: &TensorProto, model: &Model) -> bool {
    one.data_type() == other.data_type()
        && one.dims == other.dims
        && elements(one, model).is_some_and(|own| elements(other, model) == Some(own))
}

/// The bytes of a constant, if it is small.
fn elements(tensor: &TensorProto, model: &Model) -> Option<Bytes> {
    let data = tensor::data(tensor, model.externals()).ok();
    data.filter(|data| data.len() <= SMALL)?.all().ok()
}

/// The way to the body that a constant is in, by its name.
fn way_to<'n>(name: &'n str, ways: &HashSet<&str>) -> &'n str {
    let mut beginnings = name.rmatch_indices('/').map(|(end, _)| &name[..=end]);
    beginnings
        .find(|way| ways.contains(way))
        .unwrap_or_default()
}

/// The tensor of a Constant node, where it is one.
fn held(node: &NodeProto) -> Option<&TensorProto> {
    match &node.attribute[..] {
        [attribute] if attribute.name() == "value" => attribute.t.as_deref(),
        _ => None,
    }
}

/// As above, for a node that holds numbers.
fn spelled_out(node: &NodeProto) -> Option<Box<TensorProto>> {
    let is_alone =
        node.op() == ("", "Constant") && node.attribute.len() == 1 && held(node).is_none();
    if is_alone {
        constant_tensor(node).map(Box::new)
    } else {
        None
    }
}

/// A node's attributes, in an order independent of the exporter.
fn attributes(node: &NodeProto) -> Vec<Vec<u8>> {
    let said = |attribute: &AttributeProto| match attribute.doc_string {
        None => attribute.encode_to_vec(),
        Some(_) => AttributeProto {
            doc_string: None,
            ..attribute.clone()
        }
        .encode_to_vec(),
    };
    let mut attributes: Vec<Vec<u8>> = node.attribute.iter().map(said).collect();
    attributes.sort_unstable();
    attributes
}

/// Which of its outputs a node makes.
fn made(node: &NodeProto) -> impl Iterator<Item = bool> + '_ {
    node.output.iter().map(|name| !name.is_empty())
}

/// Whether a node makes the same of the same in every run. An operator of another domain may be anything, and pairs of
/// operators around quantized weights are for engines to find.
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
