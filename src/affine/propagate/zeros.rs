//! Zeros that are created for each batch, such as the zeros that a relative shift puts before its
//! scores. No scale changes zeros, so they count as carrying any scale, even if other nodes also
//! read them.

use crate::affine::propagate::overlay::GraphOverlay;
use crate::analysis::uniform::repeats_zero;
use crate::ir::ValueId;

/// Whether all elements of a value are zero, and stay zero after the planned folds.
pub(crate) fn is_zeros(overlay: &GraphOverlay, value: ValueId) -> bool {
    let made_by = overlay
        .graph
        .producer(value)
        .filter(|&(node, _)| !overlay.is_touched(node));
    made_by.is_some_and(|(node, _)| repeats_zero(&overlay.at(node)))
}
