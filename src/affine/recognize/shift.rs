//! Shift: a constant that is added or subtracted. A shift may be before a linear operator, which
//! absorbs it, or after a linear operator or a normalizer that has an input for it. A shift may
//! also be before a movement and another sum with a constant. For example, the bias of relative
//! positions is added before the mask of windows.

use crate::affine::Affine;
use crate::affine::recognize::scalar::is_of_extents;
use crate::affine::recognize::{Family, Kind, Normalizer, Part, Site, View};
use crate::ir::{NodeId, Reader, ValueId};
use crate::onnx::operator::Category;
use crate::onnx::tensor::DataType;

/// The largest number of movements before a linear operator.
const MOVES: usize = 8;

const KIND: Kind = Kind::new("shift", Family::Scale);

/// Any other chain that adds a constant: before linear operators, in several operators, or after an
/// operator that can absorb the constant.
pub(super) struct Shift;

impl Normalizer for Shift {
    fn recognize(&self, view: &View, node: NodeId) -> Option<Site> {
        chain_of_shifts(view, node).or_else(|| table_before_sum(view, node))
    }
}

fn chain_of_shifts(view: &View, node: NodeId) -> Option<Site> {
    let chain = view.chain(node)?;
    let is_float = view
        .facts
        .data_type(chain.output)
        .is_some_and(DataType::is_float);
    let shifts = chain.affine.has_no_scale() && !chain.affine.has_no_shift();
    let is_more = chain.nodes.len() > 1
        || are_linear(view, chain.output, MOVES)
        || has_place(view, chain.input, chain.nodes[0]);
    (is_float && shifts && is_more && !is_of_extents(view, chain.input))
        .then(|| chain.site(view, KIND))
}

/// The site of an Add of a constant table, if a movement and another sum with a constant follow.
fn table_before_sum(view: &View, node: NodeId) -> Option<Site> {
    let graph = view.graph;
    let at = view.at(node);
    let (slot, output) = (at.constant_operand()?, graph.only_output(node)?);
    let is_float = view.facts.data_type(output).is_some_and(DataType::is_float);
    let is_added = graph.is(node, "Add") && at.only_attributes(&[]).is_ok();
    let keeps_shape = at.shape(1 - slot).ok()? == at.output_shape(0).ok()?;
    if !is_float || !is_added || !keeps_shape || !leads_to_sum(view, output) {
        return None;
    }
    let table = at.numbers(slot).ok()?.align(at.output_rank(0).ok()?)?;
    let name = graph.name(node).to_owned();
    let part = Part {
        affine: Affine::shift(table),
        input: graph.input(node, 1 - slot)?,
        output,
        nodes: vec![node],
        resets: vec![],
    };
    Some(Site {
        post: Some(part),
        ..Site::new(KIND, name, vec![node])
    })
}

/// Whether all readers of a value are linear operators, possibly after at most `moves` movements.
fn are_linear(view: &View, value: ValueId, moves: usize) -> bool {
    let readers = view.graph.readers(value);
    !readers.is_empty()
        && readers.iter().all(|reader| match *reader {
            Reader::Node { node, .. } => {
                is_linear(view, node) || leads_to_linear(view, node, moves)
            }
            _ => false,
        })
}

/// Whether a node is a linear operator with a constant operand.
fn is_linear(view: &View, node: NodeId) -> bool {
    let mut inputs = view.graph.inputs(node).iter().flatten();
    view.graph.category(node).is_some_and(Category::is_product)
        && inputs.any(|&input| view.constants.is_constant(input))
}

/// Whether a node is a movement, and all readers of its result are linear, possibly after `moves −
/// 1` more movements.
fn leads_to_linear(view: &View, node: NodeId, moves: usize) -> bool {
    moves > 0
        && view.graph.is_movement(node)
        && view
            .graph
            .only_output(node)
            .is_some_and(|output| are_linear(view, output, moves - 1))
}

/// Whether the only reader of a value, after one or more movements, adds a constant.
fn leads_to_sum(view: &View, mut value: ValueId) -> bool {
    let graph = view.graph;
    for moves in 0..=MOVES {
        let Some((node, slot)) = graph.only_reader(value) else {
            return false;
        };
        if matches!(graph.op(node), Some("Add" | "Sub")) {
            return moves > 0 && view.at(node).is_constant(1 - slot);
        }
        match graph.only_output(node) {
            Some(output) if slot == 0 && graph.is_movement(node) => value = output,
            _ => return false,
        }
    }
    false
}

/// Whether a value comes from an operator that can absorb a constant summand, possibly through
/// movements and splits. These operators are a layer, the Gather of a table, a normalizer with a
/// bias, and an Add or Sub of a constant. An example of such an Add is the 1 that is added to a
/// scale computed from a condition. `false` unless `reader` is the only reader of the value, or
/// only Slices read it.
fn has_place(view: &View, mut value: ValueId, mut reader: NodeId) -> bool {
    let graph = view.graph;
    for _ in 0..MOVES {
        let is_alone = view.only_reader(value) == Some(reader) || is_cut_up(view, value);
        let Some(node) = view.maker(value).filter(|_| is_alone) else {
            return false;
        };
        let at = view.at(node);
        match (graph.op(node), graph.category(node)) {
            (Some("Add" | "Sub"), _) => return at.is_constant(0) || at.is_constant(1),
            (_, Some(Category::Layer)) => return at.is_constant(1),
            (Some("Gather"), _) => return at.is_constant(0),
            (_, Some(Category::Normalizer)) => return at.is_constant(2),
            (Some("Slice" | "Split"), _) | (_, Some(Category::Movement))
                if !graph.is_output(value) =>
            {
                let Some(input) = graph.input(node, 0) else {
                    return false;
                };
                (value, reader) = (input, node);
            }
            _ => return false,
        }
    }
    false
}

/// Whether only Slices read a value. Each slice may then have a shift of its own.
fn is_cut_up(view: &View, value: ValueId) -> bool {
    let mut readers = view.graph.readers(value).iter();
    let are_parts = readers.all(
        |reader| matches!(*reader, Reader::Node { node, input: 0 } if view.graph.is(node, "Slice")),
    );
    are_parts && !view.graph.is_output(value)
}
