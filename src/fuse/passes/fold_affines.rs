//! The pass that folds affines. It recognizes sites, plans their folds, materializes the plan as
//! edits, and applies the edits.

use std::collections::HashMap;

use crate::affine::materialize::{Failed, draw};
use crate::affine::plan::{Plan, Stored};
use crate::affine::planner;
use crate::affine::recognize::{Family, Site};
use crate::analysis::Analysis;
use crate::error::Result;
use crate::fuse::edits::defect;
use crate::fuse::first_constants::FirstConstants;
use crate::fuse::pass::{Context, Effect, Pass, Settings};
use crate::fuse::plan_log::{PlanLog, SiteRecord};
use crate::ir::editor::Editor;
use crate::onnx::Model;
use crate::passes::simplify::simplify_known;
use crate::refusal::{Reason, Refusal};

/// Folds the affines of normalizers into the weights of linear operators.
pub(crate) struct FoldAffines;

impl Pass for FoldAffines {
    fn name(&self) -> &'static str {
        "fold-affines"
    }

    fn description(&self) -> &'static str {
        "folds the affines of normalizers into linear operators, within the limit for growth"
    }

    fn reads_unknown_operators(&self) -> bool {
        true
    }

    fn run(&self, context: &Context, log: &mut PlanLog) -> Result<Effect> {
        let analysis = context.analysis()?;
        (context.settings.tell)("sites", 0, 1);
        let sites = context.take_sites()?;
        let mut folding = Folding::new(context, analysis, &sites, log);
        let mut found = Some(sites);
        // Some obstacles appear only when the new tensors are computed. Then sites are refused, and
        // the loop plans again. The loop ends because each site is refused at most three times.
        for _ in 0..=3 * folding.is_scale.len() {
            (context.settings.tell)("plan", 0, 1);
            let sites = found.take().map_or_else(|| context.find_sites(), Ok)?;
            let plan = folding.plan(&sites);
            if !plan.is_empty() {
                // The sites take as much memory as the next steps, so they are dropped. They are
                // found again when a new plan needs them.
                drop(sites);
                match folding.apply(plan, log)? {
                    Some(model) => return Ok(Effect::made(model)),
                    None => continue,
                }
            }
            if folding.lets_scales_copy() {
                found = Some(sites);
                continue;
            }
            let (seen, refused) = (folding.seen, folding.refused);
            log.note(plan, seen, refused, vec![], &mut str::to_owned);
            context.keep_sites(sites);
            return Ok(Effect::Nothing);
        }
        Ok(Effect::Nothing)
    }
}

/// Drops the refusals because of the limit for growth if a pass has simplified the model since this
/// pass last ran, so that the refused sites are planned again. Simplification may have computed
/// constants.
pub(crate) struct ReconsiderGrowth;

impl Pass for ReconsiderGrowth {
    fn name(&self) -> &'static str {
        "reconsider-growth"
    }

    fn description(&self) -> &'static str {
        "plans sites again that the limit for growth refused, once constants were computed"
    }

    fn reads_unknown_operators(&self) -> bool {
        true
    }

    fn run(&self, _: &Context, log: &mut PlanLog) -> Result<Effect> {
        Ok(if log.reconsider() {
            Effect::Again
        } else {
            Effect::Nothing
        })
    }
}

/// One run of the pass, which makes plans until one can be applied. Each plan refuses more sites
/// than the previous one.
struct Folding<'f> {
    settings: &'f Settings<'f>,
    analysis: &'f Analysis<'f>,
    /// For each site, whether it is only a scale, not a normalizer.
    is_scale: Vec<bool>,
    seen: Vec<SiteRecord>,
    refused: HashMap<usize, Refusal>,
    /// The sites that fold only if no shared weight is copied for them, each with the refusal of
    /// its copies.
    uncopied: HashMap<usize, Refusal>,
    /// The scales that may copy weights, each with the refusal that applies if they may not. `None`
    /// until [`Folding::lets_scales_copy`] is called.
    scales: Option<Vec<(usize, Refusal)>>,
}

impl<'f> Folding<'f> {
    fn new(
        context: &'f Context,
        analysis: &'f Analysis<'f>,
        sites: &[Site],
        log: &PlanLog,
    ) -> Self {
        let seen = log.recognize(&analysis.graph, sites);
        let refused = refused_before(context, analysis, sites, &seen, log);
        Folding {
            settings: context.settings,
            analysis,
            is_scale: sites
                .iter()
                .map(|site| site.kind.family == Family::Scale)
                .collect(),
            seen,
            refused,
            uncopied: HashMap::new(),
            scales: None,
        }
    }

    fn plan(&self, sites: &[Site]) -> Plan {
        planner::plan(
            self.analysis,
            sites,
            &self.refused,
            &self.uncopied,
            self.settings.gives_shifts_away,
        )
    }

