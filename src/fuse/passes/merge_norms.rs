//! The pass that removes normalizers that only other normalizers follow.

use crate::affine::recognize::View;
use crate::error::Result;
use crate::fuse::edits::Neighbours;
use crate::fuse::pass::{Context, Effect, Pass};
use crate::fuse::plan_log::PlanLog;
use crate::residual::norm_merging;

/// Removes a normalizer if only other normalizers follow it, with `--merge-norms`.
pub(crate) struct MergeNorms;

impl Pass for MergeNorms {
    fn name(&self) -> &'static str {
        "merge-norms"
    }

    fn description(&self) -> &'static str {
        "removes a normalizer that only others follow, with --merge-norms"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &[norm_merging::MERGING]
    }

    fn is_exact(&self) -> bool {
        false
    }

    fn run(&self, context: &Context, log: &mut PlanLog) -> Result<Effect> {
        if !context.settings.merge_norms {
            return Ok(Effect::Nothing);
        }
        let sites = context.take_sites()?;
        let view = View::new(context.analysis()?);
        let skip = &context.settings.skip;
        let (mut merged, edits) = norm_merging::merged(&view, &sites, &|name| skip.is_match(name));
        context.keep_sites(sites);
        log.plan.merged.append(&mut merged);
        let made = context.rewritten(&edits, Neighbours::Simplified, log)?;
        Ok(Effect::from_model(made))
    }
}
