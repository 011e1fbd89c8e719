//! Regions: the nodes between a value and a later node that depends on the input of the model only
//! through this value.

use std::collections::{BTreeMap, BTreeSet};

use crate::affine::recognize::View;
use crate::affine::recognize::batch_invariant::Alike;
use crate::affine::recognize::decomposed_norm::REACH;
use crate::ir::{NodeId, ValueId};

/// The largest number of regions that are tried for a node.
pub(super) const ATTEMPTS: usize = 4;

/// The largest number of nodes of a region.
const LARGEST: usize = 160;

/// The nodes that compute one value from another.
pub(super) struct Region {
    /// The value that the nodes read. Among all values that they read from outside, only this value
    /// varies from item to item.
    pub input: ValueId,
    /// The nodes, in execution order.
    pub nodes: Vec<NodeId>,
}

impl Region {
    /// Whether all statistics are means over the same axes, and all constants are scalars, as in
    /// LayerNorm and RMSNorm. A blend of statistics has means over different axes, or constants
    /// with one number for each channel.
    pub(super) fn blends_nothing(&self, view: &View) -> bool {
        let mut over = None;
        self.nodes.iter().all(|&node| match view.graph.op(node) {
            Some("ReduceMean") => match mean_axes(view, node) {
                Some(axes) => *over.get_or_insert_with(|| axes.clone()) == axes,
                None => false,
            },
            Some(
                "Add" | "Cast" | "Div" | "Identity" | "Mul" | "Pow" | "Reciprocal" | "Sqrt" | "Sub",
            ) => {
                let mut inputs = view.graph.inputs(node).iter().flatten();
                inputs.all(|&input| self.is_inside(view, input) || view.constants.is_scalar(input))
            }
            _ => false,
        })
    }

    /// Whether a value is the input, or the output of one of the nodes.
    fn is_inside(&self, view: &View, value: ValueId) -> bool {
        let maker = view.maker(value);
        value == self.input || maker.is_some_and(|node| self.nodes.contains(&node))
    }
}

/// The axes of a ReduceMean. `None` if the result lacks these axes.
fn mean_axes(view: &View, node: NodeId) -> Option<Vec<usize>> {
    let rank = view.facts.rank(view.graph.input(node, 0)?)?;
    let (axes, keeps) = view.at(node).reduction(rank).ok()?;
    keeps.then_some(axes)
}

/// The regions that end in a node, the smallest first, and consist of nodes that `belongs` accepts.
///
/// A value is open if the nodes found so far read it but do not compute it. The search goes
/// backward from the last open value. Whenever only one open value is left, the nodes found so far
/// are a region.
pub(super) fn regions(
    view: &View,
    alike: &Alike,
    last: NodeId,
    belongs: impl Fn(NodeId) -> bool,
) -> Vec<Region> {
    let mut regions = vec![];
    let mut nodes = BTreeMap::from([(view.graph.place(last), last)]);
    // Inputs of the model have no place and sort before the outputs of all nodes.
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

/// The divisor of a Div, or a factor of a Mul, if it is a root, a power or a reciprocal.
pub(super) fn divisor(view: &View, node: NodeId) -> Option<ValueId> {
    let slots: &[usize] = match view.graph.op(node)? {
        "Div" => &[1],
        "Mul" => &[0, 1],
        _ => return None,
    };
    let mut operands = slots
        .iter()
        .filter_map(|&slot| view.graph.input(node, slot));
    operands.find(|&operand| is_root(view, operand))
}

/// Whether a value is a root, a power or a reciprocal, possibly followed by movements.
fn is_root(view: &View, mut value: ValueId) -> bool {
    for _ in 0..REACH {
        let Some(maker) = view.maker(value) else {
            return false;
        };
        match view.graph.op(maker) {
            Some("Sqrt" | "Pow" | "Reciprocal") => return true,
            Some("Div") => return view.scalar_input(maker, 0) == Some(1.0),
            _ if view.graph.is_movement(maker) => {}
            _ => return false,
        }
        let Some(input) = view.graph.input(maker, 0) else {
            return false;
        };
        value = input;
    }
    false
}
