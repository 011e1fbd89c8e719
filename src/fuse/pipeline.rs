//! One time over a model, and again until nothing folds: recognise, plan, apply, simplify.

use std::cell::OnceCell;
use std::collections::HashMap;

use crate::affine::apply::apply;
use crate::affine::growth::{beyond, growth};
use crate::affine::materialize::{Change, Edit, Failed, draw};
use crate::affine::plan::{Plan, Removal, StopReason, Stored};
use crate::affine::planner;
use crate::affine::recognize::{self, Family, Site, View};
use crate::analysis::Analysis;
use crate::error::{Error, Result};
use crate::fuse::FuseOptions;
use crate::fuse::graph_equality::is_unchanged;
use crate::fuse::plan_log::PlanLog;
use crate::fuse::skips::SkipSet;
use crate::ir::builder::NewConstant;
use crate::ir::editor::Editor;
use crate::ir::regions::Flat;
use crate::onnx::Model;
use crate::onnx::proto::TensorProto;
use crate::onnx::shadowed_names::hidden;
use crate::passes::canonicalize;
use crate::passes::inline::functions::redefined;
use crate::passes::layout::{
    arithmetic_before_concat, cancel_inverse, gather_nd_to_reshape, merge_concats, merge_reshapes,
    merge_slices, split_before_transpose,
};
use crate::passes::legalize::{self, Target};
use crate::passes::legalize::{gelu, rms_norm};
use crate::passes::simplify::{self, Limits, simplify_known, tidy};
use crate::passes::slice::{SLICING, Slicing, sliced};
use crate::passes::upgrade_opset::raised;
use crate::passes::{demand, placement};
use crate::provenance::Provenance;
use crate::refusal::{Reason, Refusal};
use crate::residual::{self, BasisChange, norm_merging};

/// The newest version of ONNX's operator set whose operators the rules are written for.
const NEWEST_OPSET: i64 = 28;

/// The oldest: before it arithmetic did not broadcast by itself, as what a fold makes has to.
const OLDEST_OPSET: i64 = 7;

/// How often a model is passed over. Each time sites went that stopped others; the second one mostly finds
/// nothing.
const PASSES: usize = 16;

/// How often operators are written in other forms after that. Each time those of one kind are, all over the model.
const WRITES: usize = 64;

/// The stage that writes operators in other forms, as [`StopReason::Bound`] names it.
const FORMS: &str = "forms";

/// The analysis of what a model is by now.
fn analysed<'m>(first: &'m Model, result: Option<&'m Model>) -> Result<Analysis<'m>> {
    result.map_or_else(|| Analysis::new(first), |result| check(first, result))
}

/// The analysis of a result: a valid graph with the inputs and outputs of the original.
fn check<'m>(before: &Model, after: &'m Model) -> Result<Analysis<'m>> {
    let wrong = |reason: String| Error::Defect {
        file: before.file(),
        at: "the graph".into(),
        reason,
    };
    let ends = |model: &Model| [model.graph().input.clone(), model.graph().output.clone()];
    if ends(before) != ends(after) {
        return Err(wrong("its inputs or outputs are not what they were".into()));
    }
    Analysis::new(after).map_err(|error| wrong(error.to_string()))
}

/// Refuses the sites whose edits cannot be written: first those that are no normalizers, as the
/// remaining edits may fit. Sites with too much growth may still fold where nothing is copied.
fn blame(
    model: &Model,
    is_scale: &[bool],
    why: Vec<Failed>,
    refused: &mut HashMap<usize, Refusal>,
    uncopied: &mut HashMap<usize, Refusal>,
) -> Result<()> {
    let before = refused.len() + uncopied.len();
    for failed in &why {
        let may_go_first = |site: &usize| is_scale[*site] && !refused.contains_key(site);
        let scales: Vec<usize> = failed.sites.iter().copied().filter(may_go_first).collect();
        for &site in if scales.is_empty() {
            &failed.sites
        } else {
            &scales
        } {
            let may_go =
                matches!(failed.refusal.reason, Reason::Growth(_)) && !uncopied.contains_key(&site);
            let stays = if may_go {
                &mut *uncopied
            } else {
                &mut *refused
            };
            stays.entry(site).or_insert_with(|| failed.refusal.clone());
        }
    }
    if refused.len() + uncopied.len() == before {
        Err(defect(model, &why))
    } else {
        Ok(())
    }
}

/// An edit that fails although no site is left to refuse.
fn defect(model: &Model, why: &[Failed]) -> Error {
    let first = why
        .first()
        .map(|failed| (failed.refusal.at.clone(), failed.refusal.reason.to_string()));
    let (at, reason) = first.unwrap_or_default();
    Error::Defect {
        file: model.file(),
        at,
        reason,
    }
}

/// The refusal of a stream, by its name.
type Refused<'r> = dyn Fn(&str) -> Option<Refusal> + 'r;

