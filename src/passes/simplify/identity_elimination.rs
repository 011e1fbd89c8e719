//! Removes nodes that return their input: Identity, Dropout at inference, a Cast to the same type
//! or back from a wider one, a sum of integers and 0, and a Concat of one value. Also removes
//! movements that move nothing, or that cancel the movement before them.

use crate::analysis::Analysis;
use crate::analysis::axis_factors::LayoutMap;
use crate::analysis::node_view::At;
use crate::analysis::zero_sign::ZeroSigns;
use crate::hash::{HashMap, HashSet};
use crate::ir::axes::axis;
use crate::ir::editor::Editor;
use crate::ir::regions::{BEGIN, END, is_result, region_path};
use crate::ir::{Graph, NodeId, Reader, ValueId};
use crate::onnx::node::bodies;
use crate::onnx::operator::attributes;
use crate::onnx::proto::GraphProto;
use crate::passes::simplify::idempotent_pairs::IdempotentPairs;
use crate::passes::simplify::neutral_constants::Neutral;
use crate::shape::facts::same_shape;
use prost::Message;

/// An identity, with the value that its readers can read instead.
pub(super) type IdentityNode = (NodeId, ValueId);

/// Finds the identities whose results need no name of their own. With `removes_activations`,
/// redundant activations count as identities too.
pub(super) fn find(analysis: &Analysis, removes_activations: bool) -> Vec<IdentityNode> {
    let signs = &ZeroSigns::new(analysis);
    let pairs = IdempotentPairs { analysis, signs };
    all(analysis, &HashSet::default(), &|node| {
        identity_operand(analysis, node)
            .or_else(|| pairs.operand(node).filter(|_| removes_activations))
    })
}

/// Finds identities, movements that move nothing, and arithmetic with a neutral constant.
/// Arithmetic of `normalizers` stays, because engines fuse a normalizer only in the form with all
/// its operators. Names of `pinned` values stay.
///
/// This function must not run before the first folds, because movements and arithmetic without
/// effect may be parts of sites, which are removed as a whole.
pub(super) fn identities(
    analysis: &Analysis,
    pinned: &HashSet<&str>,
    normalizers: &HashSet<NodeId>,
) -> Vec<IdentityNode> {
    let signs = &ZeroSigns::new(analysis);
    let neutral = Neutral { analysis, signs };
    all(analysis, pinned, &|node| {
        identity_operand(analysis, node)
            .or_else(|| unmoved_operand(analysis, node))
            .or_else(|| {
                neutral
                    .operand(node)
                    .filter(|_| !normalizers.contains(&node))
            })
    })
}

/// The value that can be read in place of a movement's result. It is the operand of a movement that
/// moves nothing, or the operand of an earlier movement that this movement cancels. `None` for
/// other nodes.
fn unmoved_operand(analysis: &Analysis, node: NodeId) -> Option<ValueId> {
    let at = analysis.at(node);
    has_known_attributes(analysis, node).then_some(())?;
    if moves_nothing(&at) == Some(true) {
        analysis.graph.input(node, 0)
    } else {
        cancelled_operand(&at)
    }
}

/// The nodes that can be removed because `operand` returns a value that can be read instead of
/// their result. A node stays if the name of its result is needed, unless the producer of the
/// operand can output this name.
fn all(
    analysis: &Analysis,
    pinned: &HashSet<&str>,
    operand: &dyn Fn(NodeId) -> Option<ValueId>,
) -> Vec<IdentityNode> {
    let graph = &analysis.graph;
    // A name in a body must differ from the names in the graphs around it. Renaming an output could
    // make two such names equal, so in a graph with bodies nothing is renamed.
    let may_rename = !has_bodies(graph);
    let mut named: HashSet<ValueId> = HashSet::default();
    let mut passed = vec![];
    for &node in graph.order() {
        let Some(source) = operand(node) else {
            continue;
        };
        if may_pass(analysis, node, source, pinned)
            || may_rename && can_rename(analysis, (node, source), pinned, operand, &mut named)
        {
            passed.push((node, source));
        }
    }
    passed
}

