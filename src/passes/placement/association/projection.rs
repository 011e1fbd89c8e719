//! Projections `x·W + b` of tokens x, in the layout that a product of matrices reads.
//!
//! Layout operators do not mix tokens. So the projection in another layout is the product of x and
//! the weight in that layout, with the channels of x in place of the tokens.

use crate::analysis::Analysis;
use crate::analysis::node_view::At;
use crate::ir::axes::axis as counted;
use crate::ir::{NodeId, Reader, ValueId};
use crate::ops::axes::{AxisRead, reads};
use crate::passes::placement::layer::ChannelOperator;
use crate::recipe::Recipe;
use crate::shape::facts::{extent, same};

/// The rank of tokens: samples, tokens, channels.
const TOKENS: usize = 3;

/// The largest number of operators between a projection and the product that reads it.
const DEPTH: usize = 16;

/// A value that is a projection in some layout.
#[derive(Clone)]
pub(super) struct Projection {
    value: ValueId,
    /// The axis of the samples, which may be merged with the heads as the inner factor. `None` if
    /// there is only one sample.
    pub samples: Option<usize>,
    /// The axis of the tokens.
    pub tokens: usize,
    /// The axis of the tokens in x.
    pub source_tokens: usize,
    /// The weight in this layout, with one sample, and the channels of x in place of the tokens. If
    /// samples and heads are merged, their axis has an index for each head.
    pub weight: Recipe,
    /// The bias in this layout, with one sample and one token.
    pub bias: Option<Recipe>,
}

/// Finds the operator that computes a projection. `value` is the projection in another layout.
/// `None` if there is no such operator.
pub(super) fn operator_before(analysis: &Analysis, value: ValueId) -> Option<ChannelOperator> {
    let graph = &analysis.graph;
    let mut value = value;
    for _ in 0..DEPTH {
        let (node, _) = graph.producer(value)?;
        if graph.is(node, "MatMul") {
            let operator = ChannelOperator::read(analysis, node)?;
            return (operator.rank == TOKENS).then_some(operator);
        }
        let at = analysis.at(node);
        let slot = match graph.op(node)? {
            "Add" => 1 - at.constant_operand()?,
            _ => 0,
        };
        value = at.input(slot).ok()?;
    }
    None
}

/// The products of matrices that read a projection as their second operand, each with the
/// projection in the layout of this operand. `tokens` is the axis of the tokens in x, 0 or 1; the
/// other axis has the samples. `None` if another node reads the projection.
pub(super) fn operands(
    analysis: &Analysis,
    operator: &ChannelOperator,
    tokens: usize,
) -> Option<Vec<(NodeId, Projection)>> {
    let graph = &analysis.graph;
    let mut open = vec![Projection::of(analysis, operator, tokens)?];
    let mut found = vec![];
    while let Some(projection) = open.pop() {
        for reader in graph.readers(projection.value) {
            let &Reader::Node { node, input } = reader else {
                return None;
            };
            if graph.domain_op(node) == ("", "MatMul") && input == 1 {
                found.push((node, projection.clone()));
            } else {
                open.extend(projection.passed(analysis, node, input)?);
            }
        }
    }
    Some(found)
}

impl Projection {
    /// The projection that a linear operator on tokens outputs. `None` if its weight cannot be
    /// read.
    fn of(analysis: &Analysis, operator: &ChannelOperator, tokens: usize) -> Option<Self> {
        let [inner, outer] = operator.channels;
        let samples = 1 - tokens;
        let count = analysis.facts.extent(operator.value, samples);
        let weight = analysis.at(operator.node).constant(1).ok()?;
        let mut extents = [1, 1, outer];
        extents[tokens] = inner;
        Some(Projection {
            value: analysis.graph.only_output(operator.node)?,
            samples: (count != Some(1)).then_some(samples),
            tokens,
            source_tokens: tokens,
            weight: weight.reshape(&extents)?,
            bias: None,
        })
    }

    /// Follows the projection through a node that adds the bias or changes the layout. Returns the
    /// projection in the layout of each output. `None` for another node.
    fn passed(&self, analysis: &Analysis, node: NodeId, input: usize) -> Option<Vec<Self>> {
        let (graph, at) = (&analysis.graph, analysis.at(node));
        if graph.domain_op(node) == ("", "Add") {
            return Some(vec![self.shifted(&at, input)?]);
        }
        if input != 0 {
            return None;
        }
        let mut outputs = vec![];
        for (slot, output) in graph.outputs(node).iter().enumerate() {
            if let Some(value) = output.filter(|&value| !graph.readers(value).is_empty()) {
                outputs.push(self.laid_out(&at, slot, value)?);
            }
        }
        Some(outputs)
    }

