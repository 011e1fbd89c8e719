//! Replaces computed extents of a Reshape that the Reshape can infer: `0` copies an extent of the
//! input, and one `-1` takes the remaining elements.

use crate::analysis::Analysis;
use crate::hash::HashSet;
use crate::ir::NodeId;
use crate::ir::editor::Editor;
use crate::onnx::tensor;
use crate::shape::facts::{extent, same};

/// Finds Reshapes whose computed target can become a constant, with that constant. Nodes of `sites`
/// stay.
pub(super) fn find(analysis: &Analysis, sites: &HashSet<NodeId>) -> Vec<(NodeId, Vec<i64>)> {
    let graph = &analysis.graph;
    let nodes = graph
        .order()
        .iter()
        .filter(|&&node| graph.is(node, "Reshape") && !sites.contains(&node));
    nodes
        .filter_map(|&node| Some((node, written(analysis, node)?)))
        .collect()
}

/// Lets each Reshape read its constant target.
pub(super) fn write(found: Vec<(NodeId, Vec<i64>)>, analysis: &Analysis, editor: &mut Editor) {
    for (node, extents) in found {
        let wish = format!("{}_shape", analysis.graph.name(node));
        let name = editor.add_constant(&wish, tensor::make_i64(&wish, &extents));
        editor.set_input(node, 1, &name);
        // With `allowzero`, a 0 would be an extent rather than a copy.
        editor.clear_attribute(node, "allowzero");
    }
}

fn count(extents: &[i64], number: i64) -> usize {
    extents.iter().filter(|&&extent| extent == number).count()
}

fn written(analysis: &Analysis, node: NodeId) -> Option<Vec<i64>> {
    let Analysis {
        graph,
        facts,
        constants,
        ..
    } = analysis;
    let [Some(value), Some(shape)] = graph.inputs(node) else {
        return None;
    };
    if constants.is_constant(*shape) || analysis.at(node).only_attributes(&["allowzero"]).is_err() {
        return None;
    }
    let copies_at_zero = analysis.at(node).attr("allowzero", 0) == Ok(0);
    let (before, after) = (facts.shape(*value)?, facts.shape(graph.output(node, 0)?)?);
    let mut rest = false;
    let target = facts.extents(*shape)?;
    let finds_rest = target.iter().position(|dim| {
        dim.as_ref()
            .is_some_and(|dim| dim.to_i64().ok() == Some(-1))
    });
    let extents: Option<Vec<i64>> = target
        .into_iter()
        .enumerate()
        .map(|(axis, dim)| {
            // A `-1` in the original target means the extent that follows from the other extents,
            // so the extent of the result is taken instead.
            let is_rest = finds_rest == Some(axis);
            let dim = if is_rest {
                after.get(axis).cloned().flatten()
            } else {
                dim
            };
            match extent(&dim) {
                Some(0) if copies_at_zero && !is_rest => Some(0),
                // In the target of a Reshape, 0 and -1 do not stand for themselves.
                Some(extent) => i64::try_from(extent).ok().filter(|&extent| extent > 0),
                None if dim.as_ref().is_some_and(|dim| dim.to_i64().is_ok()) => None,
                None if before.get(axis).is_some_and(|own| same(own, &dim)) => Some(0),
                None if (is_rest || dim.is_some()) && !std::mem::replace(&mut rest, true) => {
                    Some(-1)
                }
                None => None,
            }
        })
        .collect();
    let mut extents = extents?;
    match (count(&extents, 0), count(&extents, -1)) {
        // A single 0 becomes -1, because onnxruntime keeps a buffer for each shape that it infers
        // from a 0. With -1, onnxruntime reuses memory that is still in the caches.
        (1, 0) => extents
            .iter_mut()
            .filter(|extent| **extent == 0)
            .for_each(|extent| *extent = -1),
        // Next to a 0, `-1` is undefined if there are no elements. So it is written only where the
        // original target has it.
        (1.., 1) if extents.iter().position(|&extent| extent == -1) != finds_rest => return None,
        _ => {}
    }
    Some(extents)
}
