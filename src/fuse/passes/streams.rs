//! The passes that change the basis of residual streams.

use std::collections::HashMap;

use crate::affine::materialize::Failed;
use crate::affine::plan::{Stored, StreamPlan};
use crate::affine::recognize::{self, Site, View};
use crate::analysis::Analysis;
use crate::error::Result;
use crate::fuse::edits::{Neighbours, defect};
use crate::fuse::pass::{Context, Effect, Pass, Settings, checked};
use crate::fuse::plan_log::PlanLog;
use crate::ir::editor::Editor;
use crate::refusal::{Reason, Refusal};
use crate::residual::{self, BasisChange, skip_norm};

/// Removes the mean from streams if their normalizers subtract it anyway.
pub(crate) struct CentreStreams;

impl Pass for CentreStreams {
    fn name(&self) -> &'static str {
        "centre-streams"
    }

    fn description(&self) -> &'static str {
        "writes residual streams without the mean that their normalizers subtract (`centring`)"
    }

    fn run(&self, context: &Context, log: &mut PlanLog) -> Result<Effect> {
        let settings = context.settings;
        // A scaled stream is meant for float16, where the squares of an RMS normalization overflow
        // if it is written as several operators. So such a model is centred only if the user asks
        // for it.
        let becomes_half = settings.scale_stream.is_some() || settings.half.is_some();
        let is_implied = settings.target.centres() && !becomes_half;
        if !settings.centre && !is_implied {
            return Ok(Effect::Nothing);
        }
        let rebasing = Rebasing {
            settings,
            basis: TargetBasis::Centred,
            name: self.name(),
        };
        rebasing.run(context, log)
    }
}

/// Multiplies streams by a power of two, with `--scale-stream`.
pub(crate) struct ScaleStreams;

impl Pass for ScaleStreams {
    fn name(&self) -> &'static str {
        "scale-streams"
    }

    fn description(&self) -> &'static str {
        "multiplies residual streams by a power of two, with --scale-stream (`scaling`)"
    }

    fn run(&self, context: &Context, log: &mut PlanLog) -> Result<Effect> {
        let settings = context.settings;
        let Some(power) = settings.scale_stream else {
            return Ok(Effect::Nothing);
        };
        let rebasing = Rebasing {
            settings,
            basis: TargetBasis::Scaled { power },
            name: self.name(),
        };
        rebasing.run(context, log)
    }
}

/// The new basis of residual streams.
#[derive(Clone, Copy)]
enum TargetBasis {
    /// Without the mean over the channels.
    Centred,
    /// Multiplied by `2^-power`.
    Scaled { power: u32 },
}

impl TargetBasis {
    /// The name of the change for `--skip`.
    fn kind(self) -> &'static str {
        match self {
            TargetBasis::Centred => residual::CENTRING,
            TargetBasis::Scaled { .. } => residual::SCALING,
        }
    }
}

/// Changes the basis of all streams of a model.
struct Rebasing<'r> {
    settings: &'r Settings<'r>,
    basis: TargetBasis,
    /// The name of the pass.
    name: &'static str,
}

impl Rebasing<'_> {
    /// Replaces sums inside normalizers by separate operators, and then changes the streams.
    fn run(&self, context: &Context, log: &mut PlanLog) -> Result<Effect> {
        (self.settings.tell)("streams", 0, 1);
        let analysis = context.analysis()?;
        let edits = skip_norm::summed_apart(analysis);
        if edits.is_empty() {
            return self.change(analysis, (vec![], 0), log);
        }
        let model = context.model();
        let mut editor = Editor::new(&analysis.graph);
        let apart = self
            .settings
            .apply((&edits, &[]), analysis, &mut editor, log);
        let apart = apart.map_err(|failed| defect(model, &failed))?;
        let written_out = model.with_graph(editor.finish());
        let analysis = checked(
            model,
            &written_out,
            Some(self.name),
            context.bases.answers.clone(),
        )?;
        self.change(&analysis, apart, log)
    }

    /// Changes the streams of a model in which all sums are separate operators. `apart` has the
    /// tensors that were stored to separate the sums, and their growth in bytes.
    fn change(
        &self,
        analysis: &Analysis,
        apart: (Vec<Stored>, u64),
        log: &mut PlanLog,
    ) -> Result<Effect> {
        let view = View::new(analysis);
        let sites = recognize::find(&view);
        let mut refused: HashMap<String, Refusal> = HashMap::new();
        // There are at most as many streams as sites, and each round that fails refuses at least
        // one more stream.
        for _ in 0..=sites.len() {
            let BasisChange { streams, edits } = self.plan(analysis, &view, &sites, &refused);
            if edits.is_empty() {
                log.rebased(streams, vec![]);
                return Ok(Effect::Nothing);
            }
            let edited = self
                .settings
                .edited(&edits, analysis, Neighbours::Simplified, log);
            match edited {
                Ok(edited) => {
                    if !apart.0.is_empty() {
                        log.rewritten(apart.0, apart.1, false);
                    }
                    log.plan.growth += edited.growth;
                    log.rebased(streams, edited.stored);
                    return Ok(Effect::made(edited.model));
                }
                Err(failed) if refuse(&mut refused, &streams, &failed) => {}
                Err(failed) => return Err(defect(analysis.graph.model(), &failed)),
            }
        }
        Ok(Effect::Nothing)
    }

    fn plan(
        &self,
        analysis: &Analysis,
        view: &View,
        sites: &[Site],
        refused: &HashMap<String, Refusal>,
    ) -> BasisChange {
        let refusal = |name: &str| self.refusal(name, refused);
        match self.basis {
            TargetBasis::Centred => residual::centred(analysis, view, sites, &refusal),
            TargetBasis::Scaled { power } => {
                residual::stream_scaling::scaled(analysis, view, sites, power, &refusal)
            }
        }
    }

    /// The refusal of the stream or site with this name. `None` unless its edits failed before, or
    /// `--skip` names it or the kind of change.
    fn refusal(&self, name: &str, refused: &HashMap<String, Refusal>) -> Option<Refusal> {
        if let Some(refusal) = refused.get(name) {
            return Some(refusal.clone());
        }
        let skip = &self.settings.skip;
        let is_skipped = skip.is_match(name) || skip.is_match(self.basis.kind());
        is_skipped.then(|| Refusal::new(Reason::Skipped, ""))
    }
}

/// Refuses the streams whose edits failed. Returns `false` if all of them were refused before.
fn refuse(
    refused: &mut HashMap<String, Refusal>,
    streams: &[StreamPlan],
    failed: &[Failed],
) -> bool {
    let before = refused.len();
    for failed in failed {
        let streams = failed.sites.iter().filter_map(|&place| streams.get(place));
        refused.extend(streams.map(|stream| (stream.name.clone(), failed.refusal.clone())));
    }
    refused.len() > before
}
