//! Identity elimination: Identity, Dropout at inference, a Cast to the same type, a sum of integers
//! and 0, a Concat of one value, movements that move nothing or cancel the one before.

use prost::Message;
use tract_onnx::tract_hir::internal::TDim;

use crate::analysis::Analysis;
use crate::analysis::layout::LayoutMap;
use crate::analysis::node_view::At;
use crate::hash::{HashMap, HashSet};
use crate::ir::axes::axis;
use crate::ir::editor::Editor;
use crate::ir::regions::{BEGIN, END, is_result, way};
use crate::ir::{Graph, NodeId, Reader, ValueId};
use crate::onnx::node::bodies;
use crate::onnx::operator::attributes;
use crate::onnx::proto::GraphProto;
use crate::passes::simplify::neutral_constants::Neutral;
use crate::shape::extents::same;

/// An identity, with the value that its readers can read instead.
pub type Passed = (NodeId, ValueId);

/// The identities whose names no caller needs. Names of `pinned` values stay.
pub fn find(analysis: &Analysis, pinned: &HashSet<&str>) -> Vec<Passed> {
    all(analysis, pinned, &|node| handed_on(analysis, node))
}

/// These, movements that move nothing, and arithmetic with a neutral constant. Arithmetic of `normalizers` stays: engines
/// fuse a normalizer in the form that has all its operators.
///
/// Before anything folds, movements and arithmetic are parts of sites, and are removed with these.
pub fn identities(
    analysis: &Analysis,
    pinned: &HashSet<&str>,
    normalizers: &HashSet<NodeId>,
) -> Vec<Passed> {
    let neutral = Neutral::new(analysis);
    all(analysis, pinned, &|node| {
        let handed = handed_on(analysis, node).or_else(|| unmoving(analysis, node));
        handed.or_else(|| {
            neutral
                .operand(node)
                .filter(|_| !normalizers.contains(&node))
        })
    })
}

/// The operand of a movement that moves nothing.
fn unmoving(analysis: &Analysis, node: NodeId) -> Option<ValueId> {
    let at = analysis.at(node);
    is_understood(analysis, node).then_some(())?;
    if moves_nothing(&at) == Some(true) {
        analysis.graph.input(node, 0)
    } else {
        taken_back(&at)
    }
}

/// The nodes whose operand, by `handed`, can be read instead of their result.
fn all(
    analysis: &Analysis,
    pinned: &HashSet<&str>,
    handed: &dyn Fn(NodeId) -> Option<ValueId>,
) -> Vec<Passed> {
    let graph = &analysis.graph;
    // In bodies names have to be others than those around them, which an output may get too early.
    let has_bodies = graph.order().iter().any(|&node| {
        matches!(graph.domain_op(node).0, BEGIN | END) || bodies(graph.node(node)).next().is_some()
    });
    let mut named: HashSet<ValueId> = HashSet::default();
    let passed = |&node: &NodeId| {
        let source = handed(node)?;
        let goes = may_pass(analysis, node, source, pinned)
            || (!has_bodies
                && gives_its_name(analysis, (node, source), pinned, handed, &mut named));
        goes.then_some((node, source))
    };
    graph.order().iter().filter_map(passed).collect()
}

/// Whether a node only calls what another one makes by the name of an output, which that node can make itself, if it makes
/// none yet.
fn gives_its_name(
    analysis: &Analysis,
    (node, source): Passed,
    pinned: &HashSet<&str>,
    handed: &dyn Fn(NodeId) -> Option<ValueId>,
    named: &mut HashSet<ValueId>,
) -> bool {
    let Analysis {
        graph, constants, ..
    } = analysis;
    let Some(output) = graph
        .only_output(node)
        .filter(|&output| graph.is_output(output))
    else {
        return false;
    };
    if !named.insert(source) {
        return false;
    }
    let is_free = |value: ValueId| {
        !pinned.contains(graph.value_name(value)) && !constants.is_quantized(value)
    };
    // The producer is itself no identity.
    let stays = |maker: NodeId| handed(maker).is_none() && unmoving(analysis, maker).is_none();
    graph
        .producer(source)
        .is_some_and(|(maker, _)| stays(maker))
        && !graph.is_output(source)
        && !constants.is_constant(source)
        && is_free(source)
        && is_free(output)
}

/// Identities of a weight that others read too: exporters write one for each further use of a module, and what all uses
/// want of the weight is to be asked of one value.
pub fn sharing(graph: &Graph) -> Vec<Passed> {
    let annotated = annotated(graph);
    let shared = |&node: &NodeId| {
        let (source, output) = (graph.input(node, 0)?, graph.only_output(node)?);
        let shares = graph.domain_op(node) == ("", "Identity")
            && graph.node(node).attribute.is_empty()
            && graph.initializer(source).is_some()
            && graph.readers(source).len() > 1
            && !graph.readers(output).is_empty()
            && !has_to_stay(graph, output)
            && !annotated.contains(graph.value_name(output));
        shares.then_some((node, source))
    };
    graph.order().iter().filter_map(shared).collect()
}

