//! The options of folding.

use globset::Glob;

use crate::affine::plan::{Plan, StreamPlan};
use crate::affine::recognize::hard_swish;
use crate::error::{Error, Result};
use crate::fuse::growth_budget::GrowthBudget;
use crate::fuse::observe::OnPass;
use crate::fuse::pass::Settings;
use crate::fuse::pipeline::PIPELINE;
use crate::fuse::runner::Pipeline;
use crate::fuse::skips::{SkipSet, no_pattern};
use crate::fuse::stage::PipelineStage;
use crate::fuse::stop_after::StopAfter;
use crate::onnx::Model;
use crate::passes::legalize::Target;
use crate::passes::simplify;
use crate::passes::slice::Slicing;
use crate::progress::OnProgress;
use crate::provenance::FoldOptions;
use crate::residual;
use crate::run::Dims;

/// The options of folding, and a progress callback.
pub struct FuseOptions<'o> {
    /// Passes that do not run, by their names, and sites that stay: names or kinds, or patterns of them with `*` and `?`.
    pub skip: Vec<String>,
    /// How much copies of weights that something else reads too may add, in percent of the weights. Sites beyond it
    /// stay, those first that add the most; by default 5.
    pub max_growth: f64,
    /// Whether residual streams are centred, so that LayerNormalizations become RMS normalizations.
    pub centre: bool,
    /// Whether a normalizer goes where only others follow it, which is equal up to their ε.
    pub merge_norms: bool,
    /// The engine that the result is for.
    pub target: Target,
    /// Scales residual streams by `2^-k`, for this k: [`StreamMagnitude`](crate::magnitude::StreamMagnitude) finds one.
    pub scale_stream: Option<u32>,
    /// Sizes of open dimensions of the inputs, by name: the result declares them as numbers, and its shape arithmetic is
    /// folded. [`Input::sizes`](crate::run::Input::sizes) has one for each.
    pub fix: Dims,
    /// Which regions run part by part, to bound the memory of activations.
    pub slicing: Slicing,
    /// A pass or a number: the run stops after the first run of the pass, or after so many changes.
    pub stop_after: Option<String>,
    /// Is told the stage, and how much of it is done out of how much.
    pub progress: Option<OnProgress<'o>>,
    /// Is called after each pass that makes another model.
    pub observer: Option<OnPass<'o>>,
}

impl Default for FuseOptions<'_> {
    fn default() -> Self {
        FoldOptions::default().into()
    }
}

impl From<FoldOptions> for FuseOptions<'_> {
    fn from(
        FoldOptions {
            skip,
            max_growth,
            centre,
            merge_norms,
            scale_stream,
            target,
            fix,
            slicing,
            stop_after,
        }: FoldOptions,
    ) -> Self {
        Self {
            skip,
            max_growth,
            centre,
            merge_norms,
            scale_stream,
            target,
            fix,
            slicing,
            stop_after,
            progress: None,
            observer: None,
        }
    }
}

impl FuseOptions<'_> {
    /// The options that change the result.
    pub fn chosen(&self) -> FoldOptions {
        let Self {
            skip,
            max_growth,
            centre,
            merge_norms,
            scale_stream,
            target,
            fix,
            slicing,
            stop_after,
            ..
        } = self;
        FoldOptions {
            skip: skip.clone(),
            max_growth: *max_growth,
            centre: *centre,
            merge_norms: *merge_norms,
            scale_stream: *scale_stream,
            target: *target,
            fix: fix.clone(),
            slicing: slicing.clone(),
            stop_after: stop_after.clone(),
        }
    }

    /// The pipeline with these options, for a model.
    ///
    /// # Errors
    /// If there are too many patterns to skip, the scale of streams is out of range, or no pass has the name of the one to
    /// stop after.
    pub(super) fn pipeline<'r>(
        &'r self,
        model: &Model,
        tell: &'r dyn Fn(&str, usize, usize),
    ) -> Result<Pipeline<'r>> {
        let settings = Settings {
            skip: SkipSet::new(&self.skip)?,
            centre: self.centre,
            gives_shifts_away: self.centre,
            merge_norms: self.merge_norms,
            growth: GrowthBudget::new(model, self.max_growth),
            scale_stream: self.scale_stream,
            target: self.target,
            slicing: &self.slicing,
            tell,
        };
        self.scale_stream
            .map(residual::stream_scaling::possible)
            .transpose()?;
        let stop_after = self.stop_after.as_deref();
        Ok(Pipeline {
            stages: PIPELINE,
            settings,
            stop_after: stop_after.map(pass_to_stop_after).transpose()?,
            observer: self.observer,
        })
    }

    /// The entries of `skip` that are neither name of a pass, nor name or kind of any site of a plan, nor name a function of
    /// the model: misspelled, perhaps.
    pub fn idle_skips(&self, model: &Model, plan: &Plan) -> Vec<&str> {
        let skip = self.skip.iter().map(String::as_str);
        skip.filter(|pattern| is_idle(pattern, model, plan))
            .collect()
    }

    /// Refuses an invalid pattern, unless it is literally a name or a kind.
    pub(super) fn check_skips(&self, model: &Model, plan: &Plan) -> Result<()> {
        for pattern in self.idle_skips(model, plan) {
            if let Err(error) = Glob::new(pattern) {
                return Err(no_pattern(pattern, &error));
            }
        }
        Ok(())
    }

    /// The changes of more than one site that were asked for, by the names of their fields, and that a plan has none of.
    pub fn idle_changes(&self, plan: &Plan) -> Vec<&'static str> {
        let streams = &plan.streams;
        let cuts = plan.memory.iter().flat_map(|memory| &memory.cuts);
        let mut idle = vec![];
        if self.centre && !streams.iter().any(StreamPlan::is_centred) {
            idle.push("centre");
        }
        if self.merge_norms && plan.merged.is_empty() {
            idle.push("merge_norms");
        }
        if self.scale_stream.is_some() && !streams.iter().any(StreamPlan::is_scaled) {
            idle.push("scale_stream");
        }
        if self.slicing.parts.is_some() && cuts.count() == 0 {
            idle.push("slice");
        }
        idle
    }
}

/// The kinds of changes beside passes that `--skip` knows.
const KINDS: &[&str] = &[hard_swish::KIND, residual::CENTRING, residual::SCALING];

/// Whether an entry of `skip` has no effect.
fn is_idle(pattern: &str, model: &Model, plan: &Plan) -> bool {
    let Ok(skip) = SkipSet::new(&[pattern.to_owned()]) else {
        return true;
    };
    let mut passes = PIPELINE.iter().flat_map(PipelineStage::passes);
    let mut kinds = KINDS.iter().chain(&simplify::KINDS);
    let mut functions = model.proto.functions.iter();
    let mut sites = plan.sites.iter();
    !passes.any(|pass| !pass.is_required() && skip.skips(pass.name(), pass.aliases()))
        && !kinds.any(|kind| skip.is_match(kind))
        && !functions.any(|function| skip.is_match(function.name()))
        && !plan
            .streams
            .iter()
            .any(|stream| skip.is_match(&stream.name))
        && !sites.any(|site| skip.has(&site.name, &site.kind))
}

/// The pass of this name, or the number of changes.
fn pass_to_stop_after(name: &str) -> Result<StopAfter> {
    name.parse().map_err(|reason| Error::StopAfter {
        pass: name.to_owned(),
        reason,
    })
}
