//! Powers of two at quantized values. A code has no unit, so the scale of the codes carries the
//! power.

use crate::affine::recognize::View;
use crate::affine::rule::Side;
use crate::analysis::Analysis;
use crate::analysis::node_view::At;
use crate::ir::{NodeId, Reader, ValueId};
use crate::onnx::operator::{Category, dequantizes};

/// The value whose quantization and dequantization, with constant scales, give `value`. `None` for
/// any other value.
pub(super) fn quantized_from(analysis: &Analysis, value: ValueId) -> Option<ValueId> {
    let graph = &analysis.graph;
    let (dequantize, _) = graph.producer(value)?;
    let (quantize, _) = graph.producer(graph.input(dequantize, 0)?)?;
    let is_pair = is_scaled(analysis, dequantize, "DequantizeLinear")
        && is_scaled(analysis, quantize, "QuantizeLinear");
    graph.input(quantize, 0).filter(|_| is_pair)
}

/// The values that are dequantized from the codes of `reader`, if `reader` is a QuantizeLinear.
/// `None` for other readers, or if an operator other than DequantizeLinear reads the codes.
pub(super) fn dequantized_by(analysis: &Analysis, reader: Reader) -> Option<Vec<ValueId>> {
    let graph = &analysis.graph;
    let Reader::Node { node, input: 0 } = reader else {
        return None;
    };
    if !is_scaled(analysis, node, "QuantizeLinear") {
        return None;
    }
    let readers = graph.readers(graph.only_output(node)?).iter();
    let values = readers.map(|reader| match *reader {
        Reader::Node { node, input: 0 } if is_scaled(analysis, node, "DequantizeLinear") => {
            graph.only_output(node)
        }
        _ => None,
    });
    values.collect()
}

/// The quantized values whose squares are averaged along one axis, each with this axis.
///
/// A quantizer that works operator by operator quantizes the parts of an RMS normalization too.
/// Such parts do not form a normalizer that could fold, but a power of two passes all of them.
pub(super) fn averaged_squares(view: &View) -> Vec<(ValueId, usize)> {
    let nodes = view.graph.order().iter();
    nodes
        .filter_map(|&node| averaged_square(view, node))
        .collect()
}

fn averaged_square(view: &View, node: NodeId) -> Option<(ValueId, usize)> {
    let graph = view.graph;
    let squares = graph
        .input(node, 0)
        .filter(|_| graph.is(node, "ReduceMean"))?;
    let square = view.made_by(squares, &["Mul", "Pow"])?;
    let [value, other] = [0, 1].map(|slot| graph.input(square, slot));
    let (value, other) = (value?, other?);
    let is_square = match graph.op(square)? {
        "Mul" => other == value,
        _ => view.scalar(other) == Some(2.0),
    };
    let rank = view.facts.rank(squares)?;
    let (axes, _) = view.at(node).reduction(rank).ok()?;
    let &[axis] = &axes[..] else { return None };
    let is_quantized = quantized_from(view.analysis, value).is_some();
    (is_square && is_quantized).then_some((value, axis))
}

/// Whether a node is the operator `op` of ONNX, with constant scales.
fn is_scaled(analysis: &Analysis, node: NodeId, op: &str) -> bool {
    analysis.graph.is(node, op) && analysis.at(node).is_constant(1)
}

/// The nodes and sides that absorb a power instead of the quantized constants of a node. Empty if,
/// for one of the quantized constants, nothing can absorb the power. `None` if the node has no
/// quantized constant on that side.
pub(super) fn carriers(at: &At, side: Side) -> Option<Vec<(NodeId, Side)>> {
    let constant = match side {
        Side::Constant(slot) => slot,
        _ => at.constant_operand().filter(|_| is_layer(at))?,
    };
    if !at.is_dequantized(constant) {
        return None;
    }
    let mut carriers = vec![dequantizer(at, constant)];
    if side == Side::Result && at.graph.input(at.node, BIAS).is_some() {
        carriers.push(match at.is_constant(BIAS) {
            true if at.is_dequantized(BIAS) => dequantizer(at, BIAS),
            true => Some((at.node, Side::Constant(BIAS))),
            false => None,
        });
    }
    let all: Option<Vec<_>> = carriers.into_iter().collect();
    Some(all.unwrap_or_default())
}

/// The input that holds the bias of a Conv or a Gemm.
const BIAS: usize = 2;

fn is_layer(at: &At) -> bool {
    let category = at.graph.category(at.node);
    category.is_some_and(Category::is_product)
}

/// The operator on codes that computes an input, possibly followed by movements. `None` if its
/// result, or the result of one of the movements, has other readers.
fn dequantizer(at: &At, slot: usize) -> Option<(NodeId, Side)> {
    let graph = at.graph;
    let mut value = graph.input(at.node, slot)?;
    while graph.only_reader(value).is_some() {
        let (node, _) = graph.producer(value)?;
        if dequantizes(graph.domain_op(node)) {
            return Some((node, Side::Result));
        }
        if graph.category(node) != Some(Category::Movement) {
            return None;
        }
        value = graph.input(node, 0)?;
    }
    None
}

/// If the node computes `scale·constant` with the scale of a dynamic quantization, the value
/// `Cast(codes·codes)·(scale·constant)` that reads its result.
pub(super) fn product_of_codes(analysis: &Analysis, node: NodeId) -> Option<ValueId> {
    let graph = &analysis.graph;
    let constant = analysis.at(node).constant_operand()?;
    let (quantize, slot) = graph.producer(graph.input(node, 1 - constant.min(1))?)?;
    let is_scale =
        graph.is(node, "Mul") && graph.is(quantize, "DynamicQuantizeLinear") && slot == 1;
    let (product, slot) = graph
        .only_reader(graph.only_output(node)?)
        .filter(|_| is_scale)?;
    let (cast, _) = graph.producer(graph.input(product, 1 - slot.min(1))?)?;
    let (integers, _) = graph.producer(graph.input(cast, 0)?)?;
    let is_of_codes = ["ConvInteger", "MatMulInteger"]
        .into_iter()
        .any(|op| graph.is(integers, op));
    let is_product = graph.is(product, "Mul") && graph.is(cast, "Cast") && is_of_codes;
    graph.only_output(product).filter(|_| is_product)
}