/// Whether a node has bodies, or the graph contains flattened bodies.
fn has_bodies(graph: &Graph) -> bool {
    graph.order().iter().any(|&node| {
        matches!(graph.domain_op(node).0, BEGIN | END) || bodies(graph.node(node)).next().is_some()
    })
}

/// Whether the producer of a node's operand can output the node's result, an output of the model,
/// in place of the node. The producer must not write another output of the model.
fn can_rename(
    analysis: &Analysis,
    (node, source): IdentityNode,
    pinned: &HashSet<&str>,
    operand: &dyn Fn(NodeId) -> Option<ValueId>,
    named: &mut HashSet<ValueId>,
) -> bool {
    let Analysis {
        graph, constants, ..
    } = analysis;
    let output = graph.only_output(node);
    let Some(output) = output.filter(|&output| graph.is_output(output)) else {
        return false;
    };
    if !named.insert(source) {
        return false;
    }
    // The producer must not be removed as an identity itself.
    let stays = graph.producer(source).is_some_and(|(maker, _)| {
        operand(maker).is_none() && unmoved_operand(analysis, maker).is_none()
    });
    stays
        && !graph.is_output(source)
        && !constants.is_constant(source)
        && [source, output].into_iter().all(|value| {
            !pinned.contains(graph.value_name(value)) && !constants.is_quantized(value)
        })
}

/// Finds identities of a weight with other readers. Exporters write an Identity for each additional
/// use of a module, and a fold into the weight must see all its uses.
pub(super) fn sharing(graph: &Graph) -> Vec<IdentityNode> {
    let annotated = annotated(graph);
    graph
        .order()
        .iter()
        .filter_map(|&node| Some((node, shared_weight(graph, node, &annotated)?)))
        .collect()
}

/// The weight that a node outputs under another name. `None` for other nodes, if the weight has no
/// other reader, or if the name is needed.
fn shared_weight(graph: &Graph, node: NodeId, annotated: &HashSet<&str>) -> Option<ValueId> {
    let (source, output) = (graph.input(node, 0)?, graph.only_output(node)?);
    let shares = graph.domain_op(node) == ("", "Identity")
        && graph.node(node).attribute.is_empty()
        && graph.initializer(source).is_some()
        && graph.readers(source).len() > 1
        && !graph.readers(output).is_empty()
        && !has_to_stay(graph, output)
        && !annotated.contains(graph.value_name(output));
    shares.then_some(source)
}

/// The names of tensors with quantization annotations.
fn annotated<'g>(graph: &'g Graph) -> HashSet<&'g str> {
    graph
        .proto()
        .quantization_annotation
        .iter()
        .map(|annotation| annotation.tensor_name())
        .collect()
}

/// Whether a graph may contain an Identity of a weight, or two Transposes or Casts of one weight.
pub(super) fn may_share(graph: &GraphProto) -> bool {
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

/// Finds Transposes and Casts of a weight that equal an earlier node, with the result of that node.
/// Exporters write such a node for each layer that shares the weight, and each node would get a
/// folded copy of the weight.
pub(super) fn repeated(graph: &Graph) -> Vec<IdentityNode> {
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
            region_path(proto),
            proto.attribute[0].encode_to_vec(),
        );
        let first = *firsts.entry(key).or_insert(output);
        let can_go = !has_to_stay(graph, output)
            && !annotated.contains(graph.value_name(output))
            && !graph.readers(output).is_empty();
        if first != output && can_go {
            repeated.push((node, first));
        }
    }
    repeated
}

/// Removes identities: their readers read the operand instead.
pub(super) fn remove(passed: Vec<IdentityNode>, graph: &Graph, editor: &mut Editor) {
    for (node, source) in passed {
        let output = graph
            .only_output(node)
            .map_or("", |output| graph.value_name(output));
        editor.remove(&[node], output, graph.value_name(source));
    }
}

