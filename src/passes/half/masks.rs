//! Constants of masks, which half does not hold: `−3.4e38` is `−∞` in float16, and two of them add up to that in float32.
//!
//! A number that only a softmax sees, behind sums, products and selections, stands for "far below all others". Any
//! number that exponentiation makes 0 of does as well. `−∞` stays.

use crate::analysis::Analysis;
use crate::hash::HashSet;
use crate::ir::{Reader, ValueId};

/// Operators that a mask passes on its way to a softmax.
const PASSED: &[&str] = &[
    "Add",
    "Cast",
    "Concat",
    "Expand",
    "Gather",
    "Identity",
    "Mul",
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

/// Operators that see no difference between numbers far below all others.
const ENDS: &[&str] = &["Softmax", "LogSoftmax"];

/// The slot of the mask of an attention operator.
const ATTENTION_MASK: usize = 3;

/// Whether all that is made of a value ends in a softmax.
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
