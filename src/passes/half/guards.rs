//! Finds operators that a small constant keeps away from 0, such as a logarithm of `x + 1e-9` or a
//! quotient by `max(x, 1e-12)`. In half the constant would be 0, and the result infinite or NaN.

use crate::analysis::Analysis;
use crate::hash::HashSet;
use crate::ir::{NodeId, Reader, ValueId};
use crate::onnx::tensor::{DataType, rounded};

/// Operators whose constant operand may keep a result away from 0.
const GUARDS: &[&str] = &["Add", "Clip", "Max", "Sub", "Where"];

/// Operators whose result is not 0 if no element of the first input is.
const PASSED: &[&str] = &[
    "Abs",
    "Expand",
    "Identity",
    "Neg",
    "ReduceMax",
    "ReduceMean",
    "ReduceSum",
    "Reshape",
    "Slice",
    "Sqrt",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
];

/// Operators that have no finite result at 0, with the input slot of the operand.
const SINGULAR: &[(&str, usize)] = &[("Div", 1), ("Log", 0), ("Pow", 0), ("Reciprocal", 0)];

/// The largest constant that is read to decide, in elements.
const MOST: usize = 4096;

/// The nodes from each small constant that half rounds to 0 to the operators that it keeps away from
/// 0, both included.
pub(super) fn guarded(analysis: &Analysis, to: DataType) -> HashSet<NodeId> {
    let graph = &analysis.graph;
    let mut found = HashSet::default();
    for &node in graph.order() {
        let is_guard = graph.op(node).is_some_and(|op| GUARDS.contains(&op));
        let mut operands = graph.inputs(node).iter().flatten();
        if is_guard
            && operands.any(|&operand| vanishes(analysis, operand, to))
            && let Some(output) = graph.only_output(node)
            && let Some(path) = path_to_singular(analysis, output)
        {
            found.insert(node);
            found.extend(path);
        }
    }
    found
}

/// Whether a value is a constant that is not 0, and whose elements all become 0 in half.
fn vanishes(analysis: &Analysis, value: ValueId, to: DataType) -> bool {
    let constants = &analysis.constants;
    let is_small = constants.len(value).is_some_and(|len| len <= MOST);
    let is_float = analysis.facts.data_type(value) == Some(DataType::Float);
    if !constants.is_constant(value) || !is_small || !is_float {
        return false;
    }
    let Ok(numbers) = constants.read(value) else {
        return false;
    };
    numbers.iter().any(|&number| number != 0.0)
        && numbers.iter().all(|&number| rounded(to, number) == 0.0)
}

/// The nodes between a value and the operators that have no finite result at 0, with these
/// operators. `None` if no such operator follows.
fn path_to_singular(analysis: &Analysis, value: ValueId) -> Option<Vec<NodeId>> {
    let graph = &analysis.graph;
    let (mut path, mut waiting, mut reaches) = (vec![], vec![value], false);
    while let Some(value) = waiting.pop() {
        for reader in graph.readers(value) {
            let Reader::Node { node, input } = *reader else {
                continue;
            };
            let Some(op) = graph.op(node) else { continue };
            if SINGULAR.contains(&(op, input)) {
                reaches = true;
                path.push(node);
            } else if PASSED.contains(&op) && input == 0 && !path.contains(&node) {
                path.push(node);
                waiting.extend(graph.only_output(node));
            }
        }
    }
    reaches.then_some(path)
}
