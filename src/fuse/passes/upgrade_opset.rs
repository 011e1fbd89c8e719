//! The pass that upgrades a model to a newer operator set.

use crate::affine::plan::OpsetUpgrade;
use crate::error::Result;
use crate::fuse::pass::{Context, Effect, Pass};
use crate::fuse::plan_log::PlanLog;
use crate::passes::upgrade_opset::raised;

/// Upgrades a model to the operator set that introduced an operator, if the model writes this
/// operator as several nodes.
pub(crate) struct UpgradeOpset;

impl Pass for UpgradeOpset {
    fn name(&self) -> &'static str {
        "upgrade-opset"
    }

    fn description(&self) -> &'static str {
        "moves the model to the operator set of an operator that it writes out (`hard swish`, `LN`)"
    }

    fn run(&self, context: &Context, log: &mut PlanLog) -> Result<Effect> {
        let skip = &context.settings.skip;
        let becomes_half = context.settings.half.is_some();
        let raised = raised(context.analysis()?, becomes_half, &|name| {
            skip.is_match(name)
        });
        let Some((model, OpsetUpgrade { from, to })) = raised else {
            return Ok(Effect::Nothing);
        };
        // A fold may leave an operator that a still newer set has.
        let from = log.plan.tidy.raised.map_or(from, |first| first.from);
        log.plan.tidy.raised = Some(OpsetUpgrade { from, to });
        Ok(Effect::made(model))
    }
}
