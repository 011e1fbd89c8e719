//! Zeros that are made for the batch at hand, such as those that a relative shift puts before its scores: they are the same
//! in every scale, so nothing has to be done where one is wanted on them, whoever reads them besides.

use crate::affine::propagate::overlay::GraphOverlay;
use crate::analysis::uniform::repeats_zero;
use crate::ir::ValueId;

/// Whether a value is zeros, and stays so.
pub fn is_zeros(overlay: &GraphOverlay, value: ValueId) -> bool {
    let made_by = overlay
        .graph
        .producer(value)
        .filter(|&(node, _)| !overlay.is_touched(node));
    made_by.is_some_and(|(node, _)| repeats_zero(&overlay.at(node)))
}
