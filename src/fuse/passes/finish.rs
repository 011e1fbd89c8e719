//! Passes that finish the result: they keep the input if nothing changed, restore bodies, and drop
//! declared shapes.

use crate::error::Result;
use crate::fuse::graph_equality::is_unchanged;
use crate::fuse::pass::{Context, Effect, Pass, checked};
use crate::fuse::plan_log::PlanLog;
use crate::passes::simplify;

/// Takes the input as the result, if the rewrites of earlier passes have undone each other.
pub(crate) struct KeepInput;

impl Pass for KeepInput {
    fn name(&self) -> &'static str {
        "keep-input"
    }

    fn description(&self) -> &'static str {
        "takes the input itself where changes of form have undone each other"
    }

    fn run(&self, context: &Context, log: &mut PlanLog) -> Result<Effect> {
        let is_input = |result| log.may_be_unchanged() && is_unchanged(context.first(), result);
        if !context.result().is_some_and(is_input) {
            return Ok(Effect::Nothing);
        }
        log.is_unchanged();
        Ok(Effect::Input)
    }
}

/// Moves the nodes of flattened bodies back into their bodies.
pub(crate) struct RestoreRegions;

impl Pass for RestoreRegions {
    fn name(&self) -> &'static str {
        "restore-regions"
    }

    fn description(&self) -> &'static str {
        "puts the nodes of flattened bodies back into them"
    }

    fn is_required(&self) -> bool {
        true
    }

    fn reads_unknown_operators(&self) -> bool {
        true
    }

    fn run(&self, context: &Context, log: &mut PlanLog) -> Result<Effect> {
        log.keep_tensors_of(context.model());
        let (Some(flat), Some(result)) = (context.bases.flat.get(), context.result()) else {
            return Ok(Effect::Nothing);
        };
        let Some(restored) = flat.restore(result) else {
            return Ok(Effect::Unrestorable);
        };
        // Restoring a dead region can break topological order.
        let restored = simplify::sorted(restored);
        checked(
            context.bases.inlined(),
            &restored,
            Some(self.name()),
            context.bases.answers.clone(),
        )?;
        context.bases.is_restored.set(true);
        Ok(Effect::made(restored))
    }
}

/// Drops shapes with unknown extents from `value_info`, because with them onnxruntime reuses memory
/// that is no longer in the cache.
pub(crate) struct StripShapes;

impl Pass for StripShapes {
    fn name(&self) -> &'static str {
        "strip-shapes"
    }

    fn description(&self) -> &'static str {
        "drops the open shapes in value_info that slow the target engine down"
    }

    fn run(&self, context: &Context, log: &mut PlanLog) -> Result<Effect> {
        let model = context.result_or_inlined();
        if !model.proto.training_info.is_empty() {
            return Ok(Effect::Nothing);
        }
        let Some((graph, count)) = context.settings.target.without_open_shapes(model.graph())
        else {
            return Ok(Effect::Nothing);
        };
        log.plan.tidy.untold = count;
        log.plan.is_tidied = true;
        Ok(Effect::made(model.with_graph(graph)))
    }
}
