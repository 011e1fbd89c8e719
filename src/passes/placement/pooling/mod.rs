//! Moves a mean or a sum over places before the linear operators whose results it adds up.
//!
//! Before: `mean(W·x + b)`. After: `W·mean(x) + b`. The mean is an AveragePool with strides, a
//! GlobalAveragePool, a ReduceMean or a ReduceSum. On the way to a linear operator it also passes
//! sums, term by term, and products with an operand that is constant over all averaged places. It
//! also passes a Slice of places: then it averages the selected places of the operator's input.
//!
//! This is exact, because the operator is linear over channels, and the mean is linear over places.
//! An operand that is constant over the places is multiplied by the sum of the weights, which is 1
//! for a mean, and the number of places for a ReduceSum. No bias passes if this sum is unknown, or
//! if it differs between windows because windows at the border also count zeros around the image.

mod obstacle;
mod read;

pub(super) use obstacle::refused;

use super::layer::{ChannelOperator, again};
use super::{PlacementMove, WorkTerm, are_in_one_body, places};
use crate::affine::propagate::rules::slice::cuts;
use crate::analysis::Analysis;
use crate::ir::builder::Maker;
use crate::ir::{NodeId, ValueId};
use crate::recipe::Recipe;
use crate::shape::facts::{Shape, extent, same};

/// The name of this rule in the plan and for `--skip`.
const RULE: &str = "pooling";

/// The largest number of operators in a row that the mean passes.
const DEPTH: usize = 32;

/// The least number of multiplications to save for each added operator, since every operator takes
/// time.
const PER_OPERATOR: usize = 1 << 15;

/// A mean over places.
#[derive(Clone)]
struct Mean {
    node: NodeId,
    value: ValueId,
    /// The averaged axes.
    axes: Vec<usize>,
    /// The Slices that select the averaged places, the one next to the mean first.
    slices: Vec<NodeId>,
    /// Whether the averaged axes stay in the result, with fewer places.
    keeps_axes: bool,
    /// The sum of the weights of each mean, if all means have the same sum.
    sum_of_weights: Option<usize>,
    /// The number of places that each mean averages. `None` if it averages all places.
    taps: Option<usize>,
    /// A lower bound for the ratio of the numbers of places before and after the mean. `None` if
    /// only one place is left.
    fewer: Option<usize>,
}

/// The mean of a value, as a term of the means of other values.
enum PassedNode {
    /// The mean of the value itself, after Slices of its places, the one next to the mean first.
    Mean(ValueId, Vec<NodeId>),
    /// The mean of the places that a Slice selects, as a term of the means of the selected places
    /// of other values.
    Slice(NodeId, Box<PassedNode>),
    /// The value itself, which is constant over the places.
    Same(ValueId),
    /// A linear operator on the mean.
    ChannelOperator(ChannelOperator, Box<PassedNode>),
    /// An Add, Sub, Mul or Div of two terms.
    Pair(NodeId, Box<[PassedNode; 2]>),
}

/// The move of a mean before linear operators. `None` if no linear operator can be reached, or if
/// too few multiplications are saved.
pub(super) fn find(analysis: &Analysis, node: NodeId) -> Option<PlacementMove> {
    let mean = Mean::read(analysis, node)?;
    let shape = analysis.facts.shape(mean.value)?;
    if mean
        .axes
        .iter()
        .all(|&axis| extent(&shape[axis]) == Some(1))
    {
        return None;
    }
    let term = mean.mean_of(analysis, mean.value, &shape, DEPTH);
    let first = term.layers().first()?.node;
    if !mean.saves_enough(&term, &shape) {
        return None;
    }
    let nodes = [term.nodes(), vec![node]].concat();
    let output = analysis.graph.only_output(node)?;
    if !are_in_one_body(&analysis.graph, &nodes) {
        return None;
    }
    let mut maker = Maker::new(&analysis.graph, node);
    let last = mean.write(analysis, &term, &mut maker);
    if !mean.keeps_axes {
        let axes = mean.axes.iter().rev().map(|&axis| axis as i64);
        axes.fold(last, |value, axis| maker.squeeze(&value, axis));
    }
    let [before, after] = mean.work(analysis, &term, output)?;
    Some(PlacementMove::new(
        analysis,
        (RULE, first),
        nodes,
        maker,
        output,
        [&before, &after],
    ))
}

