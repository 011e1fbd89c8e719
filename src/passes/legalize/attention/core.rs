//! The core of an attention: two products with a Softmax between them.

use super::refusal::AttentionRefusal;
use crate::analysis::Analysis;
use crate::ir::regions::region_path;
use crate::ir::{NodeId, ValueId};
use crate::onnx::operator::Category;
use crate::onnx::tensor::DataType;
use crate::shape::facts::{Shape, extent, same};

/// The products of an attention, `softmax(scale·queries·keys)·values`, without movements.
///
/// The last two axes are those of the matrices. One axis of heads may precede them, and axes of the
/// batch may precede the heads.
#[derive(Debug)]
pub(super) struct AttentionCore {
    /// The queries, `[…, head, query, channel]`.
    pub queries: ValueId,
    /// The transposed keys, `[…, head, channel, key]`.
    pub keys: ValueId,
    /// The values, `[…, head, key, channel]`.
    pub values: ValueId,
    /// The factor of the scores.
    pub scale: f32,
    /// The result, `[…, head, query, channel]`.
    pub output: ValueId,
    /// The nodes from the first product to the second.
    pub nodes: Vec<NodeId>,
    /// The shape of the queries.
    pub shape: Shape,
}

impl AttentionCore {
    /// Finds the attention that contains this Softmax.
    pub(super) fn find(analysis: &Analysis, softmax: NodeId) -> Result<Self, AttentionRefusal> {
        let graph = &analysis.graph;
        let at = analysis.at(softmax);
        let is_softmax = graph.is(softmax, "Softmax") && at.only_attributes(&["axis"]).is_ok();
        let rank = at.rank(0).map_err(|_| AttentionRefusal::NoAttention)?;
        if !is_softmax || at.softmax_axis(rank) != Ok(rank - 1) {
            return Err(AttentionRefusal::NoAttention);
        }
        let (mix, values, output) = weighted_values(analysis, softmax)?;
        let scores = scores(analysis, softmax)?;
        let (queries, keys) =
            operands(analysis, scores.product).ok_or(AttentionRefusal::NoAttention)?;
        let mut nodes = vec![scores.product];
        nodes.extend(scores.scaled);
        nodes.extend([softmax, mix]);
        let region = region_path(graph.node(softmax));
        let is_together = nodes
            .iter()
            .all(|&node| region_path(graph.node(node)) == region);
        let shape = analysis
            .facts
            .shape(queries)
            .ok_or(AttentionRefusal::UnknownShape)?;
        let core = AttentionCore {
            queries,
            keys,
            values,
            scale: scores.scale,
            output,
            nodes,
            shape,
        };
        core.check(analysis)?;
        is_together.then_some(core).ok_or(AttentionRefusal::Body)
    }

    /// The number of heads. `None` if it is unknown.
    pub(super) fn heads(&self) -> Option<usize> {
        match self.shape.len() {
            3 => Some(1),
            rank => extent(&self.shape[rank - 3]),
        }
    }

    /// Checks types and shapes: queries, keys and values must have the same batches and heads.
    fn check(&self, analysis: &Analysis) -> Result<(), AttentionRefusal> {
        let operands = [self.queries, self.keys, self.values];
        let types = operands.map(|value| analysis.facts.data_type(value));
        if types != [Some(DataType::Float); 3] {
            return Err(AttentionRefusal::Type);
        }
        let [queries, keys, values] = operands.map(|value| analysis.facts.shape(value));
        let shapes = [queries, keys, values]
            .into_iter()
            .collect::<Option<Vec<Shape>>>()
            .ok_or(AttentionRefusal::UnknownShape)?;
        let rank = self.shape.len();
        if rank < 3 || shapes.iter().any(|shape| shape.len() != rank) {
            return Err(AttentionRefusal::UnknownShape);
        }
        let differs = (0..rank - 2).any(|axis| {
            shapes[1..]
                .iter()
                .any(|shape| !same(&shape[axis], &shapes[0][axis]))
        });
        if differs {
            return Err(AttentionRefusal::Broadcast);
        }
        let (query, key) = (&shapes[0][rank - 2], &shapes[1][rank - 1]);
        // If there are as many queries as keys, an attention without keys has no queries either, so
        // its result is empty.
        let has_keys = extent(key).is_some_and(|keys| keys > 0) || same(query, key);
        has_keys.then_some(()).ok_or(AttentionRefusal::NoKeys)
    }
}

