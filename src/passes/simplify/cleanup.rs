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

/// Every float type represents all integers up to this one.
const WHOLE: f64 = 256.0;

/// The limits of the clean-up.
pub(crate) struct Limits<'l> {
    /// Nodes of remaining sites. They are identified by their inputs, which must stay.
    pub sites: Vec<NodeId>,
    /// Nodes of normalizers that compute statistics of their input.
    pub normalizers: HashSet<NodeId>,
    /// The recipe of a stored tensor, over constants of the original model.
    pub recipe: &'l dyn Fn(&str) -> Option<&'l Recipe>,
    /// A tensor of the original model.
    pub stored: &'l dyn Fn(&str) -> Option<&'l TensorProto>,
    /// Whether a kind is skipped.
    pub is_skipped: &'l dyn Fn(&str) -> bool,
    /// The number of bytes that tensors of computed constants may add.
    pub growth: f64,
}

impl Limits<'_> {
    /// Whether a tensor was stored by folding, and is not a constant of the original model.
    fn is_new(&self, name: &str) -> bool {
        (self.recipe)(name).is_some_and(|recipe| constant_name(recipe) != Some(name))
    }

    /// Whether two tensors were computed in equal ways.
    fn are_computed_alike(&self, one: &str, other: &str, model: &Model) -> bool {
        match (self.inexact_recipe(one), self.inexact_recipe(other)) {
            // Equal operations on equal tensors give equal results, if the tensors are used without
            // rounding.
            (Some(one), Some(other)) => one.is_alike(other, &|one: &str, other: &str| {
                self.are_stored_alike(one, other, model)
            }),
            (None, None) => true,
            // A constant that was stored again.
            (Some(recipe), None) => {
                constant_name(recipe).is_some_and(|name| self.are_stored_alike(name, other, model))
            }
            (None, Some(recipe)) => {
                constant_name(recipe).is_some_and(|name| self.are_stored_alike(one, name, model))
            }
        }
    }

    /// The recipe of a tensor. Small integers have none, because they are exact in every type, and
    /// equal any constant of these numbers.
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

/// Whether a recipe is an array of integers that every float type represents.
fn is_small_and_whole(recipe: &Recipe) -> bool {
    let Op::Literal(numbers) = recipe.op() else {
        return false;
    };
    numbers
        .iter()
        .all(|number| number.fract() == 0.0 && number.abs() <= WHOLE)
}

/// The name of the constant, if a recipe is only a constant.
fn constant_name(recipe: &Recipe) -> Option<&str> {
    if let Op::Constant(name) = recipe.op() {
        Some(name)
    } else {
        None
    }
}

/// The result of the clean-up.
#[derive(Default)]
pub(crate) struct Tidied {
    /// The graph. `None` if it is unchanged.
    pub graph: Option<GraphProto>,
    /// The floats that were computed.
    pub computed: Vec<NamedFloats>,
    /// The number of operators that were removed because their results are stored.
    pub constants: usize,
    /// The number of operators that were removed because others compute equal values.
    pub duplicates: usize,
    /// The number of bytes that were added.
    pub growth: u64,
    /// The reasons why constants are still computed in each run.
    pub kept: Vec<Refusal>,
}

/// Lets all readers of equal weights read one of them by its own name. `None` if they do already.
///
/// # Errors
/// The graph is invalid.
pub(crate) fn shared(model: &Model, is_skipped: &dyn Fn(&str) -> bool) -> Result<Option<Tidied>> {
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

/// Eliminates identities before folding, because a Cast to the type that a value has already should
/// not stop an affine. With `removes_activations`, redundant activations are eliminated too. The
/// nodes in `kept` stay. `None` if nothing is eliminated.
pub(crate) fn read_directly(
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
pub(crate) fn tidy(analysis: &Analysis, limits: &Limits) -> Tidied {
    let model = analysis.graph.model();
    if !model.proto.training_info.is_empty() {
        // The graphs of its training information refer to values of this one.
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
        // Each computed constant is rounded, so only constants that were equal before are merged.
        let sources = sources(&tidied.computed, &equals);
        merge(&mut edited, &|one, other| {
            limits.are_computed_alike(one, other, model) && sources.get(one) == sources.get(other)
        });
    }
    let graph = edited.graph;
    let stored = operators(&model.graph().node) - before_merging;
    tidied.constants = stored.saturating_sub(eliminated);
    tidied.duplicates = eliminated + before_merging - operators(&graph.node);
    // Equal values may have to stay, because one is an input that a caller may replace. Then
    // nothing changes.
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

/// For each stored constant, the first equal value of the original graph.
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

/// The rewrites of the clean-up before equal values are merged.
struct Rewrites {
    constants: StoredResults,
    /// Reshapes, with constant targets.
    targets: Vec<(NodeId, Vec<i64>)>,
    /// Recurrent operators, with the initial states that can be left out.
    states: Vec<(NodeId, usize)>,
    branches: TakenBranches,
    identities: Vec<IdentityNode>,
}

impl Rewrites {
    /// Finds the rewrites. Nodes of `sites` and names in `pinned` stay.
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

    /// Finds equal values of the original graph, if the merge after the rewrites needs them. This
    /// is so if constants are stored, or if nothing is rewritten.
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

    /// Whether nodes get other inputs, or branches replace Ifs.
    fn writes_nodes(&self) -> bool {
        !self.targets.is_empty() || !self.states.is_empty() || !self.branches.is_empty()
    }

    fn is_empty(&self) -> bool {
        self.constants.is_empty() && !self.writes_nodes() && self.identities.is_empty()
    }

    /// Applies all rewrites. Returns the graph without dead code and in order, and the floats that
    /// are stored.
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
    // New constants may be equal too.
    let now_read: HashSet<String> = reads(graph)
        .into_iter()
        .filter(|name| !before.reads(name))
        .map(str::to_owned)
        .collect();
    cse::merge_into(graph, &instead);
    // An output that other nodes read now may be computed after them.
    topological_order::sort(graph);
    dce::remove(
        graph,
        &|name| before.reads(name) || now_read.contains(name),
        pinned,
    );
}

/// The number of nodes and of initializers of a graph.
fn size(graph: &GraphProto) -> (usize, usize) {
    (graph.node.len(), graph.initializer.len())
}

/// The number of nodes that compute something.
fn operators(nodes: &[NodeProto]) -> usize {
    nodes
        .iter()
        .filter(|node| node.op_type() != "Constant")
        .count()
}
