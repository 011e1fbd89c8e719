//! The pass that cuts large regions into parts.

use crate::error::Result;
use crate::fuse::edits::Neighbours;
use crate::fuse::pass::{Context, Effect, Pass};
use crate::fuse::plan_log::PlanLog;
use crate::onnx::Model;
use crate::passes::legalize::Target;
use crate::passes::slice::{SLICING, sliced, sliced_by_default};
use crate::provenance::Provenance;

/// Runs independent regions in parts, with `--memory` or `--slice`. Without these options, cuts
/// attention if a mask hides many of its scores.
pub(crate) struct SlicePass;

impl Pass for SlicePass {
    fn name(&self) -> &'static str {
        "slice"
    }

    fn description(&self) -> &'static str {
        "cuts independent regions into parts: masked attention, and others with --memory or --slice"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &[SLICING]
    }

    fn run(&self, context: &Context, log: &mut PlanLog) -> Result<Effect> {
        let slicing = context.settings.slicing;
        if log.plan.memory.is_some() {
            return Ok(Effect::Nothing);
        }
        let obstacle = obstacle(context.settings.target, context.model());
        let analysis = context.analysis()?;
        let planned = match slicing.is_wanted() {
            true => {
                (context.settings.tell)("slice", 0, 1);
                Some(sliced(analysis, slicing, obstacle))
            }
            false if obstacle.is_some() => None,
            false => sliced_by_default(analysis),
        };
        let Some((mut change, edits)) = planned else {
            return Ok(Effect::Nothing);
        };
        let mut made = None;
        if !edits.is_empty() {
            match context
                .settings
                .edited(&edits, analysis, Neighbours::Stay, log)
            {
                Ok(edited) => {
                    log.rewritten(edited.stored, edited.growth, false);
                    made = Some(edited.model);
                }
                // The edits may exceed the limit for growth, because parts of a constant are copies
                // if another node reads the whole constant.
                Err(failed) => change.undo(failed.first().map(|it| it.refusal.to_string())),
            }
        }
        log.plan.memory = Some(change);
        Ok(Effect::from_model(made))
    }
}

/// The reason why a model is not sliced for a target, or `None` if it may be sliced. A portable
/// model may run on a GPU or another accelerator, whose engines fuse attention only if it is not
/// cut.
fn obstacle(target: Target, model: &Model) -> Option<&'static str> {
    match target {
        Target::Portable => Some("`--target portable` keeps each attention whole"),
        _ => was_sliced(model).then_some("it was sliced before"),
    }
}

/// Whether an earlier run sliced the model. A sliced model is not sliced again.
fn was_sliced(model: &Model) -> bool {
    let times = Provenance::from_model(model);
    times.iter().any(notes_slices)
}

/// Whether the metadata of an earlier run say that it sliced the model.
fn notes_slices(time: &Provenance) -> bool {
    let mut counts = time.folded.split(", ");
    counts.any(|count| matches!(count.split_once(' '), Some((kind, _)) if kind == SLICING))
}