impl Mean {
    /// The mean of a value with this shape. It is written with the means of the operands of the
    /// value's producer if this reaches a linear operator, and otherwise as the mean of the value.
    fn mean_of(
        &self,
        analysis: &Analysis,
        value: ValueId,
        shape: &Shape,
        depth: usize,
    ) -> PassedNode {
        let passed = self.passed(analysis, value, shape, depth);
        passed
            .filter(|term| !term.layers().is_empty())
            .unwrap_or_else(|| PassedNode::Mean(value, self.slices.clone()))
    }

    /// The mean of a value, written with the means of the operands of its producer. `None` if the
    /// mean cannot pass the producer.
    fn passed(
        &self,
        analysis: &Analysis,
        value: ValueId,
        shape: &Shape,
        depth: usize,
    ) -> Option<PassedNode> {
        analysis.graph.only_reader(value)?;
        self.through(analysis, value, shape, depth)
    }

    /// Like [`Mean::passed`], but the value may have other readers.
    fn through(
        &self,
        analysis: &Analysis,
        value: ValueId,
        shape: &Shape,
        depth: usize,
    ) -> Option<PassedNode> {
        let left = depth.checked_sub(1)?;
        let (node, _) = analysis.graph.producer(value)?;
        if let Some(layer) = ChannelOperator::read(analysis, node) {
            let pays =
                layer.rank == shape.len() && !self.axes.contains(&layer.axis) && self.pays(&layer);
            let stays = !layer.has_bias || self.sum_of_weights == Some(1);
            let below = analysis
                .facts
                .shape(layer.value)
                .filter(|_| pays && stays)?;
            let term = self.mean_of(analysis, layer.value, &below, left);
            return Some(PassedNode::ChannelOperator(layer, Box::new(term)));
        }
        if self.is_of_places(analysis, node) {
            return self.before_slice(analysis, node, left);
        }
        let [one, other] = self.operands(analysis, node, shape.len())?;
        let one = self.operand(analysis, one, shape, left)?;
        let other = self.operand(analysis, other, shape, left)?;
        Some(PassedNode::Pair(node, Box::new([one, other])))
    }

    /// The operands of a sum or a product that the mean passes, with whether each is constant over
    /// the places. `None` for other nodes.
    fn operands(
        &self,
        analysis: &Analysis,
        node: NodeId,
        rank: usize,
    ) -> Option<[(ValueId, bool); 2]> {
        let &[Some(one), Some(other)] = analysis.graph.inputs(node) else {
            return None;
        };
        analysis.at(node).only_attributes(&[]).ok()?;
        let is_same = [one, other].map(|operand| self.is_same(analysis, operand, rank));
        let passes = match (analysis.graph.op(node)?, is_same) {
            ("Add" | "Sub", [false, false]) | ("Mul" | "Div", [false, true]) => true,
            ("Mul", [true, false]) => true,
            ("Add" | "Sub", [true, false] | [false, true]) => self.sum_of_weights.is_some(),
            _ => false,
        };
        passes.then_some([(one, is_same[0]), (other, is_same[1])])
    }

    /// Whether a node is a Slice of averaged places, and of no other axes.
    fn is_of_places(&self, analysis: &Analysis, node: NodeId) -> bool {
        let at = analysis.at(node);
        let is_known = analysis.graph.domain_op(node) == ("", "Slice")
            && at.only_attributes(&["axes", "ends", "starts"]).is_ok();
        let cuts = cuts(&at).ok().filter(|_| is_known);
        cuts.is_some_and(|cuts| cuts.iter().all(|(axis, _)| self.axes.contains(axis)))
    }

