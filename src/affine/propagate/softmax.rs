//! Shifts that do not change a Softmax.
//!
//! If a constant `c` is added to every key, the scores become `q·(k + c)ᵀ = q·kᵀ + q·c`. The
//! summand `q·c` is constant along the keys, and `softmax(z + a) = softmax(z)` for every `a` that
//! is constant along its axis. So a fold may drop a shift that would become a bias of the keys.

use ndarray::Array1;

use crate::affine::Affine;
use crate::affine::linear::matmul;
use crate::affine::propagate::overlay::GraphOverlay;
use crate::affine::propagate::rule_table::rule_of;
use crate::affine::rule::Side;
use crate::analysis::axis_factors::LayoutMap;
use crate::analysis::node_view::At;
use crate::ir::{NodeId, Reader, ValueId};
use crate::onnx::operator::Category;
use crate::recipe::Numbers;
use crate::shape::facts::extent;

/// The largest number of operators between the keys and the Softmax.
const DEPTH: usize = 24;

/// The largest number of operands that one search visits in total. A Concat may read the keys of
/// many products, and a search from each of these products visits all operands of the Concat.
const OPERANDS: usize = 256;

/// Whether a shift of the operand of a product with a constant leaves the outputs of the model
/// unchanged. Such a shift adds the same scalar to a channel of the product at all places.
pub(crate) fn ignores(overlay: &GraphOverlay, node: NodeId, side: Side, shift: &Numbers) -> bool {
    let by_channel = shift
        .shape()
        .split_last()
        .is_some_and(|(_, others)| others.iter().all(|&n| n == 1));
    if !overlay.graph.is(node, "MatMul") || side != Side::Operand(0) || !by_channel {
        return false;
    }
    let Some(output) = overlay.graph.only_output(node) else {
        return false;
    };
    let Some(shape) = overlay.facts.shape(output) else {
        return false;
    };
    let Some(channels) = shape.last().and_then(extent) else {
        return false;
    };
    // The values of the scalars do not matter, only the axes along which they vary.
    let numbers = Array1::from_iter((0..channels).map(|channel| channel as f64 + 1.0));
    let shift = Numbers::literal(numbers.into_dyn()).align(shape.len());
    shift.is_some_and(|shift| {
        KeySearch {
            overlay,
            left: OPERANDS,
        }
        .keys(output, &shift, DEPTH)
    })
}

struct KeySearch<'s, 'a> {
    overlay: &'s GraphOverlay<'a>,
    /// The number of operands that may still be visited.
    left: usize,
}

impl KeySearch<'_, '_> {
    /// Subtracts the number of operands of a node from the budget. Returns `false` if this exceeds
    /// the budget.
    fn spend(&mut self, at: &At) -> bool {
        let left = self.left.checked_sub(at.arity());
        self.left = left.unwrap_or(0);
        left.is_some()
    }

    /// Whether all readers of a value between the keys and the scores ignore a shift of the value.
    fn keys(&mut self, value: ValueId, shift: &Numbers, depth: usize) -> bool {
        let overlay = self.overlay;
        let Some(readers) = depth.checked_sub(1).and_then(|_| readers(overlay, value)) else {
            return false;
        };
        readers.into_iter().all(|(node, slot)| {
            let at = overlay.at(node);
            let Some(op) = overlay.graph.op(node).filter(|_| self.spend(&at)) else {
                return false;
            };
            let is_stacks = overlay.graph.category(node) == Some(Category::MatrixProduct);
            match op {
                "Mul" | "Div" if slot == 0 || op == "Mul" => {
                    at.is_scalar(1 - slot)
                        && at
                            .output(0)
                            .is_ok_and(|output| self.keys(output, shift, depth - 1))
                }
                _ if is_stacks && !at.is_constant(1 - slot) => {
                    self.product(&at, slot, shift, depth)
                }
                _ => match one_way(&at, slot, shift) {
                    Some(way) => way.into_iter().all(|(slot, affine)| {
                        affine.has_no_scale()
                            && at
                                .output(slot)
                                .is_ok_and(|output| self.keys(output, &affine.shift, depth - 1))
                    }),
                    None => overlay.facts.shape(value).is_some_and(|shape| {
                        self.moved(node, &LayoutMap::new(&shape), shift, depth)
                    }),
                },
            }
        })
    }

