//! Reads several movements in a row as one movement.
//!
//! MobileViT splits its tokens into patches of pixels by a Reshape to `[b·C·h, w, p, q]` and a
//! Transpose. The next Reshape separates channels and batch again. The affine cannot be written on
//! the values in between, where channels share an axis with the batch. On the last value, the
//! affine varies along one axis again.

use crate::affine::Affine;
use crate::affine::propagate::overlay::GraphOverlay;
use crate::analysis::axis_factors::LayoutMap;
use crate::ir::ValueId;

/// The largest number of movements in a row that are followed.
const LONGEST: usize = 16;

/// Follows movements to the first value on which each axis along which the affine varies is a
/// separate axis again. Returns this value and the affine on it.
///
/// `None` if there is no such value, or if a value on the path to it has several readers.
pub(crate) fn across(
    overlay: &GraphOverlay,
    value: ValueId,
    affine: &Affine,
) -> Option<(ValueId, Affine)> {
    let graph = overlay.graph;
    let varying = affine.axes();
    let mut trace = LayoutMap::new(&overlay.facts.shape(value)?);
    let mut value = value;
    for _ in 0..LONGEST {
        let (node, 0) = overlay.only_reader(value)? else {
            return None;
        };
        let moved = graph.only_output(node).filter(|_| overlay.is_free(node))?;
        let shape = overlay.facts.shape(moved)?;
        trace.follow(graph.node(node), &shape)?;
        value = moved;
        if let Some(places) = trace.places(&varying) {
            return Some((value, affine.placed(&varying, &places, shape.len())?));
        }
    }
    None
}