/// The planner of another basis for the streams of a model, from its sites.
type Plans<'p> = dyn Fn(&Analysis, &View, &[Site], &Refused) -> BasisChange + 'p;

/// The limit for growth by copies of weights.
pub(crate) struct GrowthBudget {
    bytes: f64,
    /// The bytes of all weights.
    weights: u64,
}

impl GrowthBudget {
    pub fn new(model: &Model, options: &FuseOptions) -> Self {
        let there = model.weight_bytes();
        // The growth of earlier runs, if it is noted plausibly: any program can write metadata.
        let grown = Provenance::from_model(model)
            .iter()
            .filter_map(|time| time.grown)
            .fold(0, u64::saturating_add);
        let grown = grown.min(there);
        let weights = there - grown;
        Self {
            bytes: options.max_growth / 100.0 * weights as f64 - grown as f64,
            weights,
        }
    }
}

/// One time over a model.
pub(crate) struct Pipeline<'p> {
    pub skip: SkipSet,
    pub centre: bool,
    /// Whether a LayerNormalization gives its shift away at the price of an Add, so that it can do without the mean.
    pub gives_shifts_away: bool,
    pub merge_norms: bool,
    pub growth: GrowthBudget,
    pub scale_stream: Option<u32>,
    pub target: Target,
    /// The rewrites into other forms once nothing folds, in this order.
    pub forms: Vec<FindForms>,
    pub slicing: &'p Slicing,
    pub tell: &'p dyn Fn(&str, usize, usize),
}

/// Finds the operators that are to have another form, all over a model.
pub(crate) type FindForms = fn(&Analysis) -> Vec<Edit>;

/// The forms that engines look for, or run faster, but for those that `skip` forbids.
pub(crate) fn forms_for(skip: &SkipSet) -> Vec<FindForms> {
    const TAKEN_APART: [FindForms; 2] = [split_before_transpose::edits, gelu::edits];
    const MOVEMENTS: [FindForms; 5] = [
        gather_nd_to_reshape::edits,
        merge_reshapes::edits,
        merge_slices::edits,
        merge_concats::edits,
        cancel_inverse::edits,
    ];
    let mut forms = TAKEN_APART.to_vec();
    if !skip.is_match(simplify::DUPLICATE) {
        forms.extend(MOVEMENTS);
    }
    // A pattern of `--skip` may name an RMSNorm.
    if skip.is_empty() {
        forms.push(rms_norm::edits);
    }
    forms
}