/// The names that notes on quantization speak of.
fn annotated<'g>(graph: &'g Graph) -> HashSet<&'g str> {
    graph
        .proto()
        .quantization_annotation
        .iter()
        .map(|annotation| annotation.tensor_name())
        .collect()
}

/// Whether a graph may have either: an Identity, or two Transposes or Casts of one weight.
pub fn may_share(graph: &GraphProto) -> bool {
    let (mut seen, mut twice) = (HashSet::default(), HashSet::default());
    for node in &graph.node {
        match (node.op_type(), node.input.first()) {
            ("Identity", _) => return true,
            ("Transpose" | "Cast", Some(source)) if !seen.insert(source.as_str()) => {
                twice.insert(source.as_str());
            }
            _ => {}
        }
    }
    graph
        .initializer
        .iter()
        .any(|tensor| twice.contains(tensor.name()))
}

/// Transposes and Casts of a weight that one before them makes as well, with what that makes: exporters write one for each
/// layer that shares the weight, and what all of them want would be folded for each.
pub fn repeated(graph: &Graph) -> Vec<Passed> {
    let annotated = annotated(graph);
    let mut firsts: HashMap<(ValueId, &str, &str, Vec<u8>), ValueId> = HashMap::default();
    let mut repeated = vec![];
    for &node in graph.order() {
        let (Some(source), Some(output)) = (graph.input(node, 0), graph.only_output(node)) else {
            continue;
        };
        let proto = graph.node(node);
        let is_one = matches!(graph.domain_op(node), ("", "Transpose" | "Cast"))
            && graph.initializer(source).is_some()
            && proto.attribute.len() == 1;
        if !is_one {
            continue;
        }
        let key = (
            source,
            proto.op_type(),
            way(proto),
            proto.attribute[0].encode_to_vec(),
        );
        let first = *firsts.entry(key).or_insert(output);
        let goes = !has_to_stay(graph, output)
            && !annotated.contains(graph.value_name(output))
            && !graph.readers(output).is_empty();
        if first != output && goes {
            repeated.push((node, first));
        }
    }
    repeated
}

/// Takes them out.
pub fn remove(passed: Vec<Passed>, graph: &Graph, editor: &mut Editor) {
    for (node, source) in passed {
        let output = graph
            .only_output(node)
            .map_or("", |output| graph.value_name(output));
        editor.remove(&[node], output, graph.value_name(source));
    }
}

/// Whether a value's name is known outside of the nodes of its graph.
fn has_to_stay(graph: &Graph, output: ValueId) -> bool {
    let is_captured = |reader: &Reader| matches!(reader, Reader::Capture { .. });
    // A result of a body needs a name of that body.
    let is_of_body = || {
        graph
            .producer(output)
            .is_none_or(|(node, _)| !way(graph.node(node)).is_empty())
    };
    graph.is_output(output)
        || is_result(graph, output) && is_of_body()
        || graph.readers(output).iter().any(is_captured)
}

/// Whether all elements stay where they are; `None` where that is not known.
fn moves_nothing(at: &At) -> Option<bool> {
    let is_as_before = || {
        let (before, after) = (at.shape(0).ok()?, at.output_shape(0).ok()?);
        let is_same = |(one, other): (&Option<TDim>, &Option<TDim>)| same(one, other);
        Some(before.len() == after.len() && before.iter().zip(&after).all(is_same))
    };
    match at.proto().op_type() {
        "Concat" => Some(at.graph.inputs(at.node).len() == 1),
        "Expand" | "Reshape" => is_as_before(),
        // Negative padding at one end may be made up for at the other.
        "Pad" => Some(at.list("pads").ok()??.iter().all(|&count| count == 0)),
        // Backward all are there, too.
        "Slice" => {
            let steps = at.ints(4).ok()?.unwrap_or_default();
            Some(steps.iter().all(|&step| step == 1) && is_as_before()?)
        }
        "Transpose" => {
            let order = at.permutation(at.rank(0).ok()?).ok()?;
            Some(order.into_iter().eq(0..at.rank(0).ok()?))
        }
        _ => None,
    }
}

/// The input of the movement before one that cancels it: axes that are permuted back, and axes of
/// one place that are added and removed.
fn taken_back(at: &At) -> Option<ValueId> {
    let graph = at.graph;
    let between = at.input(0).ok()?;
    let (before, _) = graph.producer(between)?;
    let first = At {
        node: before,
        ..*at
    };
    let moves = |at: &At| {
        let is_one = matches!(
            graph.op(at.node),
            Some("Squeeze" | "Transpose" | "Unsqueeze")
        );
        is_one && at.only_attributes(&["axes", "perm"]).is_ok()
    };
    (moves(&first) && moves(at)).then_some(())?;
    let mut trace = LayoutMap::new(&first.shape(0).ok()?);
    trace.follow(first.proto(), &at.facts.shape(between)?)?;
    trace.follow(at.proto(), &at.facts.shape(graph.only_output(at.node)?)?)?;
    first.input(0).ok().filter(|_| trace.is_identity())
}

