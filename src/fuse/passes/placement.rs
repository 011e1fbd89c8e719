//! The passes that move operators to the point where values have the fewest places.

use crate::affine::materialize::{Edit, Failed};
use crate::affine::plan::Placed;
use crate::analysis::Analysis;
use crate::error::Result;
use crate::fuse::edits::{Neighbours, defect};
use crate::fuse::pass::{Context, Effect, Pass};
use crate::fuse::plan_log::PlanLog;
use crate::passes::placement::PlacementMove;
use crate::passes::{demand, placement};

/// Moves selections of places up, before operators of whose results only the selected places are
/// needed.
pub(crate) struct DemandPass;

impl Pass for DemandPass {
    fn name(&self) -> &'static str {
        demand::KIND
    }

    fn description(&self) -> &'static str {
        "moves selections of places up, before the work that they leave out"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &[placement::KIND, demand::KIND]
    }

    fn run(&self, context: &Context, log: &mut PlanLog) -> Result<Effect> {
        let analysis = context.analysis()?;
        let edits = demand::edits(analysis);
        if edits.is_empty() {
            return Ok(Effect::Nothing);
        }
        // If the new tensors cannot be stored, the selections stay.
        let Ok(edited) = context
            .settings
            .edited(&edits, analysis, Neighbours::Simplified, log)
        else {
            return Ok(Effect::Nothing);
        };
        let made = context.noted(edited, log);
        log.plan.tidy.selected += edits.len();
        Ok(Effect::made(made))
    }
}

/// Moves linear operators to the point where values have the fewest places.
pub(crate) struct PlacementPass;

impl Pass for PlacementPass {
    fn name(&self) -> &'static str {
        placement::KIND
    }

    fn description(&self) -> &'static str {
        "does linear work where values have the fewest places"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &[placement::KIND]
    }

    fn run(&self, context: &Context, log: &mut PlanLog) -> Result<Effect> {
        let analysis = context.analysis()?;
        loop {
            let moves = open_moves(context, analysis, log);
            if moves.is_empty() {
                let mut stay = placement::refusals(analysis, context.settings.target);
                stay.retain(|placed| !is_skipped(context, placed));
                log.unplaced = stay;
                return Ok(Effect::Nothing);
            }
            let edits: Vec<Edit> = moves.iter().map(|found| found.edit.clone()).collect();
            match context
                .settings
                .edited(&edits, analysis, Neighbours::Simplified, log)
            {
                Ok(edited) => {
                    let placed = moves.into_iter().map(|found| found.placed);
                    log.plan.placed.extend(placed);
                    return Ok(Effect::made(context.noted(edited, log)));
                }
                Err(failed) => refuse(context, moves, &failed, log)?,
            }
        }
    }
}

/// The moves that neither `--skip` nor an earlier failure refuses.
fn open_moves(context: &Context, analysis: &Analysis, log: &PlanLog) -> Vec<PlacementMove> {
    placement::moves(analysis, context.settings.target, &|placed| {
        is_skipped(context, placed) || is_refused(log, placed)
    })
}

fn is_skipped(context: &Context, placed: &Placed) -> bool {
    let skip = &context.settings.skip;
    skip.is_match(&placed.at) || skip.is_match(placed.rule)
}

fn is_refused(log: &PlanLog, placed: &Placed) -> bool {
    let mut before = log.plan.placed.iter();
    before.any(|other| !other.is_moved() && other.is_alike(placed))
}

/// Refuses the moves whose new tensors cannot be stored, and records them in the log. Returns an
/// error if none of the failed edits belongs to a move.
fn refuse(
    context: &Context,
    moves: Vec<PlacementMove>,
    failed: &[Failed],
    log: &mut PlanLog,
) -> Result<()> {
    let before = log.plan.placed.len();
    for (index, found) in moves.into_iter().enumerate() {
        if let Some(failed) = failed.iter().find(|failed| failed.sites.contains(&index)) {
            log.plan.placed.push(found.refused(failed.refusal.clone()));
        }
    }
    if log.plan.placed.len() == before {
        Err(defect(context.model(), failed))
    } else {
        Ok(())
    }
}