impl Pipeline<'_> {
    /// The result, if anything changed, and the plan: with flattened regions, where those can be
    /// restored.
    ///
    /// # Errors
    /// If the graph is invalid.
    pub fn run(&self, first: &Model, formulas: &[NewConstant]) -> Result<(Option<Model>, Plan)> {
        let (result, mut plan) = self.run_flattened(first, formulas)?;
        let untold = self.without_open_shapes(result.as_ref().unwrap_or(first), &mut plan);
        Ok((untold.or(result), plan))
    }

    /// Runs the pipeline before shapes are stripped from `value_info`.
    fn run_flattened(
        &self,
        first: &Model,
        formulas: &[NewConstant],
    ) -> Result<(Option<Model>, Plan)> {
        if not_known(first).is_none()
            && let Some(flat) = Flat::new(first)
        {
            let (result, plan) = self.run_to_fixpoint(&flat.model, formulas)?;
            let restored = match result {
                None => Some(None),
                Some(result) => flat.restore(&result).map(Some),
            };
            // Sorts the nodes again: restoring a dead region can break topological order.
            let restored = restored.map(|restored| restored.map(simplify::sorted));
            if let Some(result) = restored {
                if let Some(result) = &result {
                    check(first, result)?;
                }
                return Ok((result, plan));
            }
        }
        self.run_to_fixpoint(first, formulas)
    }

    /// Runs passes until one finds nothing to do, or to the bound. Returns the result, if anything changes, and the plan.
    fn run_to_fixpoint(
        &self,
        first: &Model,
        formulas: &[NewConstant],
    ) -> Result<(Option<Model>, Plan)> {
        let mut plan_log = PlanLog::default();
        plan_log.begin(formulas);
        let mut result = self.shared(first, &mut plan_log)?;
        let mut stopped = StopReason::Bound { at: FORMS };
        for pass in 0..PASSES + WRITES {
            (self.tell)("shapes", 0, 1);
            let analysis = analysed(first, result.as_ref())?;
            let next = self.next(pass, (&analysis, first), result.is_some(), &mut plan_log)?;
            let is_done = next.is_none() && pass < PASSES && !plan_log.reconsider();
            // Slices come behind everything else: parts are no layers of their own to what folds.
            let next = if is_done {
                self.slice(&analysis, &mut plan_log)?
            } else {
                next
            };
            drop(analysis);
            if next.is_some() {
                result = next;
            } else if pass >= PASSES {
                stopped = StopReason::Bound { at: "passes" };
                break;
            } else if is_done {
                stopped = StopReason::Fixpoint;
                break;
            }
        }
        // Streams come last: another pass would fold the power of two away.
        if self.scale_stream.is_some() {
            let scaled = self.scale(&analysed(first, result.as_ref())?, &mut plan_log)?;
            result = scaled.or(result);
        }
        result = self.finished(first, result, &mut plan_log)?;
        let plan = plan_log.finish(result.as_ref().unwrap_or(first), stopped);
        Ok((result, plan))
    }

    /// The model, which was the first one, after the first stage that has anything to do; `None` where none has. After
    /// [`PASSES`] only operators are still written in other forms.
    fn next(
        &self,
        pass: usize,
        (analysis, first): (&Analysis, &Model),
        is_changed: bool,
        plan_log: &mut PlanLog,
    ) -> Result<Option<Model>> {
        if pass == 0
            && let Some(next) = self.read_directly(analysis, plan_log)
        {
            return Ok(Some(next));
        }
        if pass >= PASSES {
            return self.write(analysis, plan_log);
        }
        if let Some(next) = self.raised(analysis, plan_log) {
            return Ok(Some(next));
        }
        if let Some(next) = self.lifted(analysis, plan_log)? {
            return Ok(Some(next));
        }
        if let Some(next) =
            self.rewritten(analysis, plan_log, self.canonical_forms(analysis), false)?
        {
            return Ok(Some(next));
        }
        if let Some(next) = self.run_once(analysis, first, plan_log)? {
            return Ok(Some(next));
        }
        if let Some(next) = self.selected(analysis, plan_log) {
            return Ok(Some(next));
        }
        if let Some(next) = self.place(analysis, plan_log)? {
            return Ok(Some(next));
        }
        if let Some(next) = self.write(analysis, plan_log)? {
            return Ok(Some(next));
        }
        // Bodies in the main graph bring Identities.
        Ok(if is_changed {
            self.read_directly(analysis, plan_log)
        } else {
            None
        })
    }

    /// The target whose forms are written.
    fn form(&self) -> Target {
        if self.skip.is_match(legalize::KIND) {
            Target::Portable
        } else {
            self.target
        }
    }

    /// The model with layers as MatMul and Add where they are written on rows; `None` where none is.
    fn lifted(&self, analysis: &Analysis, plan_log: &mut PlanLog) -> Result<Option<Model>> {
        let lifted = self.form().canonical(analysis);
        let made = self.rewritten(analysis, plan_log, lifted, false)?;
        plan_log.is_lifted |= made.is_some();
        Ok(made)
    }

    /// The result in forms that rules cannot see through, such as layers on rows; `None` where it
    /// equals the first model.
    fn finished(
        &self,
        first: &Model,
        result: Option<Model>,
        plan_log: &mut PlanLog,
    ) -> Result<Option<Model>> {
        let model = result.as_ref().unwrap_or(first);
        let has_products = model
            .graph()
            .node
            .iter()
            .any(|node| node.op_type() == "MatMul");
        if self.form() == Target::Portable || !has_products && !plan_log.is_lifted {
            return Ok(result);
        }
        let analysis = analysed(first, result.as_ref())?;
        let joined = self.form().finished(&analysis);
        let count = joined.len();
        let made = self.rewritten(&analysis, plan_log, joined, true)?;
        drop(analysis);
        let result = match made {
            Some(made) => {
                plan_log.plan.tidy.biased += count;
                Some(self.laid_out_anew(first, made, plan_log)?)
            }
            None => result,
        };
        let is_unchanged =
            |model: &Model| plan_log.may_be_unchanged() && is_unchanged(first, model);
        if result.as_ref().is_some_and(is_unchanged) {
            plan_log.is_unchanged();
            return Ok(None);
        }
        Ok(result)
    }

    /// A finished model with its movements put in order again, and equal ones merged: layers on rows have brought new ones.
    /// No other rule looks at it.
    fn laid_out_anew(
        &self,
        first: &Model,
        finished: Model,
        plan_log: &mut PlanLog,
    ) -> Result<Model> {
        let mut result = finished;
        for _ in 0..WRITES {
            let analysis = check(first, &result)?;
            let next = match self.in_forms(&analysis, plan_log)? {
                None => {
                    let sites = recognize::find(&View::new(&analysis));
                    self.tidy(&analysis, first, &sites, plan_log)
                }
                next => next,
            };
            drop(analysis);
            let Some(next) = next else { break };
            result = next;
        }
        Ok(result)
    }

    /// The model without what the target should not be told; `None` where it may be told all.
    fn without_open_shapes(&self, model: &Model, plan: &mut Plan) -> Option<Model> {
        if !model.proto.training_info.is_empty() || not_known(model).is_some() {
            return None;
        }
        let (graph, count) = self.target.without_open_shapes(model.graph())?;
        plan.tidy.untold = count;
        plan.is_tidied = true;
        Some(model.with_graph(graph))
    }

    /// Rewrites that simplify the graph for the stages behind them.
    fn canonical_forms(&self, analysis: &Analysis) -> Vec<Edit> {
        let edits = canonicalize::edits(analysis);
        // Patterns of `--skip` may name operators before a Concat.
        if edits.is_empty() && self.skip.is_empty() {
            arithmetic_before_concat::edits(analysis)
        } else {
            edits
        }
    }

    /// The model in a newer operator set; `None` where nothing is to be gained by that.
    fn raised(&self, analysis: &Analysis, plan_log: &mut PlanLog) -> Option<Model> {
        if not_known(analysis.graph.model()).is_some() {
            return None;
        }
        let (model, change) = raised(analysis, &|name| self.skip.is_match(name))?;
        plan_log.plan.tidy.raised = Some(change);
        Some(model)
    }

    /// The model with each weight under one name; `None` where that is how it is.
    fn shared(&self, model: &Model, plan_log: &mut PlanLog) -> Result<Option<Model>> {
        if not_known(model).is_some() {
            return Ok(None);
        }
        let Some(tidied) = simplify::shared(model, &|kind| self.skip.is_match(kind))? else {
            return Ok(None);
        };
        plan_log.tidied(&tidied);
        Ok(tidied.graph.map(|graph| model.with_graph(graph)))
    }

    /// The model without identities; `None` where it has none.
    fn read_directly(&self, analysis: &Analysis, plan_log: &mut PlanLog) -> Option<Model> {
        let model = analysis.graph.model();
        // With `--skip`, identities stay, so that the names that the user saw still exist.
        if !self.skip.is_empty() || not_known(model).is_some() {
            return None;
        }
        let tidied = simplify::read_directly(analysis)?;
        plan_log.tidied(&tidied);
        tidied.graph.map(|graph| model.with_graph(graph))
    }

    /// The model, which was the first one, with everything folded that folds; `None` where nothing does.
    fn run_once(
        &self,
        analysis: &Analysis,
        first: &Model,
        plan_log: &mut PlanLog,
    ) -> Result<Option<Model>> {
        let (model, tell) = (analysis.graph.model(), self.tell);
        tell("sites", 0, 1);
        let find = || recognize::find(&View::new(analysis));
        let sites = find();
        let is_scale: Vec<bool> = sites
            .iter()
            .map(|site| site.kind.family == Family::Scale)
            .collect();
        let mut seen = plan_log.recognise(&analysis.graph, &sites);
        let before = OnceCell::new();
        // Stored tensors are computed from constants of the first model.
        let read = |name: &str| {
            let unknown = || Refusal::new(Reason::NotConstant, name);
            let before = before.get_or_init(|| Analysis::new(first).ok());
            let before = before.as_ref().ok_or_else(unknown)?;
            before
                .constants
                .read(before.graph.value(name).ok_or_else(unknown)?)
        };
        let unknown = not_known(model);
        let untouched = |index: usize| {
            let site: &Site = &sites[index];
            let skipped = self.skip.has(&site.name, &site.kind);
            let skipped = skipped.then(|| Refusal::new(Reason::Skipped, ""));
            let rounded = || plan_log.rounded(&analysis.graph, site, &read);
            plan_log
                .refusal(&seen[index])
                .or(skipped)
                .or_else(|| unknown.clone())
                .or_else(rounded)
        };
        let mut refused: HashMap<usize, Refusal> = (0..sites.len())
            .filter_map(|index| Some((index, untouched(index)?)))
            .collect();
        let mut uncopied = HashMap::new();
        let mut found = Some(sites);
        let mut scales: Option<Vec<(usize, Refusal)>> = None;
        // At most thrice for each site that cannot go after all, which only the new tensors tell.
        for _ in 0..=3 * is_scale.len() {
            tell("plan", 0, 1);
            let sites = found.take().unwrap_or_else(find);
            let mut plan = planner::plan(
                analysis,
                &sites,
                &refused,
                &uncopied,
                self.gives_shifts_away,
            );
            // Scales stay first where normalizers want copies of the same weight. Without those, all that read it may want
            // one scale of it, which is no copy.
            if plan.is_empty() && scales.is_none() {
                let (again, others): (Vec<_>, Vec<_>) =
                    uncopied.into_iter().partition(|&(site, _)| is_scale[site]);
                uncopied = HashMap::from_iter(others);
                if !scales.insert(again).is_empty() {
                    found = Some(sites);
                    continue;
                }
            }
            if plan.is_empty() {
                plan_log.note(plan, seen, refused, vec![], &mut str::to_owned);
                let centred = self.centre(analysis, plan_log)?;
                if let Some(next) = centred
                    .map_or_else(|| self.merge(analysis, &sites, plan_log), |it| Ok(Some(it)))?
                {
                    return Ok(Some(next));
                }
                return Ok(self.tidy(analysis, first, &sites, plan_log));
            }
            let drawn = draw(&plan, analysis);
            // The sites take as much memory as the next steps; they are found again if needed.
            drop(sites);
            let mut editor = Editor::new(&analysis.graph);
            let outcome = drawn.and_then(|edits| {
                let changes = (edits.as_slice(), plan.removals.as_slice());
                self.apply(changes, analysis, &mut editor, plan_log)
            });
            let (stored, grown) = match outcome {
                Ok(made) => made,
                Err(why) => {
                    blame(model, &is_scale, why, &mut refused, &mut uncopied)?;
                    continue;
                }
            };
            if let Some(again) = scales
                .as_mut()
                .filter(|again| grown > 0 && !again.is_empty())
            {
                uncopied.extend(again.drain(..));
                continue;
            }
            plan.growth = grown;
            tell("simplify", 0, 1);
            let removed = plan.removals.iter().map(|removal| removal.source.as_str());
            let replaced = plan
                .replacements
                .iter()
                .flat_map(|(replacement, _)| replacement.ends());
            let seeds = removed.chain(replaced).map(str::to_owned).collect();
            for rewrite in &plan.rewrites {
                seen[rewrite.site].makes(analysis.graph.value_name(rewrite.part.output));
            }
            plan_log.note(plan, seen, refused, stored, &mut |name| {
                editor.current(name)
            });
            let simplified = simplify_known(editor, seeds, analysis, &HashMap::new());
            return Ok(Some(model.with_graph(simplified)));
        }
        Ok(None)
    }

    /// Applies edits in an editor, within the limit for growth. Returns the stored tensors and
    /// their growth in bytes.
    fn apply(
        &self,
        changes: (&[Edit], &[Removal]),
        analysis: &Analysis,
        editor: &mut Editor,
        plan_log: &PlanLog,
    ) -> std::result::Result<(Vec<Stored>, u64), Vec<Failed>> {
        let progress = |done, of| (self.tell)("fold", done, of);
        let stored = apply(changes, analysis, editor, &progress)?;
        let grown = growth(&stored, changes, analysis);
        let GrowthBudget { bytes, weights } = self.growth;
        let beyond = beyond(
            &stored,
            &grown,
            bytes - plan_log.plan.growth as f64,
            weights,
        );
        if beyond.is_empty() {
            Ok((stored, grown.iter().sum()))
        } else {
            Err(beyond)
        }
    }

    /// The model after edits without sites, the stored tensors, and their growth in bytes.
    /// Movements beside replaced nodes may be simplified with them.
    fn made(
        &self,
        edits: &[Edit],
        analysis: &Analysis,
        plan_log: &PlanLog,
        beside: bool,
    ) -> std::result::Result<(Model, Vec<Stored>, u64), Vec<Failed>> {
        let model = analysis.graph.model();
        let mut editor = Editor::new(&analysis.graph);
        let (stored, grown) = self.apply((edits, &[]), analysis, &mut editor, plan_log)?;
        let replaced = edits
            .iter()
            .filter(|_| beside)
            .filter_map(|edit| match &edit.change {
                Change::Replace(replacement) => Some(replacement.ends().map(str::to_owned)),
                _ => None,
            });
        let seeds = replaced.flatten().collect();
        let graph = simplify_known(editor, seeds, analysis, &HashMap::new());
        Ok((model.with_graph(graph), stored, grown))
    }

    /// Does linear work where values have fewer places; `None` where none moves.
    fn place(&self, analysis: &Analysis, plan_log: &mut PlanLog) -> Result<Option<Model>> {
        let model = analysis.graph.model();
        if self.skip.is_match(placement::KIND) || not_known(model).is_some() {
            return Ok(None);
        }
        loop {
            let moves = placement::moves(analysis, self.target, &|placed| {
                let is_skipped = self.skip.is_match(&placed.at) || self.skip.is_match(placed.rule);
                is_skipped
                    || plan_log
                        .plan
                        .placed
                        .iter()
                        .any(|other| !other.is_moved() && other.is_alike(placed))
            });
            if moves.is_empty() {
                return Ok(None);
            }
            let edits: Vec<Edit> = moves.iter().map(|found| found.edit.clone()).collect();
            match self.made(&edits, analysis, plan_log, true) {
                Ok((made, stored, grown)) => {
                    plan_log
                        .plan
                        .placed
                        .extend(moves.into_iter().map(|found| found.placed));
                    let has_fewer = made.graph().node.len() < model.graph().node.len();
                    plan_log.rewritten(stored, grown, has_fewer);
                    return Ok(Some(made));
                }
                Err(why) => self.refuse_moves(model, moves, &why, plan_log)?,
            }
        }
    }

    /// Notes the moves that stay as their new tensors cannot be stored.
    fn refuse_moves(
        &self,
        model: &Model,
        moves: Vec<placement::PlacementMove>,
        why: &[Failed],
        plan_log: &mut PlanLog,
    ) -> Result<()> {
        let before = plan_log.plan.placed.len();
        for (index, found) in moves.into_iter().enumerate() {
            if let Some(failed) = why.iter().find(|failed| failed.sites.contains(&index)) {
                plan_log
                    .plan
                    .placed
                    .push(found.refused(failed.refusal.clone()));
            }
        }
        if plan_log.plan.placed.len() == before {
            Err(defect(model, why))
        } else {
            Ok(())
        }
    }

    /// The model in the forms of engines, and of its target; `None` where nothing changes.
    fn write(&self, analysis: &Analysis, plan_log: &mut PlanLog) -> Result<Option<Model>> {
        if let Some(written) = self.in_forms(analysis, plan_log)? {
            return Ok(Some(written));
        }
        let placed = self.form().edits(analysis);
        let count = placed.len();
        let made = self.rewritten(analysis, plan_log, placed, true)?;
        plan_log.plan.tidy.biased += if made.is_some() { count } else { 0 };
        Ok(made)
    }

    /// The model after the first of the rewrites into other forms that has anything to do; `None` where none has.
    fn in_forms(&self, analysis: &Analysis, plan_log: &mut PlanLog) -> Result<Option<Model>> {
        for form in &self.forms {
            if let Some(written) = self.rewritten(analysis, plan_log, form(analysis), true)? {
                return Ok(Some(written));
            }
        }
        Ok(None)
    }

    /// The model with selections moved up, before work that they leave out; `None` where none moves, or one that would
    /// cannot be stored.
    fn selected(&self, analysis: &Analysis, plan_log: &mut PlanLog) -> Option<Model> {
        let model = analysis.graph.model();
        let is_skipped = [placement::KIND, demand::KIND]
            .iter()
            .any(|kind| self.skip.is_match(kind));
        if is_skipped || not_known(model).is_some() {
            return None;
        }
        let edits = demand::edits(analysis);
        if edits.is_empty() {
            return None;
        }
        let (made, stored, grown) = self.made(&edits, analysis, plan_log, true).ok()?;
        plan_log.rewritten(
            stored,
            grown,
            made.graph().node.len() < model.graph().node.len(),
        );
        plan_log.plan.tidy.selected += edits.len();
        Some(made)
    }

    /// The model with its large regions cut into parts, once; `None` where none is cut, or nobody asked for it.
    fn slice(&self, analysis: &Analysis, plan_log: &mut PlanLog) -> Result<Option<Model>> {
        let model = analysis.graph.model();
        let is_skipped = self.skip.is_match(SLICING) || not_known(model).is_some();
        if plan_log.plan.memory.is_some() || is_skipped || !self.slicing.is_wanted() {
            return Ok(None);
        }
        (self.tell)("slice", 0, 1);
        let (mut change, edits) = sliced(analysis, self.slicing, is_sliced(model));
        let made = if edits.is_empty() {
            None
        } else {
            Some(self.made(&edits, analysis, plan_log, false))
        };
        let made = match made {
            Some(Ok((made, stored, grown))) => {
                plan_log.rewritten(stored, grown, false);
                Some(made)
            }
            // Parts of a constant that something else reads whole may add more than is allowed.
            Some(Err(why)) => {
                change.undo(why.first().map(|failed| failed.refusal.to_string()));
                None
            }
            None => None,
        };
        plan_log.plan.memory = Some(change);
        Ok(made)
    }

    /// The model after edits without sites; `None` without edits.
    fn rewritten(
        &self,
        analysis: &Analysis,
        plan_log: &mut PlanLog,
        edits: Vec<Edit>,
        beside: bool,
    ) -> Result<Option<Model>> {
        let model = analysis.graph.model();
        if edits.is_empty() || not_known(model).is_some() {
            return Ok(None);
        }
        let made = self.made(&edits, analysis, plan_log, beside);
        let (made, stored, grown) = made.map_err(|why| defect(model, &why))?;
        plan_log.rewritten(
            stored,
            grown,
            made.graph().node.len() < model.graph().node.len(),
        );
        Ok(Some(made))
    }

    /// The model with its residual streams centred; `None` where none is, or nobody asked for it.
    fn centre(&self, analysis: &Analysis, plan_log: &mut PlanLog) -> Result<Option<Model>> {
        let plan = |analysis: &Analysis, view: &View, sites: &[Site], refused: &Refused| {
            residual::centred(analysis, view, sites, refused)
        };
        // A scaled stream is to become float16, which has no room for the squares that an RMS normalization writes out.
        let is_implied = self.target.centres() && self.scale_stream.is_none();
        if self.centre || is_implied {
            self.rebase(analysis, plan_log, residual::CENTRING, &plan)
        } else {
            Ok(None)
        }
    }

    /// The model without normalizers that others follow; `None` where none goes, or nobody asked for it.
    fn merge(
        &self,
        analysis: &Analysis,
        sites: &[Site],
        plan_log: &mut PlanLog,
    ) -> Result<Option<Model>> {
        if !self.merge_norms || self.skip.is_match(norm_merging::MERGING) {
            return Ok(None);
        }
        let (mut merged, edits) = norm_merging::merged(&View::new(analysis), sites, &|name| {
            self.skip.is_match(name)
        });
        plan_log.plan.merged.append(&mut merged);
        self.rewritten(analysis, plan_log, edits, true)
    }

    /// The model with its residual streams scaled; `None` where none is, or nobody asked for it.
    fn scale(&self, analysis: &Analysis, plan_log: &mut PlanLog) -> Result<Option<Model>> {
        let Some(power) = self.scale_stream else {
            return Ok(None);
        };
        let plan = |analysis: &Analysis, view: &View, sites: &[Site], refused: &Refused| {
            residual::stream_scaling::scaled(analysis, view, sites, power, refused)
        };
        self.rebase(analysis, plan_log, residual::SCALING, &plan)
    }

    /// The model with streams in another basis, which is of this kind; `None` where none changes. Sums inside of
    /// normalizers are written out first.
    fn rebase(
        &self,
        analysis: &Analysis,
        plan_log: &mut PlanLog,
        kind: &str,
        plan: &Plans,
    ) -> Result<Option<Model>> {
        let model = analysis.graph.model();
        if not_known(model).is_some() {
            return Ok(None);
        }
        (self.tell)("streams", 0, 1);
        let edits = residual::skip_norm::summed_apart(analysis);
        if edits.is_empty() {
            return self.rebase_sums(analysis, (vec![], 0), plan_log, kind, plan);
        }
        let mut editor = Editor::new(&analysis.graph);
        let apart = self.apply((&edits, &[]), analysis, &mut editor, plan_log);
        let apart = apart.map_err(|why| defect(model, &why))?;
        let written_out = model.with_graph(editor.finish());
        self.rebase_sums(&check(model, &written_out)?, apart, plan_log, kind, plan)
    }

    /// Rebases a model whose sums are operators of their own; `apart` has the tensors stored for
    /// that, and their growth in bytes.
    fn rebase_sums(
        &self,
        analysis: &Analysis,
        apart: (Vec<Stored>, u64),
        plan_log: &mut PlanLog,
        kind: &str,
        plan: &Plans,
    ) -> Result<Option<Model>> {
        let view = View::new(analysis);
        let sites = recognize::find(&view);
        let mut refused: HashMap<String, Refusal> = HashMap::new();
        // Each stream has a site of its own, and each time one more of them is refused.
        for _ in 0..=sites.len() {
            let BasisChange { streams, edits } = plan(analysis, &view, &sites, &|name| {
                let is_skipped = self.skip.is_match(name) || self.skip.is_match(kind);
                refused
                    .get(name)
                    .cloned()
                    .or_else(|| is_skipped.then(|| Refusal::new(Reason::Skipped, "")))
            });
            if edits.is_empty() {
                plan_log.rebased(streams, vec![]);
                return Ok(None);
            }
            match self.made(&edits, analysis, plan_log, true) {
                Ok((made, stored, grown)) => {
                    if !apart.0.is_empty() {
                        plan_log.rewritten(apart.0, apart.1, false);
                    }
                    plan_log.plan.growth += grown;
                    plan_log.rebased(streams, stored);
                    return Ok(Some(made));
                }
                Err(why) => {
                    let before = refused.len();
                    for failed in &why {
                        let names = failed.sites.iter().filter_map(|&place| streams.get(place));
                        refused.extend(
                            names.map(|stream| (stream.name.clone(), failed.refusal.clone())),
                        );
                    }
                    if refused.len() == before {
                        return Err(defect(analysis.graph.model(), &why));
                    }
                }
            }
        }
        Ok(None)
    }

    /// The model with everything stored that is constant, and everything there once that is equal; `None` where nothing
    /// changes.
    fn tidy(
        &self,
        analysis: &Analysis,
        first: &Model,
        sites: &[Site],
        plan_log: &mut PlanLog,
    ) -> Option<Model> {
        let model = analysis.graph.model();
        if not_known(model).is_some() {
            return None;
        }
        let told = sites.iter().filter(|site| site.kind.is_told_by_constants);
        let online = sites
            .iter()
            .filter(|site| site.kind.family == Family::Online);
        let recipes = plan_log.recipes();
        let stored: OnceCell<HashMap<&str, &TensorProto>> = OnceCell::new();
        let stored = |name: &str| {
            let graph = first.graph();
            let constants = graph
                .node
                .iter()
                .filter(|node| node.op() == ("", "Constant"));
            let of_nodes = || {
                constants.filter_map(|node| {
                    Some((node.output.first()?.as_str(), node.attr_t("value").ok()??))
                })
            };
            let named = || {
                graph
                    .initializer
                    .iter()
                    .map(|tensor| (tensor.name(), tensor))
                    .chain(of_nodes())
                    .collect()
            };
            stored.get_or_init(named).get(name).copied()
        };
        let tidied = tidy(
            analysis,
            &Limits {
                sites: told.flat_map(|site| site.nodes.iter().copied()).collect(),
                normalizers: online.flat_map(|site| site.nodes.iter().copied()).collect(),
                recipe: &|name| recipes.get(name).copied(),
                stored: &stored,
                is_skipped: &|kind| self.skip.is_match(kind),
                growth: self.growth.bytes,
            },
        );
        plan_log.tidied(&tidied);
        tidied.graph.map(|graph| model.with_graph(graph))
    }
}

