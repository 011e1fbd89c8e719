//! Estimates the cost of evaluating a node before tract evaluates it.

use tract_onnx::prelude::{DatumType, InferenceFact};
use tract_onnx::tract_hir::infer::Factoid;

use crate::onnx::proto::NodeProto;
use crate::shape::encode::{only, rank};
use crate::shape::guard::{element_count, extents, ints};

/// The maximum number of bytes of the results of a node is `LARGEST_RESULT`, or `TIMES_THE_INPUTS`
/// times the bytes of its inputs if that is more.
const LARGEST_RESULT: u64 = 1 << 26;
const TIMES_THE_INPUTS: u64 = 8;

/// The maximum number of multiplications when one node is evaluated.
const WORK: f64 = (1_u64 << 31) as f64;

/// The maximum number of multiplications of one run of a model is `RUN`, or `TIMES_EACH_BYTE` for
/// each byte of its weights if that is more. The factor is large because a weight of a convolution
/// is multiplied with every pixel of an image.
const RUN: f64 = (1_u64 << 32) as f64;
const TIMES_EACH_BYTE: f64 = (1_u64 << 16) as f64;

/// The memory of a Resize per element of its result, relative to other operators. A Resize stores
/// the neighbours of each element with their weights.
const RESIZE_OVERHEAD: u64 = 16;

/// Operators that tract must not evaluate, because their cost cannot be derived from the shapes of
/// their inputs and outputs.
const UNEVALUATED: &[&str] = &[
    "Attention",
    "BlackmanWindow",
    "DFT",
    "GRU",
    "GatherBlockQuantized",
    "GroupQueryAttention",
    "HammingWindow",
    "HannWindow",
    "LSTM",
    "MatMulNBits",
    "MelWeightMatrix",
    "MultiHeadAttention",
    "NonMaxSuppression",
    "RNN",
    "STFT",
];

/// The cost of evaluating a node.
pub(crate) enum Cost {
    /// The bytes of its results, plus an eighth of the bytes of its inputs.
    Bytes(u64),
    /// More bytes or multiplications than the limits allow. Also the cost of a Pad that crops,
    /// because tract cannot evaluate it.
    TooMuch,
    /// Unknown.
    Unknown,
}

/// The cost of evaluating a node, from the facts about its inputs and outputs.
pub(crate) fn evaluation(
    node: &NodeProto,
    inputs: &[&InferenceFact],
    outputs: &[InferenceFact],
) -> Cost {
    if has_negative_pads(node, inputs) {
        return Cost::TooMuch;
    }
    cost(node, inputs, outputs).unwrap_or(Cost::Unknown)
}

fn cost(node: &NodeProto, inputs: &[&InferenceFact], outputs: &[InferenceFact]) -> Option<Cost> {
    let op = node.op_type();
    if UNEVALUATED.contains(&op) || node.domain() == "ai.onnx.ml" {
        return None;
    }
    let input_counts = element_counts(inputs)?;
    let output_counts = outputs
        .iter()
        .map(|output| output_count(op, inputs, &input_counts, output))
        .collect::<Option<Vec<u64>>>()?;
    let largest = output_counts.iter().copied().max().unwrap_or(0);
    let work = multiplications(node, inputs, &input_counts, largest)?;

    let bytes_read = inputs
        .iter()
        .zip(&input_counts)
        .map(|(fact, &count)| byte_size(fact, count))
        .sum::<u64>();
    let result_bytes = outputs
        .iter()
        .zip(&output_counts)
        .map(|(fact, &count)| byte_size(fact, count))
        .fold(0, u64::saturating_add);
    let bytes_made = if op == "Resize" {
        result_bytes.saturating_mul(RESIZE_OVERHEAD)
    } else {
        result_bytes
    };
    let largest_result = bytes_read
        .saturating_mul(TIMES_THE_INPUTS)
        .max(LARGEST_RESULT);
    if work > WORK || bytes_made > largest_result {
        return Some(Cost::TooMuch);
    }
    Some(Cost::Bytes(bytes_read / 8 + bytes_made))
}

fn element_counts(facts: &[&InferenceFact]) -> Option<Vec<u64>> {
    facts.iter().map(|fact| element_count(fact)).collect()
}

/// An upper bound for the number of elements of an output.
fn output_count(
    op: &str,
    inputs: &[&InferenceFact],
    input_counts: &[u64],
    output: &InferenceFact,
) -> Option<u64> {
    match op {
        // The number of selected elements is known only in a run, and is at most the number of
        // elements of the inputs. A NonZero returns an index along each axis for each selected
        // element.
        "NonZero" | "Compress" => {
            let read = input_counts.iter().sum::<u64>();
            Some(read.saturating_mul(rank(inputs[0])?.max(1) as u64))
        }
        "Range" => range_length(inputs),
        _ => element_count(output),
    }
}

fn byte_size(fact: &InferenceFact, count: u64) -> u64 {
    let element = fact.datum_type.concretize().unwrap_or(DatumType::I64);
    count.saturating_mul(element.size_of() as u64)
}

