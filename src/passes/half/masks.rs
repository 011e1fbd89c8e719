//! Recognizes constants that are masks, and clamps them to the range of half. A mask often has the
//! element `−3.4e38`, which would become `−∞` in float16.
//!
//! If a large negative number reaches only a softmax, through sums, products and selections, it
//! means "far below all other scores". Any number whose exponential is 0 has the same effect, except
//! in a row without other scores. Elements that are `−∞` stay unchanged.

use crate::analysis::Analysis;
use crate::hash::HashSet;
use crate::ir::{Reader, ValueId};
use crate::passes::half::HalfType;

/// Operators that may be between a mask and its softmax.
const PASSED: &[&str] = &[
    "Add",
    "Cast",
    "Concat",
    "Expand",
    "Gather",
    "Identity",
    "Max",
    "Mul",
    "ReduceMax",
    "Reshape",
    "ScatterND",
    "Slice",
    "Squeeze",
    "Sub",
    "Tile",
    "Transpose",
    "Trilu",
    "Unsqueeze",
    "Where",
];

/// Operators whose result does not depend on how far a score is below all others.
const ENDS: &[&str] = &["Softmax", "LogSoftmax"];

/// The input slot of the mask of an Attention operator.
const ATTENTION_MASK: usize = 3;

/// An element of a mask, clamped to the limit of the type. Infinite elements stay.
pub(super) fn clamp_mask(number: f64, to: HalfType) -> f64 {
    let limit = to.mask_limit();
    if number.is_finite() && number.abs() > limit {
        limit.copysign(number)
    } else {
        number
    }
}

/// Whether a value is a mask: every value that is computed from it ends in a softmax or in the mask
/// of an Attention.
pub(crate) fn is_mask(analysis: &Analysis, value: ValueId) -> bool {
    let graph = &analysis.graph;
    let (mut seen, mut waiting, mut ends) = (HashSet::default(), vec![value], 0);
    while let Some(value) = waiting.pop() {
        if !seen.insert(value) {
            continue;
        }
        for reader in graph.readers(value) {
            let Reader::Node { node, input } = *reader else {
                return false;
            };
            let Some(op) = graph.op(node) else {
                return false;
            };
            let is_attention_mask = op == "Attention" && input == ATTENTION_MASK;
            if ENDS.contains(&op) || is_attention_mask {
                ends += 1;
            } else if op != "Shape" {
                let Some(output) = graph.only_output(node).filter(|_| PASSED.contains(&op)) else {
                    return false;
                };
                waiting.push(output);
            }
        }
    }
    ends > 0
}