/// Whether a node's result has no name that callers know, and its operand is no constant.
fn may_pass(analysis: &Analysis, node: NodeId, source: ValueId, pinned: &HashSet<&str>) -> bool {
    let Analysis {
        graph, constants, ..
    } = analysis;
    let Some(output) = graph.only_output(node) else {
        return false;
    };
    let has_name = has_to_stay(graph, output) || pinned.contains(graph.value_name(output));
    !has_name && !constants.is_constant(source) && !constants.is_quantized(output)
}

/// Whether all attributes of an operator of ONNX are known.
fn is_understood(analysis: &Analysis, node: NodeId) -> bool {
    let (domain, op) = analysis.graph.domain_op(node);
    let told = attributes(op).filter(|_| domain.is_empty());
    told.is_some_and(|told| analysis.at(node).only_attributes(told).is_ok())
}

/// The operand of an identity.
pub fn handed_on(analysis: &Analysis, node: NodeId) -> Option<ValueId> {
    let graph = &analysis.graph;
    let source = graph.input(node, 0)?;
    let handed = match graph.op(node)? {
        "Identity" => source,
        "OptionalGetElement" => element(analysis, source)?,
        // An exporter writes one wherever a module asks for the type that a value has already.
        "Cast" | "CastLike" => {
            let [from, to] =
                [source, graph.only_output(node)?].map(|value| analysis.facts.data_type(value));
            Some(source).filter(|_| from.is_some() && from == to)?
        }
        // Before opset 7 it may be in training mode, and with more inputs from 12 on.
        "Dropout" if graph.inputs(node).len() == 1 && graph.model().own_opset() >= 7 => source,
        // A cache of nothing is 0 places long, and a mask of nothing lets all through.
        "Add" => beside(analysis, node, 0)?,
        "And" | "Mul" => beside(analysis, node, 1)?,
        "Split" => only_share(analysis, node)?,
        "Concat" => only_part(analysis, node)?,
        _ => return None,
    };
    is_understood(analysis, node).then_some(handed)
}

/// The value that an Optional wraps.
fn element(analysis: &Analysis, optional: ValueId) -> Option<ValueId> {
    let graph = &analysis.graph;
    let (maker, _) = graph.producer(optional)?;
    let element = graph.input(maker, 0)?;
    (graph.is(maker, "Optional") && analysis.at(maker).only_attributes(&[]).is_ok())
        .then_some(element)
}

/// The operand of a Split into one part.
fn only_share(analysis: &Analysis, node: NodeId) -> Option<ValueId> {
    let at = analysis.at(node);
    let value = at.input(0).ok()?;
    let along = axis(at.attr("axis", 0).ok()?, at.rank(0).ok()?).ok()?;
    let is_one = analysis.graph.outputs(node).len() == 1 && at.attr("num_outputs", 1) == Ok(1);
    let whole = || match at.list("split").ok()? {
        Some(extents) => Some(
            extents.len() == 1
                && at
                    .extent(0, along)
                    .ok()
                    .and_then(|whole| i64::try_from(whole).ok())
                    == Some(extents[0]),
        ),
        None => Some(true),
    };
    (is_one && whole() == Some(true)).then_some(value)
}

/// The only input of a Concat that has anything along its axis: of a rotary embedding that turns all channels, a Slice of none
/// is left.
fn only_part(analysis: &Analysis, node: NodeId) -> Option<ValueId> {
    let at = analysis.at(node);
    let along = axis(at.attr("axis", 1).ok()?, at.output_rank(0).ok()?).ok()?;
    let parts: Option<Vec<ValueId>> = analysis.graph.inputs(node).iter().copied().collect();
    let mut there = parts?
        .into_iter()
        .filter(|&part| analysis.facts.extent(part, along) != Some(0));
    let only = there.next()?;
    let is_as_before =
        analysis.facts.shape(only) == analysis.facts.shape(analysis.graph.only_output(node)?);
    (there.next().is_none() && is_as_before && !analysis.constants.is_constant(only))
        .then_some(only)
}

/// The other operand of an operator on integers or booleans with a constant of this number
/// everywhere, which adds no axis to the result.
fn beside(analysis: &Analysis, node: NodeId, neutral: i64) -> Option<ValueId> {
    let Analysis {
        graph,
        constants,
        facts,
        ..
    } = analysis;
    let [Some(one), Some(other)] = *graph.inputs(node) else {
        return None;
    };
    let (value, constant) = if constants.is_constant(other) {
        (one, other)
    } else {
        (other, one)
    };
    let is_neutral = !constants.is_constant(value)
        && constants.is_constant(constant)
        && constants.len(constant) == Some(1)
        && facts.rank(constant)? <= facts.rank(value)?
        && constants.ints(constant)? == [neutral];
    is_neutral.then_some(value)
}