    /// Lets scales copy weights, once nothing more folds without copies. Returns `false` if no
    /// scale needs copies, or if scales may copy already.
    ///
    /// Until this call, scales must not copy, because a normalizer might still need a copy of the
    /// same weight. If no normalizer needs a copy, all readers of a weight may turn out to need it with
    /// the same scale, and then no copy is needed.
    fn lets_scales_copy(&mut self) -> bool {
        if self.scales.is_some() {
            return false;
        }
        let is_scale = &self.is_scale;
        let uncopied = std::mem::take(&mut self.uncopied).into_iter();
        let (scales, others): (Vec<_>, Vec<_>) = uncopied.partition(|&(site, _)| is_scale[site]);
        self.uncopied = HashMap::from_iter(others);
        let has_scales = !scales.is_empty();
        self.scales = Some(scales);
        has_scales
    }

    /// Applies a plan, and returns the new model. `None` if sites were refused instead, so that a
    /// new plan is needed.
    fn apply(&mut self, mut plan: Plan, log: &mut PlanLog) -> Result<Option<Model>> {
        let mut editor = Editor::new(&self.analysis.graph);
        let applied = draw(&plan, self.analysis).and_then(|edits| {
            let changes = (edits.as_slice(), plan.removals.as_slice());
            self.settings
                .apply(changes, self.analysis, &mut editor, log)
        });
        let (stored, growth) = match applied {
            Ok(applied) => applied,
            Err(failed) => {
                self.refuse(&failed)?;
                return Ok(None);
            }
        };
        if growth > 0 && self.keeps_scales() {
            return Ok(None);
        }
        plan.growth = growth;
        Ok(Some(self.simplified(plan, stored, editor, log)))
    }

    /// Takes back [`Folding::lets_scales_copy`]: these scales may no longer copy weights. Returns
    /// `false` if there are no such scales.
    fn keeps_scales(&mut self) -> bool {
        let Some(scales) = self.scales.as_mut().filter(|scales| !scales.is_empty()) else {
            return false;
        };
        self.uncopied.extend(scales.drain(..));
        true
    }

    /// Simplifies the model after a plan was applied in an editor, and records the plan in the log.
    fn simplified(
        &mut self,
        plan: Plan,
        stored: Vec<Stored>,
        mut editor: Editor,
        log: &mut PlanLog,
    ) -> Model {
        let graph = &self.analysis.graph;
        (self.settings.tell)("simplify", 0, 1);
        let removed = plan.removals.iter().map(|removal| removal.source.as_str());
        let replaced = plan
            .replacements
            .iter()
            .flat_map(|(replacement, _)| replacement.ends());
        let seeds = removed.chain(replaced).map(str::to_owned).collect();
        for rewrite in &plan.rewrites {
            self.seen[rewrite.site].makes(graph.value_name(rewrite.part.output));
        }
        let (seen, refused) = (
            std::mem::take(&mut self.seen),
            std::mem::take(&mut self.refused),
        );
        log.note(plan, seen, refused, stored, &mut |name| {
            editor.current(name)
        });
        let simplified = simplify_known(editor, seeds, self.analysis, &HashMap::new());
        graph.model().with_graph(simplified)
    }

    /// Refuses the sites of edits that cannot be applied. If an edit belongs to scales and to other
    /// sites, only its scales are refused, because the edit may fit without them. A site whose
    /// copies exceed the limit for growth may still fold without copies.
    fn refuse(&mut self, failed: &[Failed]) -> Result<()> {
        let before = self.refused.len() + self.uncopied.len();
        for failed in failed {
            for site in self.first_to_refuse(failed) {
                let may_fold_uncopied = matches!(failed.refusal.reason, Reason::Growth(_))
                    && !self.uncopied.contains_key(&site);
                let stays = if may_fold_uncopied {
                    &mut self.uncopied
                } else {
                    &mut self.refused
                };
                stays.entry(site).or_insert_with(|| failed.refusal.clone());
            }
        }
        if self.refused.len() + self.uncopied.len() == before {
            Err(defect(self.analysis.graph.model(), failed))
        } else {
            Ok(())
        }
    }

    /// The sites of a failed edit that are refused first: the scales that are not refused yet, or
    /// all sites of the edit if there is no such scale.
    fn first_to_refuse(&self, failed: &Failed) -> Vec<usize> {
        let sites = failed.sites.iter().copied();
        let scales: Vec<usize> = sites
            .filter(|site| self.is_scale[*site] && !self.refused.contains_key(site))
            .collect();
        if scales.is_empty() {
            failed.sites.clone()
        } else {
            scales
        }
    }
}

/// The refusals of the sites that stay in every plan, by index of the site. A site stays if it was
/// refused before, if it is skipped, if its affine is neutral only because of rounding, or if the
/// model has unknown operators.
fn refused_before(
    context: &Context,
    analysis: &Analysis,
    sites: &[Site],
    seen: &[SiteRecord],
    log: &PlanLog,
) -> HashMap<usize, Refusal> {
    let constants = FirstConstants::new(context.first());
    let skip = &context.settings.skip;
    let mut refused = HashMap::new();
    for (index, site) in sites.iter().enumerate() {
        let refusal = log
            .refusal(&seen[index])
            .or_else(|| {
                skip.has(&site.name, &site.kind)
                    .then(|| Refusal::new(Reason::Skipped, ""))
            })
            .or_else(|| context.unknown_operators().cloned())
            .or_else(|| log.rounded(&analysis.graph, site, &|name| constants.read(name)));
        refused.extend(refusal.map(|refusal| (index, refusal)));
    }
    refused
}
