//! Passes that prepare the input: inlining and flattening.

use crate::error::Result;
use crate::fuse::pass::{Context, Effect, Pass};
use crate::fuse::plan_log::PlanLog;
use crate::ir::Graph;
use crate::ir::regions::Flat;
use crate::passes::inline::lower;

/// Replaces opaque normalizers by standard operators.
pub(crate) struct Inline;

impl Pass for Inline {
    fn name(&self) -> &'static str {
        "inline"
    }

    fn description(&self) -> &'static str {
        "writes opaque normalizers out, and function calls and sequences where more folds then"
    }

    fn reads_unknown_operators(&self) -> bool {
        true
    }

    fn run(&self, context: &Context, log: &mut PlanLog) -> Result<Effect> {
        let bases = context.bases;
        if let Some(inlined) = bases.inlined.get() {
            log.begin(&inlined.formulas);
            return Ok(Effect::Base);
        }
        let skip = &context.settings.skip;
        let lowered = lower(bases.model, &|name, operator| {
            skip.is_match(name) || skip.is_match(operator)
        });
        if !matches!(lowered, Ok(None)) {
            // If something was inlined, or if inlining failed, the input is checked first, so that
            // errors name nodes of the input.
            Graph::new(bases.model)?;
        }
        let Some(lowered) = lowered? else {
            return Ok(Effect::Nothing);
        };
        log.begin(&bases.inlined.get_or_init(|| lowered).formulas);
        Ok(Effect::Base)
    }
}

/// Flattens the bodies of If, Loop and Scan into the main graph.
pub(crate) struct FlattenRegions;

impl Pass for FlattenRegions {
    fn name(&self) -> &'static str {
        "flatten-regions"
    }

    fn description(&self) -> &'static str {
        "lays the bodies of If, Loop and Scan out in the main graph"
    }

    fn run(&self, context: &Context, _: &mut PlanLog) -> Result<Effect> {
        let bases = context.bases;
        if !bases.may_flatten {
            return Ok(Effect::Nothing);
        }
        let Some(flat) = Flat::new(bases.inlined()) else {
            return Ok(Effect::Nothing);
        };
        bases.flat.get_or_init(|| flat);
        Ok(Effect::Base)
    }
}
