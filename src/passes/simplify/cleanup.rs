//! The clean-up after folding: constant folding, CSE, identity elimination.

use crate::analysis::Analysis;
use crate::error::Result;
use crate::hash::{HashMap, HashSet};
use crate::ir::editor::{Edited, Editor, reads};
use crate::ir::{Graph, NodeId};
use crate::onnx::Model;
use crate::onnx::proto::{GraphProto, NodeProto, TensorProto};
use crate::passes::simplify::branch_folding::TakenBranches;
use crate::passes::simplify::constant_folding::{self, NamedFloats, StoredResults, cone};
use crate::passes::simplify::cse::Same;
use crate::passes::simplify::identity_elimination::IdentityNode;
use crate::passes::simplify::{
    cse, dce, identity_elimination, reshape_extents, topological_order, zero_states,
};
use crate::recipe::{Op, Recipe};
use crate::refusal::Refusal;

/// The largest whole number up to which every type of floats has all of them.
const WHOLE: f64 = 256.0;

/// The limits of clean-up.
pub struct Limits<'l> {
    /// Nodes of remaining sites, which their inputs identify.
    pub sites: Vec<NodeId>,
    /// Nodes of normalizers that compute statistics of their input.
    pub normalizers: HashSet<NodeId>,
    /// The recipe of a stored tensor, over constants of the original model.
    pub recipe: &'l dyn Fn(&str) -> Option<&'l Recipe>,
    /// A tensor of that model.
    pub stored: &'l dyn Fn(&str) -> Option<&'l TensorProto>,
    /// Whether a kind is skipped.
    pub is_skipped: &'l dyn Fn(&str) -> bool,
    /// Bytes that tensors of computed constants may add.
    pub growth: f64,
}

impl Limits<'_> {
    /// Whether a tensor was stored by folding, and is no constant of the original model.
    fn is_new(&self, name: &str) -> bool {
        (self.recipe)(name).is_some_and(|recipe| constant_name(recipe) != Some(name))
    }

    /// Whether two tensors were computed in equal ways.
    fn are_computed_alike(&self, one: &str, other: &str, model: &Model) -> bool {
        match (self.inexact_recipe(one), self.inexact_recipe(other)) {
            // Equal operations on equal tensors give equal results, where the tensors are used
            // unrounded.
            (Some(one), Some(other)) => one.is_alike(other, &|one: &str, other: &str| {
                self.are_stored_alike(one, other, model)
            }),
            (None, None) => true,
            // A constant that was written anew.
            (Some(recipe), None) => {
                constant_name(recipe).is_some_and(|name| self.are_stored_alike(name, other, model))
            }
            (None, Some(recipe)) => {
                constant_name(recipe).is_some_and(|name| self.are_stored_alike(one, name, model))
            }
        }
    }

    /// The recipe of a tensor. Small whole numbers have none: they are exact in every type, and equal any constant of
    /// these numbers.
    fn inexact_recipe(&self, name: &str) -> Option<&Recipe> {
        (self.recipe)(name).filter(|recipe| !is_small_and_whole(recipe))
    }

    /// Whether two tensors of the original model have equal elements.
    fn are_stored_alike(&self, one: &str, other: &str, model: &Model) -> bool {
        if one == other {
            return true;
        }
        match ((self.stored)(one), (self.stored)(other)) {
            (Some(one), Some(other)) => cse::are_alike(one, other, model),
            _ => false,
        }
    }
}

/// Whether a recipe is an array of whole numbers that every type of floats has.
fn is_small_and_whole(recipe: &Recipe) -> bool {
    let Op::Literal(numbers) = recipe.op() else {
        return false;
    };
    numbers
        .iter()
        .all(|number| number.fract() == 0.0 && number.abs() <= WHOLE)
}

/// The name of the constant that a recipe is.
fn constant_name(recipe: &Recipe) -> Option<&str> {
    if let Op::Constant(name) = recipe.op() {
        Some(name)
    } else {
        None
    }
}

/// The result of clean-up.
#[derive(Default)]
pub struct Tidied {
    /// The graph; `None` where it is unchanged.
    pub graph: Option<GraphProto>,
    /// The floats that were computed.
    pub computed: Vec<NamedFloats>,
    /// How many operators were removed, as their results are stored.
    pub constants: usize,
    /// How many operators were removed, as others make equal values.
    pub duplicates: usize,
    /// Bytes that were added.
    pub growth: u64,
    /// Why constants are still computed in each run.
    pub kept: Vec<Refusal>,
}

