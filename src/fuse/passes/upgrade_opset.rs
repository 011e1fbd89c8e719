//! The pass that upgrades a model to a newer operator set.

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
        "moves the model to the operator set of an operator that it writes out (`hard swish`)"
    }

    fn run(&self, context: &Context, log: &mut PlanLog) -> Result<Effect> {
        let skip = &context.settings.skip;
        let Some((model, change)) = raised(context.analysis()?, &|name| skip.is_match(name)) else {
            return Ok(Effect::Nothing);
        };
        log.plan.tidy.raised = Some(change);
        Ok(Effect::made(model))
    }
}
