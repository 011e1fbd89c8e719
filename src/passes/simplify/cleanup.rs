//! The clean-up after folding: constant folding, CSE, identity elimination.

use crate::analysis::Analysis;
use crate::error::Result;
use crate::hash::{HashMap, HashSet};
use crate::ir::editor::{Edited, Editor, reads};
use crate::ir::{Graph, NodeId};
use crate::onnx::Model;
use crate::onnx::proto::{GraphProto, NodeProto, TensorProto};
use crate::passes::simplify::branch_folding::Decided;
use crate::passes::simplify::constant_folding::{self, NamedFloats, Settled, cone};
use crate::passes::simplify::cse::Same;
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
        let is_own = |recipe: &Recipe| matches!(recipe.op(), Op::Constant(own) if **own == *name);
        (self.recipe)(name).is_some_and(|recipe| !is_own(recipe))
    }

    /// The recipe of a tensor. Small whole numbers are exact in every type, and equal any constant
    /// of these numbers.
    fn told(&self, name: &str) -> Option<&Recipe> {
        let is_small = |number: &f64| number.fract() == 0.0 && number.abs() <= WHOLE;
        let is_plain = |recipe: &&Recipe| matches!(recipe.op(), Op::Literal(numbers) if numbers.iter().all(is_small));
        (self.recipe)(name).filter(|recipe| !is_plain(recipe))
    }

    /// Whether two tensors were computed in equal ways.
    fn are_told_alike(&self, one: &str, other: &str, model: &Model) -> bool {
        // Equal operations on equal tensors give equal results, where the tensors are used
        // unrounded.
        let is_stored_alike =
            |one: &str, other: &str| match ((self.stored)(one), (self.stored)(other)) {
                (Some(one_stored), Some(other_stored)) => {
                    one == other || cse::are_alike(one_stored, other_stored, model)
                }
                _ => one == other,
            };
        match (self.told(one), self.told(other)) {
            (Some(one), Some(other)) => one.is_alike(other, &is_stored_alike),
            (None, None) => true,
            // A constant that was written anew.
            (Some(told), None) => constant_of(told).is_some_and(|of| is_stored_alike(of, other)),
            (None, Some(told)) => constant_of(told).is_some_and(|of| is_stored_alike(one, of)),
        }
    }
}

/// The constant that a recipe says by its name.
fn constant_of(recipe: &Recipe) -> Option<&str> {
    if let Op::Constant(name) = recipe.op() {
        Some(name)
    } else {
        None
    }
}

/// The result of clean-up.
#[derive(Default)]
pub struct Tidied {
    /// The graph; `None` where there was nothing to do.
    pub graph: Option<GraphProto>,
    /// The floats that were computed.
    pub computed: Vec<NamedFloats>,
    /// Operators that are gone as their results are stored.
    pub constants: usize,
    /// Operators that are gone as others make the same.
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
/// value has already. `None` without identities.
pub fn read_directly(analysis: &Analysis) -> Option<Tidied> {
    let graph = &analysis.graph;
    if !graph.model().proto.training_info.is_empty() {
        return None;
    }
    let passed = identity_elimination::find(analysis, &HashSet::default());
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
    let mut tidied = Tidied::default();
    if !model.proto.training_info.is_empty() {
        // Its graphs refer to values of this one.
        return tidied;
    }
    let sites = cone(analysis, &limits.sites);
    let (found, mut shapes, begun, taken) = match (limits.is_skipped)(constant_folding::KIND) {
        true => Default::default(),
        false => {
            let is_new = |name: &str| limits.is_new(name);
            let settled = Settled::find(analysis, &sites, &is_new, limits.growth);
            (
                settled,
                reshape_extents::find(analysis, &sites),
                zero_states::find(analysis, &sites),
                Decided::find(analysis),
            )
        }
    };
    let named = sites
        .iter()
        .flat_map(|&node| analysis.graph.inputs(node).iter().flatten());
    let read: HashSet<&str> = named
        .map(|&value| analysis.graph.value_name(value))
        .collect();
    let merges = !(limits.is_skipped)(cse::KIND);
    tidied.kept = found.kept.clone();
    tidied.growth = found.growth;
    let is_told_alike = |one: &str, other: &str| limits.are_told_alike(one, other, model);
    let find = || cse::find(analysis.graph.proto(), model, &read, &is_told_alike);
    let passed = if merges {
        identity_elimination::identities(analysis, &read, &limits.normalizers)
    } else {
        vec![]
    };
    let goes: HashSet<NodeId> = passed.iter().map(|&(node, _)| node).collect();
    shapes.retain(|(node, _)| !goes.contains(node));
    let is_written = !shapes.is_empty() || !begun.is_empty() || !taken.is_empty();
    let is_asked = merges && (!is_written || !found.is_empty());
    let before = if is_asked { find() } else { HashMap::default() };
    if found.is_empty() && !is_written && before.is_empty() && passed.is_empty() {
        return tidied;
    }
    let are_equals_all = found.is_empty() && !is_written && passed.is_empty();
    tidied.duplicates = passed.len();
    let mut editor = Editor::new(&analysis.graph);
    identity_elimination::remove(passed, &analysis.graph, &mut editor);
    tidied.computed = found.store(analysis, &mut editor);
    reshape_extents::write(shapes, analysis, &mut editor);
    zero_states::write(begun, &mut editor);
    taken.pass(analysis, &mut editor);
    let Edited {
        mut graph,
        before: was,
        mut pinned,
    } = editor.edited();
    taken.lay_out(&mut graph);
    dce::remove(&mut graph, &|name| was.reads(name), &pinned);
    topological_order::sort(&mut graph);
    let between = operators(&graph.node);
    if merges {
        pinned.extend(&read);
        // Each computed constant is rounded: only constants that were equal before are merged.
        let named = tidied
            .computed
            .iter()
            .map(|floats| (floats.name.as_str(), &floats.value));
        let sources: HashMap<&str, &String> = named
            .map(|(name, value)| (name, before.get(value).unwrap_or(value)))
            .collect();
        let same = |one: &str, other: &str| {
            is_told_alike(one, other) && sources.get(one) == sources.get(other)
        };
        merge(&mut graph, was, &pinned, &same);
    }
    let all = operators(&model.graph().node);
    tidied.constants = (all - between).saturating_sub(tidied.duplicates);
    tidied.duplicates += between - operators(&graph.node);
    // Equals that have to stay, since one is an input that a caller may replace, are no change.
    let size = |graph: &GraphProto| (graph.node.len(), graph.initializer.len());
    tidied.graph = (!are_equals_all || size(&graph) != size(model.graph())).then_some(graph);
    tidied
}

/// Merges equal values, and removes values without readers.
fn merge(graph: &mut GraphProto, was: &Graph, pinned: &HashSet<&str>, same: Same) {
    let instead = cse::find(graph, was.model(), pinned, same);
    // New constants may be equal as well.
    let now_read: HashSet<String> = reads(graph)
        .into_iter()
        .filter(|name| !was.reads(name))
        .map(str::to_owned)
        .collect();
    cse::merge_into(graph, &instead);
    // An output that others read now may be made behind them.
    topological_order::sort(graph);
    dce::remove(
        graph,
        &|name| was.reads(name) || now_read.contains(name),
        pinned,
    );
}

/// How many nodes compute something.
fn operators(nodes: &[NodeProto]) -> usize {
    nodes
        .iter()
        .filter(|node| node.op_type() != "Constant")
        .count()
}
