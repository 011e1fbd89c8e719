//! The nodes between a value and a node, where all that the node sees of the input goes through the
//! value.

use std::collections::{BTreeMap, BTreeSet};

use crate::affine::recognize::View;
use crate::affine::recognize::batch_invariant::Alike;
use crate::affine::recognize::statistics::REACH;
use crate::ir::{NodeId, ValueId};

/// How many regions are read before a node is given up.
pub const ATTEMPTS: usize = 4;

/// How many nodes a normalizer may have.
const LARGEST: usize = 160;

/// The nodes that compute one value from another.
pub struct Region {
    /// The value that they start from, the only one that varies from item to item.
    pub input: ValueId,
    /// The nodes, in execution order.
    pub nodes: Vec<NodeId>,
}

impl Region {
    /// Whether all statistics are means over the same axes, and all constants single numbers, as in
    /// LayerNorm and RMSNorm. Blends of statistics have more.
    pub fn blends_nothing(&self, view: &View) -> bool {
        let mut over = None;
        let is_plain = |value: ValueId| {
            value == self.input
                || view
                    .maker(value)
                    .is_some_and(|node| self.nodes.contains(&node))
                || view.constants.is_scalar(value)
        };
        self.nodes.iter().all(|&node| {
            let inputs = view.graph.inputs(node);
            match view.graph.op(node) {
                Some("ReduceMean") => {
                    let rank = inputs
                        .first()
                        .copied()
                        .flatten()
                        .and_then(|value| view.facts.rank(value));
                    let reduced = rank.and_then(|rank| view.at(node).reduction(rank).ok());
                    let Some((axes, true)) = reduced else {
                        return false;
                    };
                    *over.get_or_insert_with(|| axes.clone()) == axes
                }
                Some(
                    "Add" | "Cast" | "Div" | "Identity" | "Mul" | "Pow" | "Reciprocal" | "Sqrt"
                    | "Sub",
                ) => inputs.iter().flatten().all(|&input| is_plain(input)),
                _ => false,
            }
        })
    }
}

/// The regions that end in a node, the smallest first, made of nodes that `belongs` accepts.
///
/// Walking backwards, always from the last value on, there is a cut wherever only one value is left.
pub fn regions(
    view: &View,
    alike: &Alike,
    last: NodeId,
    belongs: impl Fn(NodeId) -> bool,
) -> Vec<Region> {
    let mut regions = vec![];
    let mut nodes = BTreeMap::from([(view.graph.place(last), last)]);
    // Inputs of the model come before all nodes.
    let mut open: BTreeSet<(Option<usize>, ValueId)> = BTreeSet::new();
    let mut reached = last;
    while belongs(reached) {
        for &input in view.graph.inputs(reached).iter().flatten() {
            if !alike.is(input) {
                open.insert((view.maker(input).map(|node| view.graph.place(node)), input));
            }
        }
        if let (1, Some(&(_, input))) = (open.len(), open.first()) {
            regions.push(Region {
                input,
                nodes: nodes.values().copied().collect(),
            });
        }
        let Some((Some(place), value)) = open.pop_last() else {
            break;
        };
        let Some(node) = view.maker(value).filter(|_| nodes.len() < LARGEST) else {
            break;
        };
        nodes.insert(place, node);
        reached = node;
    }
    regions
}

/// The operand of a Div, or of a Mul, that a square root makes.
pub fn divisor(view: &View, node: NodeId) -> Option<ValueId> {
    let slots: &[usize] = match view.graph.op(node)? {
        "Div" => &[1],
        "Mul" => &[0, 1],
        _ => return None,
    };
    let is_root = |&value: &ValueId| {
        let mut value = value;
        for _ in 0..REACH {
            let Some(maker) = view.maker(value) else {
                return false;
            };
            match view.graph.op(maker) {
                Some("Sqrt" | "Pow" | "Reciprocal") => return true,
                Some("Div") => {
                    let one = view.graph.input(maker, 0).and_then(|one| view.scalar(one));
                    return one == Some(1.0);
                }
                _ if view.graph.is_movement(maker) => {
                    let Some(input) = view.graph.input(maker, 0) else {
                        return false;
                    };
                    value = input;
                }
                _ => return false,
            }
        }
        false
    };
    slots
        .iter()
        .filter_map(|&slot| view.graph.input(node, slot))
        .find(is_root)
}
