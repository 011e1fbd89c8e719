//! Zeros that are made for the extents at hand.

use super::ValueId;
use super::analysis::Analysis;
use super::at::At;
use crate::onnx::external::Externals;
use crate::onnx::operator::Category;
use crate::onnx::tensor::read_f64;

/// How many operators may lie between zeros and who reads them.
const DEPTH: usize = 8;

/// Whether a node repeats one number, which is 0.
pub fn repeats_zero(at: &At) -> bool {
    match at.graph.domain_op(at.node) {
        // One number is read, and no table.
        ("", "Expand") => {
            let is_one = at.input(0).is_ok_and(|input| at.constants.len(input) == Some(1));
            is_one && at.numbers(0).is_ok_and(|numbers| numbers.are_all(0.0))
        }
        ("", "ConstantOfShape") => match at.proto().attr_t("value") {
            Ok(Some(filler)) => read_f64(filler, &Externals::none())
                .is_ok_and(|numbers| numbers.iter().all(|&number| number == 0.0)),
            Ok(None) => true,
            Err(_) => false,
        },
        _ => false,
    }
}

/// Whether each element of a value is 0, whatever its extents are: a constant, or zeros that are moved, picked or given
/// another type.
pub fn are_zeros(known: &Analysis, mut value: ValueId) -> bool {
    let Analysis { graph, constants, .. } = known;
    for _ in 0..DEPTH {
        if constants.is_constant(value) {
            return constants.numbers(value).is_ok_and(|numbers| numbers.are_all(0.0));
        }
        let Some((node, _)) = graph.producer(value) else { return false };
        if repeats_zero(&known.at(node)) {
            return true;
        }
        let goes_on = match graph.category(node) {
            Some(Category::Movement) => true,
            _ => matches!(graph.domain_op(node), ("", "Cast" | "Expand" | "Gather" | "Slice" | "Split")),
        };
        match graph.input(node, 0).filter(|_| goes_on) {
            Some(input) => value = input,
            None => return false,
        }
    }
    false
}
