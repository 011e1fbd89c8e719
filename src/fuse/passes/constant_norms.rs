//! The pass that replaces normalizers that are constant in floating point.

use crate::affine::recognize::{Site, View};
use crate::error::Result;
use crate::fuse::edits::Neighbours;
use crate::fuse::pass::{Context, Effect, Pass};
use crate::fuse::plan_log::PlanLog;
use crate::residual::constant_norms::constant;

/// Replaces normalizers whose ε is so large that it hides the variance, with `--constant-norms`.
pub(crate) struct ConstantNorms;

impl Pass for ConstantNorms {
    fn name(&self) -> &'static str {
        "constant-norms"
    }

    fn description(&self) -> &'static str {
        "takes normalizers as constant whose epsilon hides their variance, with --constant-norms"
    }

    fn is_exact(&self) -> bool {
        false
    }

    fn run(&self, context: &Context, log: &mut PlanLog) -> Result<Effect> {
        if !context.settings.constant_norms {
            return Ok(Effect::Nothing);
        }
        let sites = context.take_sites()?;
        let view = View::new(context.analysis()?);
        let skip = &context.settings.skip;
        let is_skipped = |site: &Site| skip.has(&site.name, &site.kind);
        let (norms, edits) = constant(&view, &sites, &is_skipped);
        context.keep_sites(sites);
        log.plan.constant = norms;
        let made = context.rewritten(&edits, Neighbours::Stay, log)?;
        Ok(Effect::from_model(made))
    }
}
