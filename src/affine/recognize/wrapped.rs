//! A normalizer whose axes are reordered before it and restored after it.
//!
//! BatchNorm1d normalizes the second of three axes. So a transformer has a Transpose or a Reshape
//! before it and another one after it. Only the normalizer is between these movements, so they
//! belong to the site and are removed with it. If some of the affine stays, a Mul and an Add apply
//! it to the tokens, without movements.

use crate::affine::recognize::{Family, Part, Site, View};
use crate::analysis::axis_factors::LayoutMap;
use crate::analysis::broadcast;
use crate::ir::axes::permutation;
use crate::ir::node_set::NodeSet;
use crate::ir::{NodeId, Reader};
use crate::onnx::operator::Category;
use crate::recipe::Numbers;
use crate::refusal::Reason;

/// The largest number of movements on either side.
const DEPTH: usize = 4;

/// Adds to a site with fixed statistics the movements around it, if they undo each other and are
/// not in `taken`. The affine then applies to the value before the movements, and `taken` gets the
/// movements.
pub(super) fn widen(view: &View, site: &mut Site, taken: &mut NodeSet) {
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

/// Extends a part by the fewest movements around it that undo each other, on both sides or on one.
/// `None` if no movements do.
fn wider(view: &View, part: &Part, taken: &NodeSet) -> Option<Part> {
    if part.nodes.is_empty() || !part.resets.is_empty() {
        return None;
    }
    let before = movements_before(view, part, taken)?;
    let behind = movements_behind(view, part, taken)?;
    let mut sides: Vec<(usize, usize)> = (0..=before.len())
        .flat_map(|b| (0..=behind.len()).map(move |h| (b, h)))
        .skip(1)
        .collect();
    sides.sort_by_key(|(before, behind)| before + behind);
    sides.into_iter().find_map(|(b, h)| {
        let (before, behind) = (&before[..b], &behind[..h]);
        // Movements that are all Identities do not belong to the normalizer.
        let mut nodes = before.iter().chain(behind);
        let moves = nodes.any(|&node| !view.graph.is(node, "Identity"));
        moves.then(|| between(view, part, before, behind))?
    })
}

/// The movements before a part, the nearest first, as long as their results have no other readers.
fn movements_before(view: &View, part: &Part, taken: &NodeSet) -> Option<Vec<NodeId>> {
    let mut movements: Vec<NodeId> = vec![];
    let mut input = part.input;
    while let Some(node) = view.maker(input)
        && is_free(view, node, taken)
        && movements.len() < DEPTH
    {
        let own = movements
            .last()
            .map_or(&part.nodes[..], std::slice::from_ref);
        let mut readers = view.graph.readers(input).iter();
        if !readers.all(|reader| is_of(reader, own)) {
            break;
        }
        movements.push(node);
        input = view.graph.input(node, 0)?;
    }
    Some(movements)
}

/// The movements after a part, the nearest first, as long as each is the only reader of the value
/// before it.
fn movements_behind(view: &View, part: &Part, taken: &NodeSet) -> Option<Vec<NodeId>> {
    let mut movements = vec![];
    let mut output = part.output;
    while let Some(node) = view.only_reader(output)
        && is_free(view, node, taken)
        && movements.len() < DEPTH
    {
        movements.push(node);
        output = view.graph.only_output(node)?;
    }
    Some(movements)
}

/// Whether a node is a movement that belongs to no site.
fn is_free(view: &View, node: NodeId, taken: &NodeSet) -> bool {
    view.graph.category(node) == Some(Category::Movement) && !taken.contains(node)
}

/// Whether a reader is one of these nodes.
fn is_of(reader: &Reader, nodes: &[NodeId]) -> bool {
    matches!(reader, Reader::Node { node, .. } if nodes.contains(node))
}

/// The part extended by the movements `before` and `behind` it. Both lists begin with the movement
/// next to the part. `None` if the movements do not undo each other.
fn between(view: &View, part: &Part, before: &[NodeId], behind: &[NodeId]) -> Option<Part> {
    let graph = view.graph;
    let input = before
        .last()
        .map_or(Some(part.input), |&node| graph.input(node, 0))?;
    let output = behind
        .last()
        .map_or(Some(part.output), |&node| graph.only_output(node))?;
    let mut trace = LayoutMap::new(&view.facts.shape(input)?);
    for &node in before.iter().rev().chain(behind) {
        let shape = view.facts.shape(graph.only_output(node)?)?;
        trace.follow(graph.node(node), &shape)?;
    }
    trace.is_identity().then_some(())?;
    let mut affine = part.affine.clone();
    for &node in before {
        affine = affine.try_map(|numbers| undone(view, node, numbers)).ok()?;
    }
    let nodes = before.iter().rev().chain(&part.nodes).chain(behind);
    Some(Part {
        affine,
        input,
        output,
        nodes: nodes.copied().collect(),
        resets: vec![],
    })
}

/// Converts an array that broadcasts over the result of a movement to one that broadcasts over its
/// input.
fn undone(view: &View, node: NodeId, numbers: &Numbers) -> Result<Numbers, Reason> {
    let graph = view.graph;
    let at = view.at(node);
    let (from, to) = (at.shape(0)?, at.output_shape(0)?);
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
