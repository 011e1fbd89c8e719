//! Recognizes a LayerNormalization of tokens that is exported as a BatchNormalization with the
//! statistics of its input.
//!
//! Keras runs a LayerNormalization as a BatchNormalization in training mode whose channels are the
//! tokens. It is exported as a Reshape to `[1, N, C, 1]`, the mean and the variance over all axes
//! except the second, a BatchNormalization with γ = 1 and β = 0, and a Reshape to the shape of x.
//! Together they compute `(x − mean(x))/√(var(x) + ε)` over the last axis of x. Engines have an
//! operator for this formula, while tract cannot run a BatchNormalization whose statistics are not
//! constants.

use crate::analysis::Analysis;
use crate::analysis::node_view::At;
use crate::ir::builder::Maker;
use crate::ir::{NodeId, ValueId};
use crate::recipe::Recipe;
use crate::shape::facts::{extent, same_shape};

/// The longest chain of movements through which a statistic is followed.
const REACH: usize = 4;

/// Movements that keep the order of the elements.
const MOVEMENTS: [&str; 3] = ["Reshape", "Squeeze", "Unsqueeze"];

/// Replaces the result of a Reshape by a written-out LayerNormalization. `None` if the Reshape is
/// not the last node of the exported form.
pub(crate) fn as_layer_norm<'m>(analysis: &'m Analysis, reshape: NodeId) -> Option<Maker<'m>> {
    let Analysis { graph, facts, .. } = analysis;
    let output = graph.only_output(reshape)?;
    let norm =
        maker(analysis, graph.input(reshape, 0)?).filter(|_| graph.is(reshape, "Reshape"))?;
    let at = analysis.at(norm);
    let tokens = Tokens::find(analysis, norm)?;
    let input = graph.input(
        maker(analysis, tokens.value).filter(|&node| graph.is(node, "Reshape"))?,
        0,
    )?;
    let (before, after) = (facts.shape(input)?, facts.shape(output)?);
    let is_restored = same_shape(&before, &after);
    let is_over_channels = before.last().and_then(extent) == Some(tokens.channels);
    let is_bare =
        tokens.is_all(graph.input(norm, 1)?, 1.0) && tokens.is_all(graph.input(norm, 2)?, 0.0);
    let mean = tokens.statistic(graph.input(norm, 3)?);
    let is_own = tokens.is_mean(mean) && tokens.is_variance(graph.input(norm, 4)?);
    if !is_restored || !is_over_channels || !is_bare || !is_own {
        return None;
    }
    let data_type = facts.data_type(input)?;
    let epsilon = at.attr_float("epsilon", 1e-5).ok()?;
    let mut maker = Maker::new(graph, reshape);
    let input = graph.value_name(input);
    let mean = maker.mean(input, &[-1], true);
    let centred = maker.op("Sub", &[input, &mean], vec![]);
    let two = maker.floats(data_type, &Recipe::number(2.0, 0));
    let square = maker.op("Pow", &[&centred, &two], vec![]);
    let variance = maker.mean(&square, &[-1], true);
    let epsilon = maker.floats(data_type, &Recipe::number(epsilon, 0));
    let moment = maker.op("Add", &[&variance, &epsilon], vec![]);
    let root = maker.op("Sqrt", &[&moment], vec![]);
    maker.op("Div", &[&centred, &root], vec![]);
    Some(maker)
}

fn maker(analysis: &Analysis, value: ValueId) -> Option<NodeId> {
    Some(analysis.graph.producer(value)?.0)
}

/// The input of a BatchNormalization whose channels may be tokens: `[1, N, ...]`.
struct Tokens<'m> {
    analysis: &'m Analysis<'m>,
    value: ValueId,
    rank: usize,
    /// The number of elements of each token.
    channels: usize,
}

impl<'m> Tokens<'m> {
    fn find(analysis: &'m Analysis<'m>, norm: NodeId) -> Option<Self> {
        let Analysis { graph, facts, .. } = analysis;
        let at = analysis.at(norm);
        let is_plain = graph.is(norm, "BatchNormalization")
            && graph.only_output(norm).is_some()
            && at
                .only_attributes(&["epsilon", "momentum", "training_mode"])
                .is_ok()
            && at.attr("training_mode", 0) == Ok(0);
        let value = graph.input(norm, 0).filter(|_| is_plain)?;
        let shape = facts.shape(value).filter(|shape| shape.len() > 2)?;
        let channels = shape[2..].iter().map(extent).product::<Option<usize>>()?;
        (extent(&shape[0]) == Some(1)).then_some(Tokens {
            analysis,
            value,
            rank: shape.len(),
            channels,
        })
    }

