//! Replaces an If whose condition is constant by the branch that it takes.
//!
//! Exporters write an If when a trace does not determine whether an axis has extent 1. The
//! condition is constant once the extents are known. Nothing folds past an If that stays.

use crate::analysis::Analysis;
use crate::analysis::uniform;
use crate::hash::{HashMap, HashSet};
use crate::ir::editor::Editor;
use crate::ir::regions::{branch, move_to, region_path, region_paths_after};
use crate::ir::{Graph, NodeId, ValueId};
use crate::onnx::proto::GraphProto;

/// Ifs whose condition is a constant, each with the branch that it takes.
#[derive(Default)]
pub(super) struct TakenBranches {
    /// For each output of these Ifs: the end node of the If, the output, and the result of the
    /// taken branch that replaces it.
    results: Vec<(NodeId, ValueId, ValueId)>,
    /// The region path of each taken branch, mapped to the path of the enclosing region.
    around: HashMap<String, String>,
}

impl TakenBranches {
    /// Finds Ifs with a constant condition in a graph whose bodies are flattened.
    pub(super) fn find(analysis: &Analysis) -> Self {
        let graph = &analysis.graph;
        let mut found = Self::default();
        // Before IR version 4, each initializer of the main graph must be an input of the model. So
        // the initializers of a branch cannot move there, and a branch with initializers stays.
        let are_inputs = graph.model().proto.ir_version() < 4;
        for &node in graph.order() {
            let Some((results, own)) = taken_branch(analysis, node) else {
                continue;
            };
            if are_inputs && has_initializer(graph, own) {
                continue;
            }
            found.results.extend(
                results
                    .into_iter()
                    .map(|(output, result)| (node, output, result)),
            );
            found
                .around
                .insert(own.to_owned(), region_path(graph.node(node)).to_owned());
        }
        found
    }

    /// Whether no If has a constant condition.
    pub(super) fn is_empty(&self) -> bool {
        self.results.is_empty()
    }

    /// Replaces the results of the Ifs by the results of the taken branches.
    pub(super) fn replace_results(&self, analysis: &Analysis, editor: &mut Editor) {
        let graph = &analysis.graph;
        for &(end, output, result) in &self.results {
            editor.remove(&[end], graph.value_name(output), graph.value_name(result));
        }
    }

    /// Moves the nodes of taken branches into the region of their Ifs, and removes the other
    /// branches.
    pub(super) fn lay_out(self, graph: &mut GraphProto) {
        if self.is_empty() {
            return;
        }
        for node in &mut graph.node {
            let mut here = region_path(node);
            while let Some(around) = self.around.get(here) {
                here = around;
            }
            if here != region_path(node) {
                let here = here.to_owned();
                move_to(node, &here);
            }
        }
        // The bodies of removed nodes are removed, at any depth.
        let bodies = reachable_bodies(graph);
        graph
            .node
            .retain(|node| region_path(node).is_empty() || bodies.contains(region_path(node)));
    }
}

/// Whether the body with the region path `way` has an initializer.
fn has_initializer(graph: &Graph, way: &str) -> bool {
    let mut tensors = graph.proto().initializer.iter();
    tensors.any(|tensor| tensor.name().starts_with(way))
}

/// The region paths of all reachable bodies. A body is reachable if its node is in the main graph,
/// or in a reachable body.
fn reachable_bodies(graph: &GraphProto) -> HashSet<String> {
    let mut bodies: HashSet<String> = HashSet::default();
    loop {
        let inner: Vec<String> = graph
            .node
            .iter()
            .filter(|node| region_path(node).is_empty() || bodies.contains(region_path(node)))
            .flat_map(region_paths_after)
            .filter(|way| !bodies.contains(*way))
            .map(str::to_owned)
            .collect();
        if inner.is_empty() {
            return bodies;
        }
        bodies.extend(inner);
    }
}

/// The outputs of an If with a constant condition, each with the result of the branch that it
/// takes, and the path of that branch.
type Decision<'g> = (Vec<(ValueId, ValueId)>, &'g str);

/// The branch that an If takes. `None` for another node, or if the condition is not constant.
pub(super) fn taken_branch<'g>(analysis: &'g Analysis, node: NodeId) -> Option<Decision<'g>> {
    let graph = &analysis.graph;
    // The bodies are in the order of their names, so `else_branch` comes first.
    let ways: Vec<&str> = region_paths_after(graph.node(node)).collect();
    let [otherwise, then] = ways[..] else {
        return None;
    };
    let condition = graph
        .input(node, 0)
        .filter(|&value| analysis.constants.is_constant(value))?;
    let holds = uniform::number(analysis, condition)? != 0.0;
    let results = graph.outputs(node).iter().zip(branch(graph, node, holds)?);
    let pairs = results.filter_map(|(output, result)| Some(((*output)?, *result)));
    let pairs = pairs
        .map(|(output, result)| Some((output, result?)))
        .collect::<Option<_>>()?;
    Some((pairs, if holds { then } else { otherwise }))
}
