//! Constant folding: computes once the values that do not depend on the inputs of the model. These
//! are expressions over weights and arithmetic of fixed extents.
//!
//! A value keeps its name, and a tensor replaces its producer. If the replaced producers were the
//! only readers of a node's results, that node is removed as dead code.

use crate::analysis::Analysis;
use crate::hash::HashSet;
use crate::ir::editor::Editor;
use crate::ir::regions::{is_result, region_path};
use crate::ir::{Graph, NodeId, Reader, ValueId};
use crate::onnx::operator::{Category, is_more_than_arithmetic, is_quantized};
use crate::onnx::proto::TensorProto;
use crate::onnx::tensor::{DataType, float_type, shape};
use crate::passes::simplify::branch_folding::taken_branch;
use crate::passes::simplify::identity_elimination::{identity_operand, is_captured};
use crate::refusal::{Reason, Refusal};
use crate::shape::facts::extent;

/// The number of bytes up to which a result is stored even if it makes the model larger. Such
/// results are shapes, small masks and biases.
const SMALL: u64 = 1 << 14;

/// The limit on the bytes that are read and written for one result. Unlike large weights, which
/// stay in their files, results are in memory until the model is saved.
const HELD: u64 = 1 << 28;

/// The number of rounds in which the operands of a value are tried, if the value itself cannot be
/// stored.
const ROUNDS: usize = 8;

/// The results that are stored in place of nodes.
#[derive(Default)]
pub(super) struct StoredResults {
    /// The removed nodes, with their results.
    stored: Vec<(NodeId, Vec<(ValueId, TensorProto)>)>,
    /// Identities of constants. The readers of an identity then read the constant itself.
    aliases: Vec<(NodeId, ValueId, ValueId)>,
    /// The expressions that stay, with the reasons.
    pub kept: Vec<Refusal>,
    /// The bytes that the tensors add.
    pub growth: u64,
}

/// A stored tensor of floats, with the value that it replaces.
pub(crate) struct NamedFloats {
    /// The name of the tensor. Outside of bodies it is the name of the value.
    pub name: String,
    /// The name of the value that the tensor replaces.
    pub value: String,
    /// The element type.
    pub data_type: DataType,
    /// The extents.
    pub shape: Vec<usize>,
}

impl StoredResults {
    /// Finds the values that can be stored without adding more than `allowed` bytes. Small results
    /// do not count. The nodes of `sites` stay, because they identify the kinds of the sites.
    /// Values that are computed from tensors for which `new` returns true stay too.
    pub(super) fn find(
        analysis: &Analysis,
        sites: &HashSet<NodeId>,
        new: &dyn Fn(&str) -> bool,
        allowed: f64,
    ) -> Self {
        let mut frontier = Frontier {
            analysis,
            stays: stays(analysis, sites, new),
        };
        let mut kept = vec![];
        for round in 0.. {
            let roots = frontier.roots();
            let (growth, mut beyond) = frontier.weigh(&roots, allowed);
            let mut stored = vec![];
            if beyond.is_empty() {
                for &node in &roots.nodes {
                    match frontier.compute(node) {
                        Ok(tensors) => stored.push((node, tensors)),
                        Err(refusal) => beyond.push((node, refusal)),
                    }
                }
            }
            if beyond.is_empty() {
                kept.sort_by(|one: &Refusal, other| one.at.cmp(&other.at));
                kept.dedup();
                return Self {
                    stored,
                    aliases: roots.aliases,
                    kept,
                    growth,
                };
            }
            for (node, refusal) in beyond {
                // The operands of the node are tried in the next round. After `ROUNDS` rounds, all
                // nodes on whose results the node depends are refused together with it.
                frontier.refuse(node, round >= ROUNDS);
                kept.push(refusal);
            }
        }
        Self::default()
    }

    /// Whether there is nothing to store.
    pub(super) fn is_empty(&self) -> bool {
        self.stored.is_empty() && self.aliases.is_empty()
    }

