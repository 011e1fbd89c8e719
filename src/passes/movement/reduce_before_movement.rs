//! Reduces a value before a movement that only rearranges the reduced places.
//!
//! Before: `ReduceMean(Reshape(x))` over both axes of places in `[B, 7, 7, C]`, with x in
//! `[B, 49, C]`. After: `ReduceMean(x)` over the axis of 49 places. A mean or a sum does not depend
//! on the arrangement of the places that it reduces. Without the movement, a linear layer
//! before the mean can move after it (`pooling` of placement).

use crate::affine::materialize::{Edit, written_anew};
use crate::analysis::Analysis;
use crate::ir::NodeId;
use crate::ir::builder::Maker;
use crate::ops::axes::axes_before;

/// The edits that remove movements before reductions.
pub(crate) fn edits(analysis: &Analysis) -> Vec<Edit> {
    written_anew(analysis, |node, _| reduced_before(analysis, node))
}

/// Writes a mean or a sum of the input of the movement before it. `None` if the movement mixes reduced
/// places with other places, or if its result has another reader.
fn reduced_before<'m>(analysis: &'m Analysis, node: NodeId) -> Option<Maker<'m>> {
    let graph = &analysis.graph;
    let at = analysis.at(node);
    let ("", op @ ("ReduceMean" | "ReduceSum")) = graph.domain_op(node) else {
        return None;
    };
    at.only_attributes(&["axes", "keepdims", "noop_with_empty_axes"])
        .ok()?;
    let (axes, keeps_axes) = at.reduction(at.rank(0).ok()?).ok()?;
    let moved = at.input(0).ok()?;
    graph.only_reader(moved)?;
    let (movement, _) = graph.producer(moved)?;
    let before = axes_before(&analysis.at(movement), &axes).filter(|before| !before.is_empty())?;
    let value = graph.value_name(graph.input(movement, 0)?);
    let mut maker = Maker::new(graph, node);
    let keeps_places = keeps_axes && before == axes;
    let reduced = maker.reduce(op, value, &listed(&before), keeps_places);
    if keeps_axes && !keeps_places {
        maker.unsqueeze(&reduced, &listed(&axes));
    }
    Some(maker)
}

fn listed(axes: &[usize]) -> Vec<i64> {
    axes.iter().map(|&axis| axis as i64).collect()
}