    fn at(&self, node: NodeId) -> At<'_> {
        self.analysis.at(node)
    }

    /// Whether a value is a constant, or an Expand of a constant, whose elements all equal
    /// `number`. A constant of more than 65,536 elements is not checked, and the result is `false`.
    fn is_all(&self, value: ValueId, number: f64) -> bool {
        let Analysis {
            graph, constants, ..
        } = self.analysis;
        let expand = maker(self.analysis, value).filter(|&node| graph.is(node, "Expand"));
        let value = expand
            .and_then(|node| graph.input(node, 0))
            .unwrap_or(value);
        let is_small = constants.is_constant(value)
            && constants.len(value).is_some_and(|count| count <= 1 << 16);
        is_small
            && constants
                .read(value)
                .is_ok_and(|numbers| numbers.iter().all(|&it| it == number))
    }

    /// Follows movements up from a statistic, and returns the value that they move. The movements
    /// keep the order of the scalars of the statistic, which has one scalar for each token.
    fn statistic(&self, mut value: ValueId) -> ValueId {
        let graph = &self.analysis.graph;
        for _ in 0..REACH {
            let movement = maker(self.analysis, value)
                .filter(|&node| MOVEMENTS.iter().any(|op| graph.is(node, op)));
            let before = movement.and_then(|node| graph.input(node, 0));
            value = before.unwrap_or(value);
        }
        value
    }

    /// The node that computes a value by a reduction over all axes except the token axis, and the
    /// input of the node. `None` if the value has another producer.
    fn reduced(&self, value: ValueId, ops: &[&str]) -> Option<(NodeId, ValueId)> {
        let node = maker(self.analysis, value)
            .filter(|&node| ops.iter().any(|op| self.analysis.graph.is(node, op)))?;
        let (axes, _) = self.at(node).reduction(self.rank).ok()?;
        let input = self.analysis.graph.input(node, 0)?;
        let is_token = self.analysis.facts.rank(input) == Some(self.rank)
            && axes
                .iter()
                .copied()
                .eq((0..self.rank).filter(|&axis| axis != 1));
        is_token.then_some((node, input))
    }

    fn is_mean(&self, value: ValueId) -> bool {
        self.reduced(value, &["ReduceMean"])
            .is_some_and(|(_, of)| of == self.value)
    }

    /// Whether a value is the tokens minus their means, with the means along the token axis.
    fn is_centred(&self, value: ValueId) -> bool {
        let Analysis { graph, facts, .. } = self.analysis;
        let Some(sub) = maker(self.analysis, value).filter(|&node| graph.is(node, "Sub")) else {
            return false;
        };
        let &[Some(from), Some(mean)] = graph.inputs(sub) else {
            return false;
        };
        let is_aligned = facts.shape(mean).is_some_and(|shape| {
            let others = (0..shape.len()).filter(|&axis| axis != 1);
            shape.len() == self.rank
                && others
                    .map(|axis| &shape[axis])
                    .all(|it| extent(it) == Some(1))
        });
        from == self.value && is_aligned && self.is_mean(self.statistic(mean))
    }

    /// Whether a value is `mean(d²)` or `Σd²/C` of the centred tokens d.
    fn is_variance(&self, value: ValueId) -> bool {
        let Analysis {
            graph, constants, ..
        } = self.analysis;
        let value = self.statistic(value);
        let quotient = maker(self.analysis, value).filter(|&node| graph.is(node, "Div"));
        let Some(quotient) = quotient else {
            return self
                .reduced(value, &["ReduceMean"])
                .is_some_and(|(_, of)| self.is_square(of));
        };
        let &[Some(sum), Some(count)] = graph.inputs(quotient) else {
            return false;
        };
        let is_sum = self
            .reduced(self.statistic(sum), &["ReduceSumSquare", "ReduceSum"])
            .is_some_and(|(node, of)| {
                if graph.is(node, "ReduceSum") {
                    self.is_square(of)
                } else {
                    self.is_centred(of)
                }
            });
        is_sum && constants.scalar(count) == Some(self.channels as f64)
    }

    fn is_square(&self, value: ValueId) -> bool {
        let Analysis {
            graph, constants, ..
        } = self.analysis;
        let Some(node) = maker(self.analysis, value) else {
            return false;
        };
        let &[Some(base), Some(other)] = graph.inputs(node) else {
            return false;
        };
        let is_square = match graph.op(node) {
            Some("Mul") => other == base,
            Some("Pow") => constants.scalar(other) == Some(2.0),
            _ => false,
        };
        is_square && self.is_centred(base)
    }
}