/// Lets all nodes that read one weight read it by its own name; `None` where they do.
///
/// # Errors
/// If its graph is invalid.
pub fn shared(model: &Model, is_skipped: &dyn Fn(&str) -> bool) -> Result<Option<Tidied>> {
    if !identity_elimination::may_share(model.graph())
        || !model.proto.training_info.is_empty()
        || is_skipped(cse::KIND)
    {
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
    Ok(Some(Tidied {
        graph: Some(editor.finish()),
        duplicates,
        ..Tidied::default()
    }))
}

/// Eliminates identities before folding: an affine should not stop at a Cast to the type that a
/// value has already. With `removes_activations`, redundant activations are eliminated too. The nodes that are `kept` stay.
/// `None` where nothing is eliminated.
pub fn read_directly(
    analysis: &Analysis,
    kept: &HashSet<NodeId>,
    removes_activations: bool,
) -> Option<Tidied> {
    let graph = &analysis.graph;
    if !graph.model().proto.training_info.is_empty() {
        return None;
    }
    let mut passed = identity_elimination::find(analysis, removes_activations);
    passed.retain(|(node, _)| !kept.contains(node));
    let duplicates = Some(passed.len()).filter(|&count| count > 0)?;
    let mut editor = Editor::new(graph);
    identity_elimination::remove(passed, graph, &mut editor);
    let Edited {
        mut graph,
        before,
        pinned,
    } = editor.edited();
    dce::remove(&mut graph, &|name| before.reads(name), &pinned);
    topological_order::sort(&mut graph);
    Some(Tidied {
        graph: Some(graph),
        duplicates,
        ..Tidied::default()
    })
}

/// Folds constants, and then merges equal operators on equal values.
pub fn tidy(analysis: &Analysis, limits: &Limits) -> Tidied {
    let model = analysis.graph.model();
    if !model.proto.training_info.is_empty() {
        // Its graphs refer to values of this one.
        return Tidied::default();
    }
    let sites = cone(analysis, &limits.sites);
    let pinned = names_read(&analysis.graph, &sites);
    let rewrites = Rewrites::find(analysis, limits, &sites, &pinned);
    let equals = rewrites.equals(analysis, limits, &pinned);
    let mut tidied = Tidied {
        kept: rewrites.constants.kept.clone(),
        growth: rewrites.constants.growth,
        ..Tidied::default()
    };
    if rewrites.is_empty() && equals.is_empty() {
        return tidied;
    }
    let only_merges = rewrites.is_empty();
    let eliminated = rewrites.identities.len();
    let mut edited;
    (edited, tidied.computed) = rewrites.write(analysis);
    let before_merging = operators(&edited.graph.node);
    if !(limits.is_skipped)(cse::KIND) {
        edited.pinned.extend(&pinned);
        // Each computed constant is rounded: only constants that were equal before are merged.
        let sources = sources(&tidied.computed, &equals);
        merge(&mut edited, &|one, other| {
            limits.are_computed_alike(one, other, model) && sources.get(one) == sources.get(other)
        });
    }
    let graph = edited.graph;
    let stored = operators(&model.graph().node) - before_merging;
    tidied.constants = stored.saturating_sub(eliminated);
    tidied.duplicates = eliminated + before_merging - operators(&graph.node);
    // Equals that have to stay, since one is an input that a caller may replace, are no change.
    tidied.graph = (!only_merges || size(&graph) != size(model.graph())).then_some(graph);
    tidied
}

/// The names that nodes read.
fn names_read<'g>(graph: &'g Graph, nodes: &HashSet<NodeId>) -> HashSet<&'g str> {
    nodes
        .iter()
        .flat_map(|&node| graph.inputs(node).iter().flatten())
        .map(|&value| graph.value_name(value))
        .collect()
}

/// For each stored constant, the first value of the graph before that equals it.
fn sources<'n>(
    computed: &'n [NamedFloats],
    equals: &'n HashMap<String, String>,
) -> HashMap<&'n str, &'n String> {
    computed
        .iter()
        .map(|floats| {
            let first = equals.get(&floats.value).unwrap_or(&floats.value);
            (floats.name.as_str(), first)
        })
        .collect()
}

