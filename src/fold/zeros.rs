//! Zeros that are made for the batch at hand, such as those that a relative shift puts before its scores: they are the same
//! in every scale, so nothing has to be done where one is wanted on them, whoever reads them besides.

use super::draft::Draft;
use crate::graph::ValueId;
use crate::onnx::external::Externals;
use crate::onnx::tensor::read_f64;

/// Whether a value is zeros, and stays so.
pub fn is_zeros(draft: &Draft, value: ValueId) -> bool {
    let Some((node, _)) = draft.graph.producer(value).filter(|&(node, _)| !draft.is_touched(node)) else {
        return false;
    };
    let at = draft.at(node);
    match draft.graph.domain_op(node) {
        // One number is read, and no table.
        ("", "Expand") => {
            let is_one = at.input(0).is_ok_and(|input| draft.constants.len(input) == Some(1));
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