/// Whether slices were made of a model before: they would be cut once more.
fn is_sliced(model: &Model) -> bool {
    let is_slicing = |kind: &str| {
        kind.split_once(' ')
            .is_some_and(|(name, _)| name == SLICING)
    };
    Provenance::from_model(model)
        .iter()
        .any(|time| time.folded.split(", ").any(is_slicing))
}

/// Why nothing is known of what the operators of a model mean. One that imports no version means the first.
pub(crate) fn not_known(model: &Model) -> Option<Refusal> {
    let reason = match model.own_opset() {
        opset if opset < OLDEST_OPSET => Reason::PastOpset(opset),
        opset if opset > NEWEST_OPSET => Reason::FutureOpset(opset),
        _ => {
            let redefined = redefined(model).map(|name| Reason::Redefined(name.to_owned()));
            redefined.or_else(|| Some(Reason::Hidden(hidden(model.graph())?.to_owned())))?
        }
    };
    Some(Refusal::new(reason, ""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::affine::materialize::written_anew;
    use crate::ir::NodeId;
    use crate::ir::builder::Maker;
    use crate::onnx::proto::{
        GraphProto, ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto,
    };

    /// `out = x + y`
    fn sum() -> Model {
        let named = |name: &str| ValueInfoProto {
            name: Some(name.into()),
            ..ValueInfoProto::default()
        };
        let add = NodeProto {
            op_type: Some("Add".into()),
            input: vec!["x".into(), "y".into()],
            output: vec!["out".into()],
            ..NodeProto::default()
        };
        let graph = GraphProto {
            node: vec![add],
            input: vec![named("x"), named("y")],
            output: vec![named("out")],
            ..GraphProto::default()
        };
        Model::from_proto(ModelProto {
            ir_version: Some(8),
            opset_import: vec![OperatorSetIdProto {
                domain: None,
                version: Some(17),
            }],
            graph: Some(graph),
            ..ModelProto::default()
        })
    }

    /// Writes each `a + b` as `b + a`, so that the next pass writes it back.
    fn swapped(analysis: &Analysis) -> Vec<Edit> {
        let swap = |node: NodeId, _| {
            let graph = &analysis.graph;
            let [left, right] = [graph.input(node, 0)?, graph.input(node, 1)?];
            let mut maker = Maker::new(graph, node);
            maker.op(
                "Add",
                &[graph.value_name(right), graph.value_name(left)],
                vec![],
            );
            Some(maker)
        };
        written_anew(analysis, swap)
    }

    /// Runs the pipeline with these forms on the sum. Returns the result and the reason for which it stops.
    fn run(forms: Vec<FindForms>) -> (Option<Model>, StopReason) {
        let (model, options) = (sum(), FuseOptions::default());
        let pass = Pipeline {
            skip: SkipSet::new(&[]).unwrap(),
            centre: false,
            gives_shifts_away: false,
            merge_norms: false,
            growth: GrowthBudget::new(&model, &options),
            scale_stream: None,
            target: Target::Portable,
            forms,
            slicing: &Slicing::default(),
            tell: &|_, _, _| {},
        };
        let (result, plan) = pass.run(&model, &[]).unwrap();
        (result, plan.stopped)
    }

    #[test]
    fn forms_that_alternate_end_at_their_bound() {
        let (result, stopped) = run(vec![swapped]);
        assert_eq!(stopped, StopReason::Bound { at: FORMS });
        let result = result.unwrap();
        let [add] = &result.graph().node[..] else {
            panic!("{:?}", result.graph().node)
        };
        let mut read = add.input.clone();
        read.sort();
        assert_eq!(
            (add.op_type(), read),
            ("Add", vec!["x".to_owned(), "y".to_owned()])
        );
    }

    #[test]
    fn a_run_that_finds_nothing_to_do_ends_at_the_fixpoint() {
        let (result, stopped) = run(forms_for(&SkipSet::new(&[]).unwrap()));
        assert!(result.is_none());
        assert_eq!(stopped, StopReason::Fixpoint);
    }
}
