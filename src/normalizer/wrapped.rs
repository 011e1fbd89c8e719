//! A normalizer whose axes are put in another order for it, and back behind it.
//!
//! BatchNorm1d normalizes the second of three axes, so that a transformer that uses it has a Transpose or a Reshape before
//! it and another one behind. Between the two nothing but the normalizer is done, and so they belong to it: what stays of
//! it, if anything, is a Mul and an Add of the tokens as they are, and not three operators.

use super::{Family, Part, Site, View};
use crate::graph::axes::permutation;
use crate::graph::layout::Trace;
use crate::graph::marks::Marks;
use crate::graph::{NodeId, Reader, ValueId, movement};
use crate::onnx::operator::Category;
use crate::recipe::Numbers;
use crate::refusal::Reason;

/// How many movements may lie on either side.
const DEPTH: usize = 4;

/// Lets the affine of a site of fixed statistics be one on the value before the movements that lie around it, if they
/// undo each other and are not `taken`; then they are.
pub fn widen(view: &View, site: &mut Site, taken: &mut Marks) {
    let Some(part) = site.post.as_mut().filter(|_| site.kind.family == Family::Offline && site.pre.is_none())
    else {
        return;
    };
    for _ in 0..DEPTH {
        let Some(wide) = wider(view, part) else { return };
        let [before, .., behind] = wide.nodes[..] else { return };
        if taken.contains(before) || taken.contains(behind) {
            return;
        }
        taken.extend([before, behind]);
        *part = wide;
    }
}

/// The part with one movement more on either side.
fn wider(view: &View, part: &Part) -> Option<Part> {
    let graph = view.graph;
    let (before, _) = graph.producer(part.input).filter(|&(node, _)| moves(view, node))?;
    let behind = view.only_reader(part.output)?;
    let is_own = |reader: &Reader| matches!(reader, Reader::Node { node, .. } if part.nodes.contains(node));
    let is_around = moves(view, behind) && !part.nodes.is_empty() && part.resets.is_empty();
    if !is_around || !graph.readers(part.input).iter().all(is_own) {
        return None;
    }
    let (input, output) = (graph.input(before, 0)?, graph.only_output(behind)?);
    let shape = |value: ValueId| view.facts.shape(value);
    let mut trace = Trace::new(&shape(input)?);
    trace.follow(graph.node(before), &shape(part.input)?)?;
    trace.follow(graph.node(behind), &shape(output)?)?;
    let affine = part.affine.try_map(|numbers| undone(view, before, numbers)).ok()?;
    let nodes = [&[before], &part.nodes[..], &[behind]].concat();
    trace.is_identity().then(|| Part { affine, input, output, nodes, resets: vec![] })
}

fn moves(view: &View, node: NodeId) -> bool {
    view.graph.category(node) == Some(Category::Movement)
}

/// What broadcasts over the result of a movement, over what it moves.
fn undone(view: &View, node: NodeId, numbers: &Numbers) -> Result<Numbers, Reason> {
    let graph = view.graph;
    let shape = |value: Option<ValueId>| view.facts.shape(value?);
    let shapes = shape(graph.input(node, 0)).zip(shape(graph.only_output(node)));
    let (from, to) = shapes.ok_or(Reason::UnknownShape)?;
    if !graph.is(node, "Transpose") {
        return movement::reshape(numbers, &to, &from);
    }
    let perm = graph.node(node).attr_ints("perm").map_err(|_| Reason::UnknownShape)?;
    let perm = permutation(perm, from.len())?;
    let mut back = vec![0; perm.len()];
    perm.iter().enumerate().for_each(|(place, &axis)| back[axis] = place);
    numbers.transpose(&back).ok_or(Reason::UnknownShape)
}