    /// Stores the results. Returns the results that are floats.
    pub(super) fn store(self, analysis: &Analysis, editor: &mut Editor) -> Vec<NamedFloats> {
        let graph = &analysis.graph;
        for (node, output, source) in self.aliases {
            editor.remove(&[node], graph.value_name(output), graph.value_name(source));
        }
        let mut floats = vec![];
        for (node, tensors) in self.stored {
            let is_inside = !region_path(graph.node(node)).is_empty();
            let mut named = vec![];
            for (value, tensor) in tensors {
                let value = graph.value_name(value).to_owned();
                let float_shape = float_type(&tensor).zip(shape(&tensor).ok());
                // Recipes name constants of the main graph, so a float result of a body is stored
                // in the main graph.
                let name = if is_inside && float_shape.is_some() {
                    let name = editor.add_constant(&value, tensor);
                    editor.remove(&[node], &value, &name);
                    name
                } else {
                    named.push(TensorProto {
                        name: Some(value.clone()),
                        ..tensor
                    });
                    value.clone()
                };
                floats.extend(float_shape.map(|(data_type, shape)| NamedFloats {
                    name,
                    value,
                    data_type,
                    shape,
                }));
            }
            editor.store(node, named);
        }
        floats
    }
}

/// Marks the nodes that are not replaced: their results are not all constants, or they must stay
/// nodes.
fn stays(analysis: &Analysis, sites: &HashSet<NodeId>, new: &dyn Fn(&str) -> bool) -> Vec<bool> {
    let graph = &analysis.graph;
    let mut is_new = new_tensors(graph, new);
    let mut stays = vec![false; graph.order().len()];
    for &node in graph.order() {
        let (domain, op) = graph.domain_op(node);
        let is_constant = makes_only_constants(analysis, node);
        let reads_shape = graph.category(node).is_some_and(Category::reads_only_shape);
        let mut read = graph.inputs(node).iter().flatten();
        let is_from_new = is_constant && !reads_shape && read.any(|value| is_new[value.0 as usize]);
        let is_decided = taken_branch(analysis, node).is_some();
        stays[node] = !is_constant
            || op == "Constant"
            || is_quantized(domain, op)
            || is_from_new
            || is_decided
            || cuts_mask(analysis, node);
        for value in graph.outputs(node).iter().flatten() {
            is_new[value.0 as usize] |= is_from_new;
        }
    }
    for &node in sites {
        stays[node] |= is_float_operator(analysis, node);
    }
    for node in behind_rounded_results(analysis) {
        stays[node] = true;
    }
    stays
}

/// Whether a node is a Split of a mask of floats, or a Slice of a part of such a mask. A stored
/// part would have a recipe, but a proof recognizes the places that a mask hides only in tensors of
/// the original model.
fn cuts_mask(analysis: &Analysis, node: NodeId) -> bool {
    let graph = &analysis.graph;
    let Some(value) = graph.input(node, 0) else {
        return false;
    };
    match graph.op(node) {
        Some("Split") => analysis.constants.has_hidden(value),
        Some("Slice") => {
            let maker = graph.producer(value).map(|(maker, _)| maker);
            maker.is_some_and(|maker| graph.is(maker, "Split") && cuts_mask(analysis, maker))
        }
        _ => false,
    }
}

/// For each value, whether it is an initializer for which `new` returns true.
fn new_tensors(graph: &Graph, new: &dyn Fn(&str) -> bool) -> Vec<bool> {
    (0..graph.value_count())
        .map(|index| ValueId(index as u32))
        .map(|value| graph.initializer(value).is_some() && new(graph.value_name(value)))
        .collect()
}

/// Whether all results of a node that have readers are constants that can be stored.
fn makes_only_constants(analysis: &Analysis, node: NodeId) -> bool {
    let graph = &analysis.graph;
    let mut made = graph.outputs(node).iter().flatten().peekable();
    made.peek().is_some()
        && made.all(|&value| graph.readers(value).is_empty() || can_be_stored(analysis, value))
}

/// Whether a value is a constant whose readers accept a stored tensor in its place.
fn can_be_stored(analysis: &Analysis, value: ValueId) -> bool {
    let Analysis {
        graph, constants, ..
    } = analysis;
    constants.is_constant(value)
        && !constants.is_quantized(value)
        && !is_range_bound(analysis, value)
        && !graph.is_output(value)
        && !is_result(graph, value)
}

/// Whether a value has one element and an axis, and is read by a Range that stays. Engines accept
/// such a value from a node, but not as a stored constant.
fn is_range_bound(analysis: &Analysis, value: ValueId) -> bool {
    let Analysis { graph, facts, .. } = analysis;
    facts.rank(value) != Some(0)
        && graph
            .readers(value)
            .iter()
            .any(|reader| is_open_range(analysis, reader))
}

/// Whether a reader is a Range that cannot be computed.
fn is_open_range(analysis: &Analysis, reader: &Reader) -> bool {
    let Analysis {
        graph, constants, ..
    } = analysis;
    let Reader::Node { node, .. } = *reader else {
        return false;
    };
    let range = graph.only_output(node).filter(|_| graph.is(node, "Range"));
    range.is_some_and(|range| constants.tensor(range).is_err())
}