/// The rewrites of clean-up before equal values are merged.
struct Rewrites {
    constants: StoredResults,
    /// Reshapes, with constant targets.
    targets: Vec<(NodeId, Vec<i64>)>,
    /// Recurrent operators, with initial states that can be left out.
    states: Vec<(NodeId, usize)>,
    branches: TakenBranches,
    identities: Vec<IdentityNode>,
}

impl Rewrites {
    /// Finds them. Nodes of `sites` stay, and so do `pinned` names.
    fn find(
        analysis: &Analysis,
        limits: &Limits,
        sites: &HashSet<NodeId>,
        pinned: &HashSet<&str>,
    ) -> Self {
        let mut rewrites = Rewrites {
            constants: StoredResults::default(),
            targets: vec![],
            states: vec![],
            branches: TakenBranches::default(),
            identities: vec![],
        };
        if !(limits.is_skipped)(constant_folding::KIND) {
            rewrites.constants =
                StoredResults::find(analysis, sites, &|name| limits.is_new(name), limits.growth);
            rewrites.targets = reshape_extents::find(analysis, sites);
            rewrites.states = zero_states::find(analysis, sites);
            rewrites.branches = TakenBranches::find(analysis);
        }
        if !(limits.is_skipped)(cse::KIND) {
            rewrites.identities =
                identity_elimination::identities(analysis, pinned, &limits.normalizers);
            let identities = rewrites.identities.iter();
            let removed: HashSet<NodeId> = identities.map(|&(node, _)| node).collect();
            rewrites.targets.retain(|(node, _)| !removed.contains(node));
        }
        rewrites
    }

    /// Equal values of the graph before the rewrites, where the merge after them needs these: where constants are stored,
    /// or nothing is written.
    fn equals(
        &self,
        analysis: &Analysis,
        limits: &Limits,
        pinned: &HashSet<&str>,
    ) -> HashMap<String, String> {
        let is_needed = !self.writes_nodes() || !self.constants.is_empty();
        if (limits.is_skipped)(cse::KIND) || !is_needed {
            return HashMap::default();
        }
        let model = analysis.graph.model();
        cse::find(analysis.graph.proto(), model, pinned, &|one, other| {
            limits.are_computed_alike(one, other, model)
        })
    }

    /// Whether nodes stay with other inputs, or branches take the place of Ifs.
    fn writes_nodes(&self) -> bool {
        !self.targets.is_empty() || !self.states.is_empty() || !self.branches.is_empty()
    }

    fn is_empty(&self) -> bool {
        self.constants.is_empty() && !self.writes_nodes() && self.identities.is_empty()
    }

    /// The graph with all of them, without dead code and in order, and the floats that are stored.
    fn write<'a>(self, analysis: &'a Analysis) -> (Edited<'a>, Vec<NamedFloats>) {
        let mut editor = Editor::new(&analysis.graph);
        identity_elimination::remove(self.identities, &analysis.graph, &mut editor);
        let computed = self.constants.store(analysis, &mut editor);
        reshape_extents::write(self.targets, analysis, &mut editor);
        zero_states::write(self.states, &mut editor);
        self.branches.replace_results(analysis, &mut editor);
        let mut edited = editor.edited();
        self.branches.lay_out(&mut edited.graph);
        let before = edited.before;
        let was_read = |name: &str| before.reads(name);
        dce::remove(&mut edited.graph, &was_read, &edited.pinned);
        topological_order::sort(&mut edited.graph);
        (edited, computed)
    }
}

/// Merges equal values, and removes values without readers.
fn merge(edited: &mut Edited, same: Same) {
    let Edited {
        graph,
        before,
        pinned,
    } = edited;
    let instead = cse::find(graph, before.model(), pinned, same);
    // New constants may be equal as well.
    let now_read: HashSet<String> = reads(graph)
        .into_iter()
        .filter(|name| !before.reads(name))
        .map(str::to_owned)
        .collect();
    cse::merge_into(graph, &instead);
    // An output that others read now may be made behind them.
    topological_order::sort(graph);
    dce::remove(
        graph,
        &|name| before.reads(name) || now_read.contains(name),
        pinned,
    );
}

/// How many nodes and initializers a graph has.
fn size(graph: &GraphProto) -> (usize, usize) {
    (graph.node.len(), graph.initializer.len())
}

/// How many nodes compute something.
fn operators(nodes: &[NodeProto]) -> usize {
    nodes
        .iter()
        .filter(|node| node.op_type() != "Constant")
        .count()
}