/// Returns the node that multiplies the result of a Softmax by the values, then the values, and the
/// result of the node.
fn weighted_values(
    analysis: &Analysis,
    softmax: NodeId,
) -> Result<(NodeId, ValueId, ValueId), AttentionRefusal> {
    let graph = &analysis.graph;
    let shares = graph
        .only_output(softmax)
        .ok_or(AttentionRefusal::NoAttention)?;
    let (mix, slot) = graph
        .only_reader(shares)
        .ok_or(AttentionRefusal::OtherReader)?;
    let is_mix = graph.is(mix, "MatMul") && slot == 0;
    let values = graph.input(mix, 1).filter(|_| is_mix);
    let output = graph.only_output(mix);
    values
        .zip(output)
        .map(|(values, output)| (mix, values, output))
        .ok_or(AttentionRefusal::NoAttention)
}

/// The scores of a Softmax: a product, which may be multiplied by a constant scalar.
struct Scores {
    product: NodeId,
    scale: f32,
    /// The Mul by the scale.
    scaled: Option<NodeId>,
}

fn scores(analysis: &Analysis, softmax: NodeId) -> Result<Scores, AttentionRefusal> {
    let graph = &analysis.graph;
    let scores = graph
        .input(softmax, 0)
        .ok_or(AttentionRefusal::NoAttention)?;
    let (maker, _) = graph
        .producer(scores)
        .ok_or(AttentionRefusal::NoAttention)?;
    graph
        .only_reader(scores)
        .ok_or(AttentionRefusal::OtherReader)?;
    if graph.is(maker, "MatMul") {
        let (scale, scaled) = (1.0, None);
        let product = maker;
        return Ok(Scores {
            product,
            scale,
            scaled,
        });
    }
    let Some((product, scale)) = multiplied(analysis, maker) else {
        return Err(kept(analysis, maker));
    };
    let narrow = scale as f32;
    if f64::from(narrow) != scale || narrow == 0.0 || !narrow.is_finite() {
        return Err(AttentionRefusal::Scale);
    }
    Ok(Scores {
        product,
        scale: narrow,
        scaled: Some(maker),
    })
}

/// The MatMul whose result a Mul multiplies by a constant scalar, and the scalar. `None` for
/// another node, or if the result has another reader.
fn multiplied(analysis: &Analysis, mul: NodeId) -> Option<(NodeId, f64)> {
    let graph = &analysis.graph;
    let &[Some(left), Some(right)] = graph.inputs(mul) else {
        return None;
    };
    let (value, factor) = match analysis.constants.is_constant(right) {
        true => (left, right),
        false => (right, left),
    };
    let (product, _) = graph.producer(value)?;
    let is_wider = analysis.facts.rank(factor)? > analysis.facts.rank(value)?;
    let is_scaled = graph.is(mul, "Mul") && graph.is(product, "MatMul") && !is_wider;
    graph.only_reader(value).filter(|_| is_scaled)?;
    Some((product, analysis.constants.scalar(factor)?))
}

/// The reason to keep an attention whose scores are neither a product nor a scaled product. The
/// reason is `NoAttention` if no product of two varying values is found before the scores.
fn kept(analysis: &Analysis, mut node: NodeId) -> AttentionRefusal {
    const REACH: usize = 8;
    let graph = &analysis.graph;
    let mut reason = AttentionRefusal::NoAttention;
    for _ in 0..REACH {
        if graph.is(node, "MatMul") {
            return match operands(analysis, node) {
                Some(_) => reason,
                None => AttentionRefusal::NoAttention,
            };
        }
        reason = match graph.op(node) {
            Some("Add" | "Where") => AttentionRefusal::Bias,
            Some("Cast") => AttentionRefusal::Type,
            _ if reason == AttentionRefusal::NoAttention && !graph.is_movement(node) => {
                AttentionRefusal::Function
            }
            _ => reason,
        };
        let varying = graph.inputs(node).iter().flatten().find_map(|&value| {
            let is_score =
                !analysis.constants.is_constant(value) && analysis.facts.rank(value) >= Some(3);
            graph.producer(value).filter(|_| is_score)
        });
        let Some((maker, _)) = varying else {
            break;
        };
        node = maker;
    }
    AttentionRefusal::NoAttention
}

/// The operands of a matrix product, if neither of them is constant.
fn operands(analysis: &Analysis, product: NodeId) -> Option<(ValueId, ValueId)> {
    let graph = &analysis.graph;
    let &[Some(left), Some(right)] = graph.inputs(product) else {
        return None;
    };
    let varies = [left, right]
        .iter()
        .all(|&value| !analysis.constants.is_constant(value));
    let is_product = graph.category(product) == Some(Category::MatrixProduct);
    (varies && is_product).then_some((left, right))
}
