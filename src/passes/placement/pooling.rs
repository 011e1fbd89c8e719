//! Moves a mean or a sum over places before the linear operators whose results it adds up.
//!
//! Before: `mean(W·x + b)`. After: `W·mean(x) + b`. The mean is an AveragePool with strides, a
//! GlobalAveragePool, a ReduceMean or a ReduceSum. On the way to a linear operator it also passes
//! sums, term by term, and products with an operand that is constant over all averaged places.
//!
//! This is exact, because the operator is linear over channels, and the mean is linear over places.
//! An operand that is constant over the places is multiplied by the sum of the weights, which is 1
//! for a mean, and the number of places for a ReduceSum. No bias passes if this sum is unknown, or
//! if it differs between windows because windows at the border also count zeros around the image.

use super::layer::{ChannelOperator, again, are_all, is_wide};
use super::{PlacementMove, WorkTerm, are_in_one_body, places};
use crate::affine::propagate::rules::window::meet_the_image;
use crate::analysis::Analysis;
use crate::analysis::node_view::At;
use crate::ir::builder::Maker;
use crate::ir::{NodeId, ValueId};
use crate::onnx::operator::AVERAGE_POOL;
use crate::recipe::Recipe;
use crate::shape::facts::{Shape, extent, same};

/// The largest number of operators in a row that the mean passes.
const DEPTH: usize = 32;

/// The least number of multiplications to save for each added operator, since every operator takes
/// time.
const PER_OPERATOR: usize = 1 << 15;

/// The number of axes before the spatial axes.
const SPACE: usize = 2;

/// A mean over places.
struct Mean {
    node: NodeId,
    value: ValueId,
    /// The averaged axes.
    axes: Vec<usize>,
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
    /// The mean of the value itself.
    Mean(ValueId),
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
    let layers = term.layers();
    let first = layers.first()?;
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
    let products = layers.iter().map(|layer| layer.products).sum();
    let before = [WorkTerm::new(
        products,
        places(analysis, mean.value, first.axis)?,
    )];
    let after = [WorkTerm::new(
        products,
        mean.places_left(analysis, output, first)?,
    )];
    Some(PlacementMove::new(
        analysis,
        ("pooling", first.node),
        nodes,
        maker,
        output,
        [&before, &after],
    ))
}