    /// The mean of the places that a Slice selects, written with the means of the selected places
    /// of other values. `None` if the shape of the whole value is unknown.
    fn before_slice(&self, analysis: &Analysis, node: NodeId, depth: usize) -> Option<PassedNode> {
        let whole = analysis.graph.input(node, 0)?;
        let shape = analysis.facts.shape(whole)?;
        let mut mean = self.clone();
        mean.slices.push(node);
        let term = mean.mean_of(analysis, whole, &shape, depth);
        Some(PassedNode::Slice(node, Box::new(term)))
    }

    /// The mean of an operand, or the operand itself if `is_same`. `None` if the operand varies
    /// along some of the averaged axes, but not along all.
    fn operand(
        &self,
        analysis: &Analysis,
        (value, is_same): (ValueId, bool),
        shape: &Shape,
        depth: usize,
    ) -> Option<PassedNode> {
        if is_same {
            return Some(PassedNode::Same(value));
        }
        let own = analysis
            .facts
            .shape(value)
            .filter(|own| own.len() == shape.len())?;
        let is_whole = self.axes.iter().all(|&axis| same(&own[axis], &shape[axis]));
        is_whole.then(|| self.mean_of(analysis, value, &own, depth))
    }

    /// Whether an operand of a sum or product of rank `rank` is constant over all averaged places.
    fn is_same(&self, analysis: &Analysis, operand: ValueId, rank: usize) -> bool {
        let Some(own) = analysis.facts.shape(operand) else {
            return false;
        };
        own.len() <= rank
            && self.axes.iter().all(|&axis| {
                let place = (axis + own.len()).checked_sub(rank);
                place.is_none_or(|place| extent(&own[place]) == Some(1))
            })
    }

    /// Whether a linear operator costs less after the mean, which may then average more channels.
    /// Slices of the averaged places then copy more channels, too.
    fn pays(&self, layer: &ChannelOperator) -> bool {
        let [inner, outer] = layer.channels;
        let more = inner
            .saturating_sub(outer)
            .saturating_mul(1 + self.slices.len());
        match (self.taps, self.fewer) {
            // In the worst case, two places become one: the operator then runs at one place less,
            // but `more` additional channels are averaged at both places.
            (None, _) | (_, None) => layer.products > more.saturating_mul(2),
            (Some(taps), Some(fewer)) => {
                layer.products.saturating_mul(fewer - 1) > taps.saturating_mul(more)
            }
        }
    }

    /// Whether enough multiplications are saved to be worth the added operators. An unknown extent
    /// counts as two places.
    fn saves_enough(&self, term: &PassedNode, shape: &Shape) -> bool {
        let squeezes = if self.keeps_axes { 0 } else { self.axes.len() };
        let added = term.added_operators() + squeezes;
        let places = self
            .axes
            .iter()
            .map(|&axis| extent(&shape[axis]).unwrap_or(2));
        let places = places.fold(1, usize::saturating_mul);
        let products: usize = term.layers().iter().map(|layer| layer.products).sum();
        added == 0
            || products.saturating_mul(places.saturating_sub(1))
                >= added.saturating_mul(PER_OPERATOR)
    }

    /// Writes a term. Returns the name of its result.
    fn write(&self, analysis: &Analysis, term: &PassedNode, maker: &mut Maker) -> String {
        let graph = &analysis.graph;
        match term {
            PassedNode::Same(value) => graph.value_name(*value).to_owned(),
            PassedNode::Slice(_, term) => self.write(analysis, term, maker),
            PassedNode::Mean(value, slices) => {
                let whole = graph.value_name(*value).to_owned();
                let name = &slices.iter().rev().fold(whole, |name, &slice| {
                    again(analysis, (slice, 0), &name, maker)
                });
                if let Some(op @ ("ReduceMean" | "ReduceSum")) = graph.op(self.node) {
                    let axes: Vec<i64> = self.axes.iter().map(|&axis| axis as i64).collect();
                    return maker.reduce(op, name, &axes, true);
                }
                again(analysis, (self.node, 0), name, maker)
            }
            PassedNode::ChannelOperator(layer, term) => {
                let value = self.write(analysis, term, maker);
                layer.on(analysis, &value, maker)
            }
            PassedNode::Pair(node, terms) => {
                let op = graph.node(*node).op_type();
                let is_sum = matches!(op, "Add" | "Sub");
                let [one, other] = terms.each_ref().map(|term| match term {
                    PassedNode::Same(value) if is_sum => self.added_up(analysis, *value, maker),
                    term => self.write(analysis, term, maker),
                });
                maker.op(op, &[&one, &other], vec![])
            }
        }
    }