    /// The projection after an Add of a constant bias that has one element for each channel. `None`
    /// for another Add, or if the projection has a bias or another layout already.
    fn shifted(&self, at: &At, input: usize) -> Option<Self> {
        let bias = at.constant(1 - input).ok()?;
        let channels = *self.weight.shape().last()?;
        let has_channels_last = self.tokens < 2 && self.samples != Some(2);
        let is_first = self.bias.is_none() && self.weight.rank() == TOKENS && has_channels_last;
        let fits = bias.len() == channels && bias.shape().last() == Some(&channels);
        (is_first && fits).then_some(())?;
        Some(Projection {
            value: at.output(0).ok()?,
            bias: Some(bias.reshape(&[1, 1, channels])?),
            ..self.clone()
        })
    }

    /// The projection in the layout of an output of a layout operator. `None` for another operator,
    /// or if tokens or samples no longer have an axis of their own.
    fn laid_out(&self, at: &At, slot: usize, value: ValueId) -> Option<Self> {
        let shape = at.output_shape(slot).ok()?;
        let read: Vec<AxisRead> = (0..shape.len())
            .map(|axis| reads(at, slot, axis).first().copied())
            .collect::<Option<_>>()?;
        let tokens = place_of(&read, self.tokens)?;
        let kept = self.samples.and_then(|axis| place_of(&read, axis));
        let samples = kept.or(self.samples);
        let mut extents = vec![];
        for (axis, dim) in shape.iter().enumerate() {
            let is_one = axis == tokens || Some(axis) == samples;
            extents.push(if is_one { 1 } else { extent(dim)? });
        }
        if let (Some(before), Some(after)) = (self.samples, samples) {
            extents[after] = match kept {
                Some(_) => *self.weight.shape().get(before)?,
                None => self.merged_heads(at, before, &extents)?,
            };
        }
        let bias = match &self.bias {
            Some(bias) => Some(moved(at, &read, bias, &extents)?),
            None => None,
        };
        extents[tokens] = self.weight.shape()[self.tokens];
        Some(Projection {
            value,
            samples,
            tokens,
            source_tokens: self.source_tokens,
            weight: moved(at, &read, &self.weight, &extents)?,
            bias,
        })
    }

    /// The number of heads for each sample after a Reshape that merges heads with the axis of the
    /// samples, as the inner factor. `extents` has the extents of all other axes of the result, and
    /// 1 for the tokens. `None` for another node.
    fn merged_heads(&self, at: &At, samples: usize, extents: &[usize]) -> Option<usize> {
        let channels = self.weight.len() / self.weight.shape()[self.tokens];
        let heads = channels.checked_div(extents.iter().product())?;
        let merged = *self.weight.shape().get(samples)?;
        let [before, after] = [at.shape(0).ok()?, at.output_shape(0).ok()?];
        let outer = before.get(samples)?.clone()?;
        let rows = Some(outer * heads.checked_div(merged)?);
        let mut outermost = before.iter().zip(&after).take(samples);
        let is_merged = at.graph.domain_op(at.node) == ("", "Reshape")
            && same(after.get(samples)?, &rows)
            && outermost.all(|(one, other)| same(one, other));
        is_merged.then_some(heads)
    }
}

/// The output axis along which place `i` reads place `i` of the input axis `axis`. `None` if there
/// is no such axis.
fn place_of(read: &[AxisRead], axis: usize) -> Option<usize> {
    read.iter().position(|&read| read == AxisRead::Same(axis))
}

/// Applies a layout operator to a constant. `extents` is the shape of the result. `None` for
/// another operator.
fn moved(at: &At, read: &[AxisRead], constant: &Recipe, extents: &[usize]) -> Option<Recipe> {
    match at.graph.domain_op(at.node) {
        ("", "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze") => constant.reshape(extents),
        ("", "Transpose") => constant.transpose(&at.permutation(constant.rank()).ok()?),
        ("", "Slice" | "Split") => cut(read, constant, extents),
        ("", "Gather") => gathered(at, constant, extents),
        _ => None,
    }
}

/// Applies a Slice or a Split to a constant. `None` if the operator reads places that the constant
/// does not have.
fn cut(read: &[AxisRead], constant: &Recipe, extents: &[usize]) -> Option<Recipe> {
    let mut result = constant.clone();
    for (axis, read) in read.iter().enumerate() {
        if let &AxisRead::Strided { start, step, .. } = read {
            let places = (0..extents[axis]).map(|place| Some(start + place * step));
            result = result.pick(axis, places)?;
        }
    }
    Some(result)
}

/// Applies a Gather with constant indices to a constant. `None` if the indices are not known.
fn gathered(at: &At, constant: &Recipe, extents: &[usize]) -> Option<Recipe> {
    let along = counted(at.attr("axis", 0).ok()?, constant.rank()).ok()?;
    let whole = *constant.shape().get(along)?;
    let mut places = vec![];
    for place in at.ints(1).ok()?? {
        places.push(Some(counted(place, whole).ok()?));
    }
    constant.pick(along, places)?.reshape(extents)
}