impl Mean {
    fn read(analysis: &Analysis, node: NodeId) -> Option<Self> {
        let at = analysis.at(node);
        let mean = match analysis.graph.domain_op(node) {
            ("", "AveragePool") => average_pool(&at),
            ("", "GlobalAveragePool") => global_average_pool(&at),
            ("", "ReduceMean" | "ReduceSum") => reduction(&at),
            _ => None,
        };
        let output = analysis.graph.only_output(node)?;
        mean.filter(|_| is_wide(analysis, output) && !analysis.constants.is_constant(output))
    }

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
            .unwrap_or(PassedNode::Mean(value))
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
        let graph = &analysis.graph;
        let left = depth.checked_sub(1)?;
        graph.only_reader(value)?;
        let (node, _) = graph.producer(value)?;
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
        let op = graph.op(node)?;
        let &[Some(one), Some(other)] = graph.inputs(node) else {
            return None;
        };
        analysis.at(node).only_attributes(&[]).ok()?;
        let is_same = [one, other].map(|operand| self.is_same(analysis, operand, shape.len()));
        let [one, other] = match (op, is_same) {
            ("Add" | "Sub", [false, false]) | ("Mul" | "Div", [false, true]) => {
                [(one, is_same[0]), (other, is_same[1])]
            }
            ("Mul", [true, false]) => [(one, true), (other, false)],
            ("Add" | "Sub", [true, false] | [false, true]) if self.sum_of_weights.is_some() => {
                [(one, is_same[0]), (other, is_same[1])]
            }
            _ => return None,
        };
        let one = self.operand(analysis, one, shape, left)?;
        let other = self.operand(analysis, other, shape, left)?;
        Some(PassedNode::Pair(node, Box::new([one, other])))
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
    fn pays(&self, layer: &ChannelOperator) -> bool {
        let [inner, outer] = layer.channels;
        let more = inner.saturating_sub(outer);
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
        let added = term.means() - 1 + squeezes;
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
            PassedNode::Mean(value) => {
                let name = graph.value_name(*value);
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
    /// The number of means in the term.
    fn means(&self) -> usize {
        match self {
            PassedNode::Mean(_) => 1,
            PassedNode::Same(_) => 0,
            PassedNode::ChannelOperator(_, term) => term.means(),
            PassedNode::Pair(_, terms) => terms.iter().map(PassedNode::means).sum(),
        }
    }

    /// The linear operators in the term.
    fn layers(&self) -> Vec<&ChannelOperator> {
        match self {
            PassedNode::Mean(_) | PassedNode::Same(_) => vec![],
            PassedNode::ChannelOperator(layer, term) => [vec![layer], term.layers()].concat(),
            PassedNode::Pair(_, terms) => terms.iter().flat_map(PassedNode::layers).collect(),
        }
    }

    /// The nodes that the term replaces.
    fn nodes(&self) -> Vec<NodeId> {
        match self {
            PassedNode::Mean(_) | PassedNode::Same(_) => vec![],
            PassedNode::ChannelOperator(layer, term) => [term.nodes(), vec![layer.node]].concat(),
            PassedNode::Pair(node, terms) => terms
                .iter()
                .flat_map(PassedNode::nodes)
                .chain([*node])
                .collect(),
        }
    }
}

/// Reads an AveragePool. `None` unless it surely leaves fewer places.
fn average_pool(at: &At) -> Option<Mean> {
    at.only_attributes(AVERAGE_POOL).ok()?;
    let kernel = at.attr_ints("kernel_shape").ok()??;
    let strides = at
        .attr_ints("strides")
        .ok()?
        .filter(|strides| strides.len() == kernel.len())?;
    let pads = at
        .attr_ints("pads")
        .ok()?
        .unwrap_or_else(|| vec![0; 2 * kernel.len()]);
    let rank = at
        .rank(0)
        .ok()
        .filter(|&rank| rank == kernel.len() + SPACE && pads.len() == 2 * kernel.len())?;
    let automatic = at.attr_text("auto_pad", "NOTSET").ok()?;
    let is_padded = !are_all(at, "pads", 0)? || !matches!(automatic, "NOTSET" | "VALID");
    let counts_border = at.flag("count_include_pad", false).ok()? && is_padded;
    let rounds_up = at.flag("ceil_mode", false).ok()?;
    // If the padding is narrower than a window, no image has more windows than places.
    let is_narrow = (0..kernel.len())
        .all(|axis| pads[axis].saturating_add(pads[kernel.len() + axis]) < kernel[axis]);
    let fewer = product(&strides).filter(|&fewer| fewer > 1 && is_narrow)?;
    let is_mean = !counts_border && !rounds_up && meet_the_image(at).ok()?;
    Some(Mean {
        node: at.node,
        value: at.input(0).ok()?,
        axes: (SPACE..rank).collect(),
        keeps_axes: true,
        sum_of_weights: is_mean.then_some(1),
        taps: Some(product(&kernel)?),
        fewer: Some(fewer),
    })
}

/// The product of positive numbers. `None` if one of them is not positive, or if the product is too
/// large.
fn product(numbers: &[i64]) -> Option<usize> {
    numbers.iter().try_fold(1_usize, |product, &number| {
        product.checked_mul(usize::try_from(number).ok().filter(|&number| number > 0)?)
    })
}

/// Reads a GlobalAveragePool. `None` if its rank is unknown.
fn global_average_pool(at: &At) -> Option<Mean> {
    at.only_attributes(&[]).ok()?;
    let rank = at.rank(0).ok().filter(|&rank| rank > SPACE)?;
    Some(Mean {
        node: at.node,
        value: at.input(0).ok()?,
        axes: (SPACE..rank).collect(),
        keeps_axes: true,
        sum_of_weights: Some(1),
        taps: None,
        fewer: None,
    })
}

/// Reads a ReduceMean or a ReduceSum. `None` if its axes are unknown, or if it reduces none.
fn reduction(at: &At) -> Option<Mean> {
    at.only_attributes(&["axes", "keepdims", "noop_with_empty_axes"])
        .ok()?;
    let shape = at.shape(0).ok()?;
    let (axes, keeps_axes) = at.reduction(shape.len()).ok()?;
    let sum_of_weights = match at.graph.is(at.node, "ReduceMean") {
        true => Some(1),
        false => axes.iter().try_fold(1_usize, |count, &axis| {
            count.checked_mul(extent(&shape[axis])?)
        }),
    };
    (!axes.is_empty()).then_some(Mean {
        node: at.node,
        value: at.input(0).ok()?,
        axes,
        keeps_axes,
        sum_of_weights,
        taps: None,
        fewer: None,
    })
}
