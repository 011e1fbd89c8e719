//! A normalizer whose axes are put in another order for it, and back behind it.
//!
//! BatchNorm1d normalizes the second of three axes, so that a transformer has a Transpose or a
//! Reshape before it and another one behind. Nothing but the normalizer lies between them, so that
//! they belong to it: a rest that stays is a Mul and an Add of the tokens, and not three operators.

use crate::affine::recognize::{Family, Part, Site, View};
use crate::analysis::broadcast;
use crate::analysis::layout::LayoutMap;
use crate::ir::axes::permutation;
use crate::ir::node_set::NodeSet;
use crate::ir::{NodeId, Reader, ValueId};
use crate::onnx::operator::Category;
use crate::recipe::Numbers;
use crate::refusal::Reason;

/// How many movements may lie on either side.
const DEPTH: usize = 4;

/// Lets the affine of a site of fixed statistics be one on the value before the movements that lie around it, if they
/// undo each other and are not `taken`; then they are.
pub fn widen(view: &View, site: &mut Site, taken: &mut NodeSet) {
    let Some(part) = site
        .post
        .as_mut()
        .filter(|_| site.kind.family == Family::Offline && site.pre.is_none())
    else {
        return;
    };
    while let Some(wide) = wider(view, part, taken) {
        taken.extend(
            wide.nodes
                .iter()
                .copied()
                .filter(|node| !part.nodes.contains(node)),
        );
        *part = wide;
    }
}

/// The part with the fewest movements more that undo each other, be they on one side alone.
fn wider(view: &View, part: &Part, taken: &NodeSet) -> Option<Part> {
    if part.nodes.is_empty() || !part.resets.is_empty() {
        return None;
    }
    let graph = view.graph;
    let is_free =
        |node: &NodeId| graph.category(*node) == Some(Category::Movement) && !taken.contains(*node);
    let (mut before, mut behind) = (vec![], vec![]);
    let (mut input, mut output) = (part.input, part.output);
    while let Some(node) = graph.producer(input).map(|(node, _)| node).filter(is_free)
        && before.len() < DEPTH
        && graph.readers(input).iter().all(|reader| {
            is_of(
                reader,
                before.last().map_or(&part.nodes[..], std::slice::from_ref),
            )
        })
    {
        before.push(node);
        input = graph.input(node, 0)?;
    }
    while let Some(node) = view.only_reader(output).filter(is_free)
        && behind.len() < DEPTH
    {
        behind.push(node);
        output = graph.only_output(node)?;
    }
    let mut sides: Vec<(usize, usize)> = (0..=before.len())
        .flat_map(|b| (0..=behind.len()).map(move |h| (b, h)))
        .skip(1)
        .collect();
    sides.sort_by_key(|(before, behind)| before + behind);
    // An Identity alone is not there for the normalizer.
    let moves = |nodes: &[NodeId]| nodes.iter().any(|&node| !graph.is(node, "Identity"));
    let mut sides = sides.into_iter().map(|(b, h)| (&before[..b], &behind[..h]));
    sides.find_map(|(before, behind)| {
        let is_own = moves(before) || moves(behind);
        is_own
            .then(|| between(view, part, before, behind))
            .flatten()
    })
}

/// Whether one of these nodes reads it.
fn is_of(reader: &Reader, nodes: &[NodeId]) -> bool {
    matches!(reader, Reader::Node { node, .. } if nodes.contains(node))
}

/// The part with these movements around it, those nearest to it first, if they undo each other.
fn between(view: &View, part: &Part, before: &[NodeId], behind: &[NodeId]) -> Option<Part> {
    let graph = view.graph;
    let input = before
        .last()
        .map_or(Some(part.input), |&node| graph.input(node, 0))?;
    let output = behind
        .last()
        .map_or(Some(part.output), |&node| graph.only_output(node))?;
    let shape = |value: ValueId| view.facts.shape(value);
    let mut trace = LayoutMap::new(&shape(input)?);
    for &node in before.iter().rev().chain(behind) {
        trace.follow(graph.node(node), &shape(graph.only_output(node)?)?)?;
    }
    let affine = before
        .iter()
        .try_fold(part.affine.clone(), |affine, &node| {
            affine.try_map(|numbers| undone(view, node, numbers)).ok()
        });
    let nodes = || {
        before
            .iter()
            .rev()
            .chain(&part.nodes)
            .chain(behind)
            .copied()
            .collect()
    };
    trace
        .is_identity()
        .then_some(affine)
        .flatten()
        .map(|affine| Part {
            affine,
            input,
            output,
            nodes: nodes(),
            resets: vec![],
        })
}

/// An array that broadcasts over the result of a movement, carried back to its input.
fn undone(view: &View, node: NodeId, numbers: &Numbers) -> Result<Numbers, Reason> {
    let graph = view.graph;
    let shape = |value: Option<ValueId>| view.facts.shape(value?);
    let shapes = shape(graph.input(node, 0)).zip(shape(graph.only_output(node)));
    let (from, to) = shapes.ok_or(Reason::UnknownShape)?;
    if !graph.is(node, "Transpose") {
        return broadcast::reshape(numbers, &to, &from);
    }
    let perm = graph
        .node(node)
        .attr_ints("perm")
        .map_err(|_| Reason::UnknownShape)?;
    let perm = permutation(perm, from.len())?;
    let mut back = vec![0; perm.len()];
    perm.iter()
        .enumerate()
        .for_each(|(place, &axis)| back[axis] = place);
    numbers.transpose(&back).ok_or(Reason::UnknownShape)
}