/// Whether the name of a value is needed outside of the nodes of its graph.
fn has_to_stay(graph: &Graph, output: ValueId) -> bool {
    // The result of a body must be a value of that body, so the name of this value is needed.
    let is_body_result = is_result(graph, output)
        && graph
            .producer(output)
            .is_none_or(|(node, _)| !region_path(graph.node(node)).is_empty());
    graph.is_output(output) || is_body_result || is_captured(graph, output)
}

/// Whether a body of a node reads a value.
pub(super) fn is_captured(graph: &Graph, value: ValueId) -> bool {
    let mut readers = graph.readers(value).iter();
    readers.any(|reader| matches!(reader, Reader::Capture { .. }))
}

/// Whether a movement keeps all elements at their places. `None` if that is not known.
fn moves_nothing(at: &At) -> Option<bool> {
    match at.proto().op_type() {
        "Concat" => Some(at.graph.inputs(at.node).len() == 1),
        "Expand" | "Reshape" => keeps_shape(at),
        // Equal shapes are not sufficient here, because negative padding at one end may compensate
        // for padding at the other end.
        "Pad" => Some(at.list("pads").ok()??.iter().all(|&count| count == 0)),
        // A step of -1 keeps the shape too, but reverses the elements.
        "Slice" => {
            let steps = at.ints(4).ok()?.unwrap_or_default();
            Some(steps.iter().all(|&step| step == 1) && keeps_shape(at)?)
        }
        "Transpose" => {
            let order = at.permutation(at.rank(0).ok()?).ok()?;
            Some(order.into_iter().eq(0..at.rank(0).ok()?))
        }
        _ => None,
    }
}

/// Whether the result of a node has the shape of its first input. `None` if a rank is not known.
fn keeps_shape(at: &At) -> Option<bool> {
    Some(same_shape(&at.shape(0).ok()?, &at.output_shape(0).ok()?))
}

/// The input of the movement that the movement `at` cancels, by permuting axes back, or by adding
/// or removing axes of extent 1. `None` if `at` cancels nothing.
fn cancelled_operand(at: &At) -> Option<ValueId> {
    let graph = at.graph;
    let between = at.input(0).ok()?;
    let (before, _) = graph.producer(between)?;
    let first = At {
        node: before,
        ..*at
    };
    (moves_axes(&first) && moves_axes(at)).then_some(())?;
    let mut trace = LayoutMap::new(&first.shape(0).ok()?);
    trace.follow(first.proto(), &at.facts.shape(between)?)?;
    trace.follow(at.proto(), &at.facts.shape(graph.only_output(at.node)?)?)?;
    first.input(0).ok().filter(|_| trace.is_identity())
}

/// Whether a node permutes axes, or adds or removes axes of extent 1.
fn moves_axes(at: &At) -> bool {
    let op = at.graph.op(at.node);
    matches!(op, Some("Squeeze" | "Transpose" | "Unsqueeze"))
        && at.only_attributes(&["axes", "perm"]).is_ok()
}

/// Whether the readers of a node's result can read its operand instead: the name of the result is
/// not needed, the operand is not a constant, and the result is not quantized.
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
fn has_known_attributes(analysis: &Analysis, node: NodeId) -> bool {
    let (domain, op) = analysis.graph.domain_op(node);
    let defined = attributes(op).filter(|_| domain.is_empty());
    defined.is_some_and(|defined| analysis.at(node).only_attributes(defined).is_ok())
}