/// Whether a node computes floats from floats. A node that computes floats from floats may identify
/// a kind, while a node that computes a mask does not. Only the first input counts, because the
/// other inputs may be axes and shapes.
fn is_float_operator(analysis: &Analysis, node: NodeId) -> bool {
    let graph = &analysis.graph;
    let first = graph.inputs(node).first().copied().flatten();
    let mut values = first
        .into_iter()
        .chain(graph.outputs(node).iter().flatten().copied());
    values.all(|value| {
        let data_type = analysis.facts.data_type(value);
        data_type.is_none_or(DataType::is_float)
    })
}

/// The nodes that compute inexact constant outputs of the model or of a body, and the nodes on
/// whose results they depend. A constant output stays the result of a node. If the operands of this
/// node were stored, it would compute from rounded numbers.
fn behind_rounded_results(analysis: &Analysis) -> HashSet<NodeId> {
    let Analysis {
        graph, constants, ..
    } = analysis;
    let mut inexact: HashSet<ValueId> = HashSet::default();
    let mut ends = vec![];
    for &node in graph.order() {
        let is_inexact = graph.op(node).is_some_and(is_more_than_arithmetic);
        let mut read = graph.inputs(node).iter().flatten();
        if !is_inexact && !read.any(|value| inexact.contains(value)) {
            continue;
        }
        let made = graph.outputs(node).iter().flatten().copied();
        for value in made.filter(|&value| constants.is_constant(value)) {
            inexact.insert(value);
            if graph.is_output(value) || is_result(graph, value) {
                ends.push(node);
            }
        }
    }
    cone(analysis, &ends)
}

/// Returns `nodes`, and all nodes that directly or indirectly compute constants that `nodes` read.
pub(super) fn cone(analysis: &Analysis, nodes: &[NodeId]) -> HashSet<NodeId> {
    let Analysis {
        graph, constants, ..
    } = analysis;
    let mut open = nodes.to_vec();
    let mut seen: HashSet<NodeId> = nodes.iter().copied().collect();
    while let Some(node) = open.pop() {
        let read = graph
            .inputs(node)
            .iter()
            .flatten()
            .filter(|&&value| constants.is_constant(value));
        for (maker, _) in read.filter_map(|&value| graph.producer(value)) {
            if seen.insert(maker) {
                open.push(maker);
            }
        }
    }
    seen
}

/// The nodes whose results are stored, because remaining nodes read the results. All other
/// constants are only needed to compute these results.
#[derive(Default)]
struct Roots {
    nodes: Vec<NodeId>,
    aliases: Vec<(NodeId, ValueId, ValueId)>,
    /// The constants that remaining nodes read.
    read: HashSet<ValueId>,
}

struct Frontier<'s> {
    analysis: &'s Analysis<'s>,
    stays: Vec<bool>,
}

