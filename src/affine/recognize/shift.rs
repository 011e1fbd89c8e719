//! Shift: a constant that is added, or taken away, before a linear operator that takes it in, or behind one, or a
//! normalizer, that has a place for it.

use crate::affine::recognize::scalar::is_of_extents;
use crate::affine::recognize::{Family, Kind, Normalizer, Site, View};
use crate::ir::{NodeId, Reader, ValueId};
use crate::onnx::operator::Category;
use crate::onnx::tensor::DataType;

/// How many movements a linear operator may be behind.
const MOVES: usize = 8;

/// Any other chain that adds a constant: before linear operators, in more operators than one, or where one is added
/// already.
pub struct Shift;

impl Normalizer for Shift {
    fn recognise(&self, view: &View, node: NodeId) -> Option<Site> {
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
            .then(|| chain.site(view, Kind::new("shift", Family::Scale)))
    }
}

/// Whether all that reads a value is linear, up to movements.
fn are_linear(view: &View, value: ValueId, moves: usize) -> bool {
    let readers = view.graph.readers(value);
    !readers.is_empty()
        && readers.iter().all(|reader| {
            let &Reader::Node { node, .. } = reader else {
                return false;
            };
            let goes_on = || {
                let output = view.graph.only_output(node);
                moves > 0
                    && view.graph.is_movement(node)
                    && output.is_some_and(|output| are_linear(view, output, moves - 1))
            };
            let is_constant = |&operand: &ValueId| view.constants.is_constant(operand);
            let is_linear = view.graph.category(node).is_some_and(Category::is_product)
                && view.graph.inputs(node).iter().flatten().any(is_constant);
            is_linear || goes_on()
        })
}

/// Whether a value that one node alone reads is moved, or split off, from what a layer makes with a place for a bias, an
/// entry of a table, a normalizer with its own, or an Add of a constant: as the 1 beside a scale that is computed of a condition.
fn has_place(view: &View, mut value: ValueId, mut reader: NodeId) -> bool {
    let graph = view.graph;
    for _ in 0..MOVES {
        let is_alone = view.only_reader(value) == Some(reader) || is_cut_up(view, value);
        let Some(node) = view.maker(value).filter(|_| is_alone) else {
            return false;
        };
        let is_constant = |slot: usize| {
            graph
                .input(node, slot)
                .is_some_and(|operand| view.constants.is_constant(operand))
        };
        match (graph.op(node), graph.category(node)) {
            (Some("Add" | "Sub"), _) => return is_constant(0) || is_constant(1),
            (_, Some(Category::Layer)) => return is_constant(1),
            (Some("Gather"), _) => return is_constant(0),
            (_, Some(Category::Normalizer)) => return is_constant(2),
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

/// Whether a value is only read in parts, each of which may have a shift of its own.
fn is_cut_up(view: &View, value: ValueId) -> bool {
    let is_part = |reader: &Reader| matches!(reader, Reader::Node { node, input: 0 } if view.graph.is(*node, "Slice"));
    view.graph.readers(value).iter().all(is_part) && !view.graph.is_output(value)
}