    /// Writes the product of a value, which is constant over the places, and the sum of the
    /// weights.
    fn added_up(&self, analysis: &Analysis, value: ValueId, maker: &mut Maker) -> String {
        let name = analysis.graph.value_name(value);
        match (self.sum_of_weights, analysis.facts.data_type(value)) {
            (Some(count), Some(data_type)) if count != 1 => {
                let count = maker.floats(data_type, &Recipe::number(count as f64, 0));
                maker.op("Mul", &[name, &count], vec![])
            }
            _ => name.to_owned(),
        }
    }

    /// The work of the linear operators in a term before and after the move. `output` is the result
    /// of the mean. `None` if a shape is unknown.
    fn work(
        &self,
        analysis: &Analysis,
        term: &PassedNode,
        output: ValueId,
    ) -> Option<[Vec<WorkTerm>; 2]> {
        let layers = term.layers();
        let before: Option<Vec<WorkTerm>> =
            layers.iter().map(|layer| layer.work(analysis)).collect();
        let products = layers.iter().map(|layer| layer.products).sum();
        let places = self.places_left(analysis, output, layers.first()?)?;
        Some([before?, vec![WorkTerm::new(products, places)]])
    }

    /// The places of the mean's result, at which a linear operator is computed after the move.
    /// `None` if its shape is unknown.
    fn places_left(
        &self,
        analysis: &Analysis,
        output: ValueId,
        layer: &ChannelOperator,
    ) -> Option<Shape> {
        let removed = if self.keeps_axes {
            0
        } else {
            self.axes.iter().filter(|&&axis| axis < layer.axis).count()
        };
        places(analysis, output, layer.axis - removed)
    }
}

impl PassedNode {
    /// The number of operators that the term has in addition to those that it replaces.
    fn added_operators(&self) -> usize {
        let replaced = 1 + self.slices();
        self.reductions().saturating_sub(replaced)
    }

    /// The number of means in the term, and of Slices of their operands.
    fn reductions(&self) -> usize {
        match self {
            PassedNode::Mean(_, slices) => 1 + slices.len(),
            PassedNode::Same(_) => 0,
            PassedNode::Slice(_, term) | PassedNode::ChannelOperator(_, term) => term.reductions(),
            PassedNode::Pair(_, terms) => terms.iter().map(PassedNode::reductions).sum(),
        }
    }

    /// The number of Slices that the mean passes.
    fn slices(&self) -> usize {
        match self {
            PassedNode::Mean(..) | PassedNode::Same(_) => 0,
            PassedNode::Slice(_, term) => 1 + term.slices(),
            PassedNode::ChannelOperator(_, term) => term.slices(),
            PassedNode::Pair(_, terms) => terms.iter().map(PassedNode::slices).sum(),
        }
    }

    /// The linear operators in the term.
    fn layers(&self) -> Vec<&ChannelOperator> {
        match self {
            PassedNode::Mean(..) | PassedNode::Same(_) => vec![],
            PassedNode::Slice(_, term) => term.layers(),
            PassedNode::ChannelOperator(layer, term) => [vec![layer], term.layers()].concat(),
            PassedNode::Pair(_, terms) => terms.iter().flat_map(PassedNode::layers).collect(),
        }
    }

    /// The nodes that the term replaces.
    fn nodes(&self) -> Vec<NodeId> {
        match self {
            PassedNode::Mean(..) | PassedNode::Same(_) => vec![],
            PassedNode::Slice(node, term) => [term.nodes(), vec![*node]].concat(),
            PassedNode::ChannelOperator(layer, term) => [term.nodes(), vec![layer.node]].concat(),
            PassedNode::Pair(node, terms) => terms
                .iter()
                .flat_map(PassedNode::nodes)
                .chain([*node])
                .collect(),
        }
    }
}