/// The number of multiplications or comparable operations of a node whose largest result has
/// `largest` elements.
fn multiplications(
    node: &NodeProto,
    inputs: &[&InferenceFact],
    counts: &[u64],
    largest: u64,
) -> Option<f64> {
    let [first, second] = [0, 1].map(|slot| counts.get(slot).copied().unwrap_or(1) as f64);
    let largest = largest as f64;
    let op = node.op_type();
    Some(match op {
        "MatMul" | "Gemm" | "MatMulInteger" | "QLinearMatMul" | "FusedMatMul" => {
            (first * second * largest).sqrt()
        }
        "Einsum" => counts.iter().map(|&count| count as f64).product(),
        "Conv" | "ConvInteger" | "QLinearConv" | "ConvTranspose" => {
            let weight = if op == "QLinearConv" { 3 } else { 1 };
            let weight_extents = extents(inputs.get(weight)?)?;
            let rows = weight_extents.first().copied().unwrap_or(1).max(1);
            counts[weight] as f64 / rows as f64 * first.max(largest)
        }
        _ => largest * window_size(node),
    })
}

/// The number of multiplications of a node in a run; 0 if its shapes are unknown.
pub(crate) fn work(node: &NodeProto, inputs: &[&InferenceFact], outputs: &[&InferenceFact]) -> f64 {
    inferred_work(node, inputs, outputs).unwrap_or(0.0)
}

fn inferred_work(
    node: &NodeProto,
    inputs: &[&InferenceFact],
    outputs: &[&InferenceFact],
) -> Option<f64> {
    let largest = element_counts(outputs)?.into_iter().max()?;
    multiplications(node, inputs, &element_counts(inputs)?, largest)
}

/// Whether a run of a model with `weight_bytes` bytes of weights may take `work` multiplications.
pub(crate) fn is_worth(work: f64, weight_bytes: u64) -> bool {
    work <= RUN.max(weight_bytes as f64 * TIMES_EACH_BYTE)
}

/// The number of elements in the window of an operator with a `kernel_shape` or a `size`; 1 for
/// other operators.
fn window_size(node: &NodeProto) -> f64 {
    let kernel = node
        .attr_ints("kernel_shape")
        .ok()
        .flatten()
        .unwrap_or_default();
    let size = node.attr_i("size").ok().flatten().unwrap_or(1);
    kernel
        .iter()
        .chain([&size])
        .map(|&extent| extent.unsigned_abs() as f64)
        .product()
}

/// Whether a Pad crops, or may crop. tract treats a negative padding as a huge positive one.
fn has_negative_pads(node: &NodeProto, inputs: &[&InferenceFact]) -> bool {
    if node.op_type() != "Pad" {
        return false;
    }
    let by_attribute = node.attr_ints("pads").ok().flatten().map(<[i64]>::to_vec);
    let pads = by_attribute.or_else(|| ints(inputs.get(1)?));
    pads.is_none_or(|pads| pads.iter().any(|&pad| pad < 0))
}

/// The number of elements of a Range.
fn range_length(inputs: &[&InferenceFact]) -> Option<u64> {
    let start = number(inputs.first()?)?;
    let limit = number(inputs.get(1)?)?;
    let step = number(inputs.get(2)?)?;
    let length = ((limit - start) / step).ceil();
    length.is_finite().then_some(length.max(0.0) as u64)
}

fn number(fact: &InferenceFact) -> Option<f64> {
    only(&*fact.value.concretize()?)
}

#[cfg(test)]
mod tests {
    use tract_onnx::prelude::{tensor0, tensor1, tensor2};

    use super::*;
    use crate::shape::guard::testing::{node, shaped};

    fn bytes(op: &str, inputs: &[&InferenceFact], output: InferenceFact) -> Option<u64> {
        match evaluation(&node(op, &[]), inputs, &[output]) {
            Cost::Bytes(bytes) => Some(bytes),
            Cost::TooMuch | Cost::Unknown => None,
        }
    }

    #[test]
    fn evaluation_cost_is_bounded_before_evaluating() {
        let (small, large) = (shaped(&[16, 16]), shaped(&[1 << 13, 1 << 13]));
        assert_eq!(
            bytes("Relu", &[&small], small.clone()),
            Some(16 * 16 * 4 * 9 / 8)
        );
        assert_eq!(bytes("Expand", &[&small], large.clone()), None);
        assert_eq!(
            bytes("Transpose", &[&large], large.clone()),
            Some((9 << 28) / 8)
        );
        assert_eq!(bytes("MatMul", &[&large, &large], large.clone()), None);
        assert_eq!(bytes("LSTM", &[&small], small.clone()), None);
        let down = [1 << 34, 0, -1].map(|number: i64| InferenceFact::from(tensor0(number)));
        assert_eq!(bytes("Range", &down.each_ref(), shaped(&[1])), None);
        let row = InferenceFact::from(tensor2(&[[1_f32, 2.0]]));
        let pads = InferenceFact::from(tensor1(&[0_i64, 0, 0, -1]));
        assert_eq!(bytes("Pad", &[&row, &pads], shaped(&[1, 1])), None);
    }
}