/// The operand of an identity. `None` for other nodes.
pub(super) fn identity_operand(analysis: &Analysis, node: NodeId) -> Option<ValueId> {
    let graph = &analysis.graph;
    let source = graph.input(node, 0)?;
    let operand = match graph.op(node)? {
        "Identity" => source,
        "OptionalGetElement" => optional_element(analysis, source)?,
        "Cast" | "CastLike" => cast_operand(analysis, node, source)?,
        // A Dropout may be in training mode before operator set 7, and since operator set 12 if it
        // has more inputs.
        "Dropout" if graph.inputs(node).len() == 1 && graph.model().own_opset() >= 7 => source,
        // Exporters add the length 0 of an empty cache, and combine masks with a mask of ones,
        // which masks nothing.
        "Add" => operand_beside(analysis, node, 0)?,
        "And" | "Mul" => operand_beside(analysis, node, 1)?,
        "Split" => unsplit_operand(analysis, node)?,
        "Concat" => only_part(analysis, node)?,
        _ => return None,
    };
    has_known_attributes(analysis, node).then_some(operand)
}

/// The value that a Cast returns unchanged: its operand, if this already has the type, or the
/// operand of an earlier Cast from this type to a wider float type. `None` for other Casts.
/// Exporters write a Cast wherever a module asks for a type.
fn cast_operand(analysis: &Analysis, node: NodeId, source: ValueId) -> Option<ValueId> {
    let Analysis { graph, facts, .. } = analysis;
    let [from, to] = [source, graph.only_output(node)?].map(|value| facts.data_type(value));
    let (from, to) = (from?, to?);
    if from == to {
        return Some(source);
    }
    let (earlier, _) = graph.producer(source)?;
    let before = graph.input(earlier, 0)?;
    let are_floats = from.is_float() && to.is_float();
    let is_back = facts.data_type(before) == Some(to) && graph.is(earlier, "Cast");
    let returns = is_back && are_floats && from.bits() > to.bits();
    (returns && has_known_attributes(analysis, earlier)).then_some(before)
}

/// The value that an Optional wraps. `None` for other producers.
fn optional_element(analysis: &Analysis, optional: ValueId) -> Option<ValueId> {
    let graph = &analysis.graph;
    let (maker, _) = graph.producer(optional)?;
    let element = graph.input(maker, 0)?;
    (graph.is(maker, "Optional") && analysis.at(maker).only_attributes(&[]).is_ok())
        .then_some(element)
}

/// The operand of a Split into one part. `None` for other Splits.
fn unsplit_operand(analysis: &Analysis, node: NodeId) -> Option<ValueId> {
    let at = analysis.at(node);
    let value = at.input(0).ok()?;
    let along = axis(at.attr("axis", 0).ok()?, at.rank(0).ok()?).ok()?;
    let is_one = analysis.graph.outputs(node).len() == 1 && at.attr("num_outputs", 1) == Ok(1);
    let is_whole = match at.list("split").ok()? {
        Some(extents) => at
            .extent(0, along)
            .is_ok_and(|whole| extents[..] == [whole as i64]),
        None => true,
    };
    (is_one && is_whole).then_some(value)
}

/// The only input of a Concat that has places along its axis. `None` if several inputs may have
/// places. A rotary embedding of all channels, for example, leaves an empty Slice.
fn only_part(analysis: &Analysis, node: NodeId) -> Option<ValueId> {
    let at = analysis.at(node);
    let along = axis(at.attr("axis", 1).ok()?, at.output_rank(0).ok()?).ok()?;
    let parts: Option<Vec<ValueId>> = analysis.graph.inputs(node).iter().copied().collect();
    let mut filled = parts?
        .into_iter()
        .filter(|&part| analysis.facts.extent(part, along) != Some(0));
    let only = filled.next()?;
    let keeps_shape =
        analysis.facts.shape(only) == analysis.facts.shape(analysis.graph.only_output(node)?);
    (filled.next().is_none() && keeps_shape && !analysis.constants.is_constant(only))
        .then_some(only)
}

/// The operand of an integer or boolean operator whose other operand is a constant of one element,
/// which equals `neutral`. `None` for other operands, or if the constant adds an axis to the
/// result.
fn operand_beside(analysis: &Analysis, node: NodeId, neutral: i64) -> Option<ValueId> {
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