    /// Whether the movement `node`, and the movements after it, lead only to readers that ignore a
    /// shift. A movement may merge the axis of the shift with another axis, such as the axis of
    /// heads with an unknown batch, if later movements separate both axes again.
    fn moved(&mut self, node: NodeId, trace: &LayoutMap, shift: &Numbers, depth: usize) -> bool {
        let overlay = self.overlay;
        let mut trace = trace.clone();
        let Some(output) = overlay
            .graph
            .only_output(node)
            .filter(|_| overlay.graph.is_movement(node))
        else {
            return false;
        };
        let shape = overlay.facts.shape(output);
        let Some(shape) =
            shape.filter(|shape| trace.follow(overlay.graph.node(node), shape).is_some())
        else {
            return false;
        };
        let varying: Vec<usize> = (0..shift.ndim())
            .filter(|&axis| shift.shape()[axis] != 1)
            .collect();
        if let Some(places) = trace.places(&varying) {
            let mut extents = vec![1; shape.len()];
            varying
                .iter()
                .zip(places)
                .for_each(|(&axis, place)| extents[place] = shift.shape()[axis]);
            // The order of the scalars does not matter, so a Reshape may stand for a Transpose.
            return shift
                .reshape(&extents)
                .is_some_and(|shift| self.keys(output, &shift, depth - 1));
        }
        let Some(readers) = depth.checked_sub(2).and_then(|_| readers(overlay, output)) else {
            return false;
        };
        readers.into_iter().all(|(node, _)| {
            self.spend(&overlay.at(node)) && self.moved(node, &trace, shift, depth - 1)
        })
    }

    /// Whether all readers of a product of two values ignore a shift of one operand. The operand
    /// contributes one axis to the result. If the shift does not vary along that axis, the summand
    /// that it adds to the result does not vary along the axis either.
    fn product(&mut self, at: &At, slot: usize, shift: &Numbers, depth: usize) -> bool {
        let (Ok(output), Ok(rank)) = (at.output(0), at.output_rank(0)) else {
            return false;
        };
        let Some(kept) = matmul::kept_axis(at, slot, shift.ndim()) else {
            return false;
        };
        let brought = if slot == 0 {
            rank.checked_sub(2)
        } else {
            rank.checked_sub(1)
        };
        shift.shape()[kept] == 1 && brought.is_some_and(|axis| self.scores(output, axis, depth - 1))
    }

    /// Whether all readers of a value ignore a summand that is constant along an axis.
    fn scores(&mut self, value: ValueId, along: usize, depth: usize) -> bool {
        let overlay = self.overlay;
        let Some(readers) = depth.checked_sub(1).and_then(|_| readers(overlay, value)) else {
            return false;
        };
        readers.iter().all(|&(node, slot)| {
            let at = overlay.at(node);
            let Ok(rank) = at.output_rank(0) else {
                return false;
            };
            let Some(op) = overlay.graph.op(node).filter(|_| self.spend(&at)) else {
                return false;
            };
            let is_twice = readers.iter().filter(|(other, _)| *other == node).count() > 1;
            let is_passed = match op {
                "Softmax" => return along + 1 == rank && at.softmax_axis(rank) == Ok(along),
                "Identity" => true,
                "Add" | "Sub" => (slot == 0 || op == "Add") && !is_twice,
                "Mul" | "Div" => {
                    (slot == 0 || op == "Mul")
                        && !is_twice
                        && is_same_along(&at, 1 - slot, rank, along)
                }
                _ => false,
            };
            let keeps_axes = is_passed && at.rank(slot) == Ok(rank);
            let output = at.output(0).ok().filter(|_| keeps_axes);
            output.is_some_and(|output| self.scores(output, along, depth - 1))
        })
    }
}

/// The shifts of the results of a node if the operand at `slot` is shifted. `None` if the node
/// would have to change.
fn one_way(at: &At, slot: usize, shift: &Numbers) -> Option<Vec<(usize, Affine)>> {
    let inputs: Vec<_> = (0..at.arity())
        .map(|i| (i == slot).then(|| Affine::shift(shift.clone())))
        .collect();
    let step = rule_of(at)
        .and_then(|rule| rule.forward(at, &inputs))
        .ok()?;
    step.only_passes_on()
        .then(|| step.ways.into_iter().next().unwrap_or_default())
}

/// The nodes that read the elements of a value, each with the index of the input at which it does.
/// `None` if no node reads the elements, if the value is an output, or if a body reads the value.
fn readers(overlay: &GraphOverlay, value: ValueId) -> Option<Vec<(NodeId, usize)>> {
    let nodes = overlay
        .readers(value)
        .filter_map(|(_, reader)| match reader {
            Reader::Node { node, input } => overlay
                .graph
                .reads_elements(node, input)
                .then_some(Some((node, input))),
            Reader::Output | Reader::Capture { .. } => Some(None),
        });
    nodes
        .collect::<Option<Vec<_>>>()
        .filter(|nodes| !nodes.is_empty())
}

/// Whether an operand does not vary along an axis of the result.
fn is_same_along(at: &At, slot: usize, rank: usize, along: usize) -> bool {
    let Ok(shape) = at.shape(slot) else {
        return false;
    };
    let missing = rank.saturating_sub(shape.len());
    along < missing
        || shape
            .get(along - missing)
            .is_some_and(|size| extent(size) == Some(1))
}
