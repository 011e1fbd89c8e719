//! The transformations of simplifying passes. Each returns the simplified graph, or `None` if it
//! finds nothing to simplify.

use crate::analysis::Analysis;
use crate::error::Result;
use crate::hash::HashSet;
use crate::ir::editor::{Edited, Editor};
use crate::ir::{Graph, NodeId};
use crate::onnx::Model;
use crate::onnx::proto::{GraphProto, NodeProto};
use crate::passes::simplify::branch_folding::TakenBranches;
use crate::passes::simplify::constant_folding::{NamedFloats, StoredResults, cone};
use crate::passes::simplify::constant_origins::ConstantOrigins;
use crate::passes::simplify::identity_elimination::IdentityNode;
use crate::passes::simplify::{
    cse, dce, identity_elimination, reshape_extents, topological_order, zero_states,
};
use crate::refusal::Refusal;

/// A simplified graph.
#[derive(Default)]
pub(crate) struct Simplified {
    pub graph: GraphProto,
    /// The tensors of floats that constant folding stored.
    pub computed: Vec<NamedFloats>,
    /// The number of operators that were removed because their results are stored.
    pub constants: usize,
    /// The number of operators that were removed because other operators compute equal values.
    pub duplicates: usize,
    /// The number of bytes that were added.
    pub growth: u64,
}

/// The result of constant folding.
#[derive(Default)]
pub(crate) struct ConstantResults {
    /// `None` if nothing folds.
    pub simplified: Option<Simplified>,
    /// The reasons why some constants are still computed in each run of the model.
    pub kept: Vec<Refusal>,
}

/// Removes Identities of shared weights, and repeated Transposes and Casts of one weight. `None` if
/// there are none.
///
/// # Errors
/// If the graph is invalid.
pub(crate) fn share_weights(model: &Model) -> Result<Option<Simplified>> {
    if !identity_elimination::may_share(model.graph()) || has_training_info(model) {
        return Ok(None);
    }
    let graph = Graph::new(model)?;
    let passed = [
        identity_elimination::sharing(&graph),
        identity_elimination::repeated(&graph),
    ]
    .concat();
    if passed.is_empty() {
        return Ok(None);
    }
    let duplicates = passed.len();
    let mut editor = Editor::new(&graph);
    identity_elimination::remove(passed, &graph, &mut editor);
    Ok(Some(Simplified {
        graph: editor.finish(),
        duplicates,
        ..Simplified::default()
    }))
}

/// Eliminates identities before folding, because a Cast to the type that a value has already should
/// not stop an affine. With `removes_activations`, redundant activations are eliminated too. The
/// nodes in `kept` stay. `None` if nothing is eliminated.
pub(crate) fn remove_identities(
    analysis: &Analysis,
    kept: &HashSet<NodeId>,
    removes_activations: bool,
) -> Option<Simplified> {
    if has_training_info(analysis.graph.model()) {
        return None;
    }
    let mut passed = identity_elimination::find(analysis, removes_activations);
    passed.retain(|(node, _)| !kept.contains(node));
    without(analysis, passed)
}

/// Removes identities, movements that move nothing, and arithmetic with a neutral constant.
/// Arithmetic of `normalizers` stays, and so do constants that identify `sites`. `None` if nothing
/// is removed.
pub(crate) fn remove_neutral(
    analysis: &Analysis,
    sites: &[NodeId],
    normalizers: &HashSet<NodeId>,
) -> Option<Simplified> {
    if has_training_info(analysis.graph.model()) {
        return None;
    }
    let pinned = names_read(&analysis.graph, &cone(analysis, sites));
    let passed = identity_elimination::identities(analysis, &pinned, normalizers);
    without(analysis, passed)
}

/// Removes identities from the graph. `None` if the list is empty.
fn without(analysis: &Analysis, passed: Vec<IdentityNode>) -> Option<Simplified> {
    if passed.is_empty() {
        return None;
    }
    let mut editor = Editor::new(&analysis.graph);
    identity_elimination::remove(passed, &analysis.graph, &mut editor);
    let graph = without_dead_code(editor.edited());
    Some(Simplified {
        duplicates: fewer_operators(analysis.graph.proto(), &graph),
        graph,
        ..Simplified::default()
    })
}

