//! Moves a Transpose before an Expand, so that it moves fewer elements.

use crate::affine::materialize::{Edit, written_anew};
use crate::analysis::Analysis;
use crate::ir::NodeId;
use crate::ir::builder::Maker;
use crate::ir::regions::region_path;
use crate::shape::facts::same_shape;

/// The edits that move each such Transpose.
pub(crate) fn edits(analysis: &Analysis) -> Vec<Edit> {
    written_anew(analysis, |node, _| transposed_first(analysis, node))
}

/// Writes the Transpose of an Expand as the Expand of a Transpose. `None` if the node is another
/// operator, if another node reads the Expand, or if the Expand adds axes or has no effect.
fn transposed_first<'m>(analysis: &'m Analysis, node: NodeId) -> Option<Maker<'m>> {
    let Analysis { graph, facts, .. } = analysis;
    let transpose = analysis.at(node);
    let is_plain = graph.is(node, "Transpose") && transpose.only_attributes(&["perm"]).is_ok();
    let wide = transpose.input(0).ok().filter(|_| is_plain)?;
    let (expands, _) = graph.producer(wide)?;
    let is_own = graph.is(expands, "Expand")
        && graph.only_reader(wide).is_some()
        && region_path(graph.node(expands)) == region_path(graph.node(node));
    let expand = analysis.at(expands);
    let small = expand.input(0).ok().filter(|_| is_own)?;
    let (before, behind) = (facts.shape(small)?, facts.shape(wide)?);
    let target = expand.ints(1).ok()??;
    let has_all_axes = before.len() == behind.len() && target.len() == behind.len();
    if !has_all_axes || same_shape(&before, &behind) {
        return None;
    }
    let permutation = transpose.permutation(behind.len()).ok()?;
    let order: Vec<i64> = permutation.iter().map(|&axis| axis as i64).collect();
    let extents: Vec<i64> = permutation.iter().map(|&axis| target[axis]).collect();
    let mut maker = Maker::new(graph, node);
    let moved = maker.transpose(graph.value_name(small), &order);
    maker.expand(&moved, &extents);
    Some(maker)
}
