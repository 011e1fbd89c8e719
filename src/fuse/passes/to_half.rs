//! The pass that converts a model to half precision.

use crate::analysis::Analysis;
use crate::error::Result;
use crate::fuse::pass::{Context, Effect, Pass};
use crate::fuse::plan_log::PlanLog;
use crate::passes::half::to_half;

/// Converts weights and values to half precision, with `--to`.
pub(crate) struct ToHalf;

impl Pass for ToHalf {
    fn name(&self) -> &'static str {
        "to-half"
    }

    fn description(&self) -> &'static str {
        "converts weights and values to half precision, with --to"
    }

    fn is_exact(&self) -> bool {
        false
    }

    fn run(&self, context: &Context, log: &mut PlanLog) -> Result<Effect> {
        let Some((to, ends)) = context.settings.half else {
            return Ok(Effect::Nothing);
        };
        let unflattened;
        let analysis = if context.is_flat() {
            // No pass has changed the model, so its flattened bodies were not restored. The
            // unchanged model still has its bodies.
            unflattened = Analysis::new(context.result_or_inlined())?;
            &unflattened
        } else {
            context.analysis()?
        };
        let converted = to_half(analysis, to, ends)?;
        if converted.plan.operators == 0 {
            return Ok(Effect::Nothing);
        }
        log.rewritten(converted.stored, 0, false);
        log.plan.half = Some(converted.plan);
        Ok(Effect::made(converted.model))
    }
}