/// Replaces each If whose condition is constant by the branch that it takes. `None` if no condition
/// is constant.
pub(crate) fn fold_branches(analysis: &Analysis) -> Option<Simplified> {
    if has_training_info(analysis.graph.model()) {
        return None;
    }
    let branches = TakenBranches::find(analysis);
    if branches.is_empty() {
        return None;
    }
    let mut editor = Editor::new(&analysis.graph);
    branches.replace_results(analysis, &mut editor);
    let mut edited = editor.edited();
    branches.lay_out(&mut edited.graph);
    let graph = without_dead_code(edited);
    Some(Simplified {
        constants: fewer_operators(analysis.graph.proto(), &graph),
        graph,
        ..Simplified::default()
    })
}

/// Merges equal operators on equal values, and equal small constants. Constants that identify
/// `sites` keep their names. `None` if nothing is merged.
pub(crate) fn merge_equal(
    analysis: &Analysis,
    sites: &[NodeId],
    origins: &ConstantOrigins,
) -> Option<Simplified> {
    let (before, model) = (analysis.graph.proto(), analysis.graph.model());
    if has_training_info(model) {
        return None;
    }
    let mut edited = Editor::new(&analysis.graph).edited();
    edited
        .pinned
        .extend(names_read(&analysis.graph, &cone(analysis, sites)));
    let instead = cse::find(&edited.graph, model, &edited.pinned, &|one, other| {
        origins.are_computed_alike(one, other, model)
    });
    if instead.is_empty() {
        return None;
    }
    cse::merge_into(&mut edited.graph, &instead);
    // An output that other nodes read now may be computed after these nodes.
    topological_order::sort(&mut edited.graph);
    let graph = without_dead_code(edited);
    // A merge may remove nothing, because one of the equal values is an input that a caller may
    // replace.
    if size(&graph) == size(before) {
        return None;
    }
    Some(Simplified {
        duplicates: fewer_operators(before, &graph),
        graph,
        ..Simplified::default()
    })
}

/// Stores the results of operators on constants, if this adds at most `growth` bytes. Constants
/// that identify `sites` are not computed.
pub(crate) fn fold_constants(
    analysis: &Analysis,
    sites: &[NodeId],
    origins: &ConstantOrigins,
    growth: f64,
) -> ConstantResults {
    if has_training_info(analysis.graph.model()) {
        return ConstantResults::default();
    }
    let sites = cone(analysis, sites);
    let results = StoredResults::find(analysis, &sites, &|name| origins.is_new(name), growth);
    let targets = reshape_extents::find(analysis, &sites);
    let states = zero_states::find(analysis, &sites);
    let kept = results.kept.clone();
    if results.is_empty() && targets.is_empty() && states.is_empty() {
        return ConstantResults {
            simplified: None,
            kept,
        };
    }
    let growth = results.growth;
    let mut editor = Editor::new(&analysis.graph);
    let computed = results.store(analysis, &mut editor);
    reshape_extents::write(targets, analysis, &mut editor);
    zero_states::write(states, &mut editor);
    let graph = without_dead_code(editor.edited());
    let simplified = Simplified {
        constants: fewer_operators(analysis.graph.proto(), &graph),
        graph,
        computed,
        growth,
        ..Simplified::default()
    };
    ConstantResults {
        simplified: Some(simplified),
        kept,
    }
}

/// Whether a model has training information. Such a model is not simplified, because the graphs of
/// training may refer to values of the main graph.
fn has_training_info(model: &Model) -> bool {
    !model.proto.training_info.is_empty()
}

/// The names of the values that these nodes read.
fn names_read<'g>(graph: &'g Graph, nodes: &HashSet<NodeId>) -> HashSet<&'g str> {
    nodes
        .iter()
        .flat_map(|&node| graph.inputs(node).iter().flatten())
        .map(|&value| graph.value_name(value))
        .collect()
}

/// The edited graph without values whose readers were removed, in topological order.
pub(crate) fn without_dead_code(edited: Edited) -> GraphProto {
    let Edited {
        mut graph,
        before,
        pinned,
    } = edited;
    dce::remove(&mut graph, &|name| before.reads(name), &pinned);
    topological_order::sort(&mut graph);
    graph
}

/// The number of nodes and of initializers of a graph.
fn size(graph: &GraphProto) -> (usize, usize) {
    (graph.node.len(), graph.initializer.len())
}

/// Counts how many operators fewer the second graph has.
fn fewer_operators(before: &GraphProto, after: &GraphProto) -> usize {
    operators(&before.node).saturating_sub(operators(&after.node))
}

/// The number of nodes other than Constants.
fn operators(nodes: &[NodeProto]) -> usize {
    nodes
        .iter()
        .filter(|node| node.op_type() != "Constant")
        .count()
}
