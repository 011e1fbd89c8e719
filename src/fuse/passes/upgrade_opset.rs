//! The passes that upgrade a model to a newer operator set.

use crate::affine::plan::OpsetUpgrade;
use crate::error::Result;
use crate::fuse::pass::{Context, Effect, Pass, Settings};
use crate::fuse::plan_log::PlanLog;
use crate::passes::upgrade_opset::{NewerSet, WITH_HARD_SWISH, WITH_LAYER_NORM};

/// Upgrades a model to the operator set that introduced an operator, if the model writes this
/// operator as several nodes.
pub(crate) struct UpgradeOpset {
    name: &'static str,
    description: &'static str,
    set: &'static NewerSet,
    is_wanted: fn(&Settings<'_>) -> bool,
}

/// Upgrades a model that writes out a HardSwish.
pub(crate) static UPGRADE_FOR_HARD_SWISH: UpgradeOpset = UpgradeOpset {
    name: "upgrade-for-hard-swish",
    description: "upgrades the model to the operator set of a HardSwish that it writes out",
    set: &WITH_HARD_SWISH,
    is_wanted: |_| true,
};

/// Upgrades a model that writes out a LayerNormalization.
pub(crate) static UPGRADE_FOR_LAYER_NORM: UpgradeOpset = UpgradeOpset {
    name: "upgrade-for-layer-norm",
    description: "upgrades the model to the operator set of a LayerNormalization in parts",
    set: &WITH_LAYER_NORM,
    is_wanted: |settings| settings.writes_layer_norms(),
};

impl Pass for UpgradeOpset {
    fn name(&self) -> &'static str {
        self.name
    }

    fn description(&self) -> &'static str {
        self.description
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["upgrade-opset"]
    }

    fn run(&self, context: &Context, log: &mut PlanLog) -> Result<Effect> {
        if !(self.is_wanted)(context.settings) {
            return Ok(Effect::Nothing);
        }
        let skip = &context.settings.skip;
        let upgraded = self
            .set
            .upgraded(context.analysis()?, &|name| skip.is_match(name));
        let Some((model, OpsetUpgrade { from, to })) = upgraded else {
            return Ok(Effect::Nothing);
        };
        // A fold may leave an operator that a still newer set has.
        let from = log.plan.tidy.raised.map_or(from, |first| first.from);
        log.plan.tidy.raised = Some(OpsetUpgrade { from, to });
        Ok(Effect::made(model))
    }
}
