//! Applies the edits of a pass, unless copies of weights exceed the limit for growth.

use std::collections::{HashMap, HashSet};

use crate::affine::apply::apply;
use crate::affine::materialize::{Change, Edit, Failed};
use crate::affine::plan::{Removal, Stored};
use crate::affine::shared_weights::{beyond, growth};
use crate::analysis::Analysis;
use crate::error::{Error, Result};
use crate::fuse::pass::{Context, Settings};
use crate::fuse::plan_log::PlanLog;
use crate::ir::editor::Editor;
use crate::ir::{Graph, NodeId, ValueId};
use crate::onnx::Model;
use crate::passes::simplify::simplify_known;
use crate::refusal::{Reason, Refusal};

/// The model after edits that belong to no site.
pub(super) struct EditedModel {
    pub model: Model,
    /// The tensors that the edits added.
    pub stored: Vec<Stored>,
    /// The growth by copies of weights, in bytes.
    pub growth: u64,
}

/// Whether movements next to replaced nodes are simplified together with the edits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Neighbours {
    /// Movements next to replaced nodes stay.
    Stay,
    /// Movements next to replaced nodes are simplified.
    Simplified,
}

impl Settings<'_> {
    /// Applies edits and removals in an editor, within the limit for growth. Returns the new
    /// tensors, and the growth by copies of weights in bytes.
    ///
    /// # Errors
    /// Returns the edits that cannot be applied, or whose copies exceed the limit.
    pub(super) fn apply(
        &self,
        changes: (&[Edit], &[Removal]),
        analysis: &Analysis,
        editor: &mut Editor,
        log: &PlanLog,
    ) -> std::result::Result<(Vec<Stored>, u64), Vec<Failed>> {
        let progress = |done, all| (self.tell)("fold", done, all);
        let stored = apply(changes, analysis, editor, self.range_check, &progress)?;
        let failed = without_formula(&stored, &analysis.graph, log);
        if !failed.is_empty() {
            return Err(failed);
        }
        let grown = growth(&stored, changes, analysis);
        let budget = &self.growth;
        let left = budget.bytes - log.plan.growth as f64;
        let beyond = beyond(&stored, &grown, left, budget.weights);
        if beyond.is_empty() {
            Ok((stored, grown.iter().sum()))
        } else {
            Err(beyond)
        }
    }

    /// Applies edits that belong to no site, and returns the resulting model.
    ///
    /// # Errors
    /// Returns the edits that cannot be applied, or whose copies exceed the limit.
    pub(super) fn edited(
        &self,
        edits: &[Edit],
        analysis: &Analysis,
        neighbours: Neighbours,
        log: &PlanLog,
    ) -> std::result::Result<EditedModel, Vec<Failed>> {
        let mut editor = Editor::new(&analysis.graph);
        let (stored, growth) = self.apply((edits, &[]), analysis, &mut editor, log)?;
        let seeds = match neighbours {
            Neighbours::Simplified => replaced_ends(edits),
            Neighbours::Stay => vec![],
        };
        let graph = simplify_known(editor, seeds, analysis, &HashMap::new());
        Ok(EditedModel {
            model: analysis.graph.model().with_graph(graph),
            stored,
            growth,
        })
    }
}

/// The sites whose tensors read a computed constant, such as the result of a DequantizeLinear, that
/// depends on a tensor of an earlier pass. The first model has another value in its place, so the
/// formula of the tensor would be wrong.
fn without_formula(stored: &[Stored], graph: &Graph, log: &PlanLog) -> Vec<Failed> {
    let earlier: HashSet<&str> = log.recipes().into_keys().collect();
    if earlier.is_empty() {
        return vec![];
    }
    let of_sites = stored.iter().filter(|tensor| !tensor.sites.is_empty());
    let failed = of_sites.filter_map(|tensor| {
        let mut constants = tensor.recipe.constants().into_iter();
        let changed = constants.find(|name| depends_on(graph, name, &earlier))?;
        let reason = "it is computed from a tensor that an earlier fold changed";
        Some(Failed {
            sites: tensor.sites.clone(),
            refusal: Refusal::new(Reason::Constant(reason.to_owned()), &**changed),
        })
    });
    failed.collect()
}

/// Whether a value is computed from the elements of one of these tensors. False for the tensors themselves, and where only
/// their type or shape matters, which no fold changes.
fn depends_on(graph: &Graph, name: &str, tensors: &HashSet<&str>) -> bool {
    let value = graph.value(name);
    let mut open: Vec<NodeId> = value
        .and_then(|value| made_by(graph, value))
        .into_iter()
        .collect();
    let mut seen: HashSet<NodeId> = open.iter().copied().collect();
    while let Some(node) = open.pop() {
        let read = match graph.op(node) {
            Some("Shape" | "Size") => 0,
            Some("CastLike") => 1,
            _ => usize::MAX,
        };
        for &input in graph.inputs(node).iter().take(read).flatten() {
            if tensors.contains(graph.value_name(input)) {
                return true;
            }
            open.extend(made_by(graph, input).filter(|&node| seen.insert(node)));
        }
    }
    false
}

/// The node that computes a value. `None` for inputs and stored tensors.
fn made_by(graph: &Graph, value: ValueId) -> Option<NodeId> {
    graph.producer(value).map(|(node, _)| node)
}

impl Context<'_, '_> {
    /// Applies edits that belong to no site, and records them in the log. Returns the changed
    /// model; `None` if there are no edits.
    ///
    /// # Errors
    /// If an edit cannot be applied.
    pub(super) fn rewritten(
        &self,
        edits: &[Edit],
        neighbours: Neighbours,
        log: &mut PlanLog,
    ) -> Result<Option<Model>> {
        if edits.is_empty() {
            return Ok(None);
        }
        let edited = self
            .settings
            .edited(edits, self.analysis()?, neighbours, log);
        let edited = edited.map_err(|failed| defect(self.model(), &failed))?;
        Ok(Some(self.noted(edited, log)))
    }

    /// Records in the log the new tensors of an edited model, its growth, and whether it has fewer
    /// nodes. Returns the model.
    pub(super) fn noted(&self, edited: EditedModel, log: &mut PlanLog) -> Model {
        let has_fewer = edited.model.graph().node.len() < self.model().graph().node.len();
        log.rewritten(edited.stored, edited.growth, has_fewer);
        edited.model
    }
}

/// The names of the values that the replacements of these edits read, and of their results.
fn replaced_ends(edits: &[Edit]) -> Vec<String> {
    let mut ends = vec![];
    for edit in edits {
        if let Change::Replace(replacement) = &edit.change {
            ends.extend(replacement.ends().map(str::to_owned));
        }
    }
    ends
}

/// The error for edits that cannot be applied and belong to no site, so that no site can be refused
/// instead. The error names the node and the reason of the first edit.
pub(super) fn defect(model: &Model, failed: &[Failed]) -> Error {
    let first = failed
        .first()
        .map(|failed| (failed.refusal.at.clone(), failed.refusal.reason.to_string()));
    let (at, reason) = first.unwrap_or_default();
    Error::Defect {
        file: model.file(),
        at,
        reason,
    }
}