impl Frontier<'_> {
    /// Keeps a node, and with `all` also the nodes that compute its operands.
    fn refuse(&mut self, node: NodeId, all: bool) {
        let graph = &self.analysis.graph;
        let mut open = vec![node];
        while let Some(node) = open.pop() {
            if std::mem::replace(&mut self.stays[node], true) || !all {
                continue;
            }
            let inputs = graph.inputs(node).iter().flatten();
            open.extend(inputs.filter_map(|&value| Some(graph.producer(value)?.0)));
        }
    }

    fn roots(&self) -> Roots {
        let graph = &self.analysis.graph;
        let mut roots = Roots::default();
        let mut is_root = HashSet::default();
        for &node in graph.order().iter().filter(|&&node| self.stays[node]) {
            let captures = graph.captures(node).iter();
            let mut open: Vec<ValueId> = graph
                .inputs(node)
                .iter()
                .flatten()
                .chain(captures)
                .copied()
                .collect();
            while let Some(value) = open.pop() {
                let maker = graph
                    .producer(value)
                    .filter(|&(maker, _)| !self.stays[maker]);
                match maker {
                    None => drop(roots.read.insert(value)),
                    Some((maker, _)) if !is_root.insert(maker) => {}
                    Some((maker, _)) => match self.alias(maker) {
                        Some(source) => {
                            roots.aliases.push((maker, value, source));
                            open.push(source);
                        }
                        None => roots.nodes.push(maker),
                    },
                }
            }
        }
        roots.nodes.sort_by_key(|&node| graph.place(node));
        roots
    }

    /// The operand of an identity of a constant. `None` for another node, or if a body reads the
    /// result.
    fn alias(&self, node: NodeId) -> Option<ValueId> {
        let graph = &self.analysis.graph;
        let output = graph.only_output(node)?;
        let source = identity_operand(self.analysis, node)
            .filter(|&source| self.analysis.constants.is_constant(source))?;
        (!is_captured(graph, output)).then_some(source)
    }

    /// The growth by all results, and the refused results. If all growing results together exceed
    /// the limit, all of these results are refused, so that the next run decides in the same way.
    fn weigh(&self, roots: &Roots, allowed: f64) -> (u64, Vec<(NodeId, Refusal)>) {
        let mut seen = HashSet::default();
        let mut room = 0;
        let (mut growing, mut beyond) = (vec![], vec![]);
        for &node in &roots.nodes {
            let Some(bytes) = self.bytes(node) else {
                beyond.push(self.refusal(node, Reason::UnknownShape));
                continue;
            };
            let (read, freed) = self.sources(node, roots, &mut seen);
            room += freed;
            if read + bytes > HELD {
                beyond.push(self.refusal(node, Reason::TooLarge(bytes as usize)));
                continue;
            }
            let taken = bytes.min(room);
            room -= taken;
            if bytes > SMALL && bytes > taken {
                growing.push((node, bytes - taken));
            }
        }
        let growth = growing.iter().map(|(_, bytes)| bytes).sum();
        if growth as f64 > allowed {
            for (node, bytes) in growing {
                beyond.push(self.refusal(node, Reason::Growth(format!("{bytes} bytes"))));
            }
        }
        (growth, beyond)
    }

    fn refusal(&self, node: NodeId, reason: Reason) -> (NodeId, Refusal) {
        (node, Refusal::new(reason, self.analysis.graph.name(node)))
    }

    /// The bytes of all results of a node that have readers. `None` if a shape is unknown.
    fn bytes(&self, node: NodeId) -> Option<u64> {
        self.read_outputs(node)
            .map(|value| self.value_bytes(value))
            .sum()
    }

    fn value_bytes(&self, value: ValueId) -> Option<u64> {
        let facts = &self.analysis.facts;
        let extents = facts.shape(value)?;
        let count = extents
            .iter()
            .try_fold(1_usize, |n, dim| n.checked_mul(extent(dim)?))?;
        Some(facts.data_type(value)?.byte_size(count)? as u64)
    }

    /// The results of a node that have readers.
    fn read_outputs(&self, node: NodeId) -> impl Iterator<Item = ValueId> {
        let graph = &self.analysis.graph;
        graph
            .outputs(node)
            .iter()
            .flatten()
            .copied()
            .filter(|&value| !graph.readers(value).is_empty())
    }

    /// The bytes of the stored tensors from which a result is computed, except for tensors that are
    /// in `seen`. The first number counts all these tensors, and the second only the tensors that
    /// no remaining node reads.
    fn sources(&self, node: NodeId, roots: &Roots, seen: &mut HashSet<ValueId>) -> (u64, u64) {
        let Analysis {
            graph, constants, ..
        } = self.analysis;
        let (mut read, mut freed) = (0, 0);
        let mut open: Vec<ValueId> = graph.inputs(node).iter().flatten().copied().collect();
        while let Some(value) = open.pop() {
            if !constants.is_constant(value) || !seen.insert(value) {
                continue;
            }
            let producer = graph.producer(value);
            if let Some((maker, _)) = producer.filter(|&(maker, _)| !graph.is(maker, "Constant")) {
                open.extend(graph.inputs(maker).iter().flatten());
                continue;
            }
            let bytes = constants.stored_bytes(value);
            read += bytes;
            if !roots.read.contains(&value) {
                freed += bytes;
            }
        }
        (read, freed)
    }

    /// Computes the results of a node that have readers.
    ///
    /// # Errors
    /// If a result cannot be computed, or the operator set has no constant of its type.
    fn compute(&self, node: NodeId) -> Result<Vec<(ValueId, TensorProto)>, Refusal> {
        let Analysis {
            graph, constants, ..
        } = self.analysis;
        let model = graph.model();
        // Before IR version 4, constants are nodes. Before operator set 9, such nodes hold only
        // floats.
        let are_floats = model.proto.ir_version() < 4 && model.own_opset() < 9;
        let mut tensors = vec![];
        for value in self.read_outputs(node) {
            let tensor = constants.tensor(value)?;
            if are_floats && float_type(&tensor).is_none() {
                let why = "no Constant of this operator set holds it".to_owned();
                return Err(Refusal::new(Reason::Constant(why), graph.name(node)));
            }
            tensors.push((value, tensor));
        }
        Ok(tensors)
    }
}
