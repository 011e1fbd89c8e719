//! The options of folding.

use globset::Glob;

use crate::affine::apply::RangeCheck;
use crate::affine::plan::{Plan, StreamPlan};
use crate::affine::recognize::hard_swish;
use crate::error::{Error, Result};
use crate::fuse::growth_budget::GrowthBudget;
use crate::fuse::observe::PassResult;
use crate::fuse::pass::Settings;
use crate::fuse::pipeline::PIPELINE;
use crate::fuse::runner::PipelineRun;
use crate::fuse::skip_patterns::{SkipSet, no_pattern};
use crate::fuse::stage::PipelineStage;
use crate::fuse::stop_after::StopAfter;
use crate::onnx::Model;
use crate::passes::half::{EndType, HalfType};
use crate::passes::legalize::Target;
use crate::passes::slice::Slicing;
use crate::provenance::FoldOptions;
use crate::residual;
use crate::run::Dims;

/// Called with the name of the stage, the work that is done, and the total work.
pub type OnProgress<'o> = &'o dyn Fn(&str, usize, usize);

/// The options of folding, and the callbacks for progress and for the results of passes.
pub struct FuseOptions<'o> {
    /// The names of passes that do not run, and the names or kinds of sites that stay. Patterns
    /// with `*` and `?` are allowed for sites.
    pub skip: Vec<String>,
    /// The limit for the growth by copies of weights, in percent of all weights. If other nodes
    /// read a weight too, a fold copies it. The sites with the largest growth stay until the growth
    /// by the remaining sites respects the limit. The default is 5.
    pub max_growth: f64,
    /// Whether residual streams are centred, so that LayerNormalizations become RMS normalizations.
    pub centre: bool,
    /// Whether a normalizer is removed if only other normalizers follow it. The result is equal
    /// except for the effect of ε.
    pub merge_norms: bool,
    /// Whether a normalizer is taken as constant if `var + ε` rounds to its ε in floating point.
    pub constant_norms: bool,
    /// The engine that runs the result.
    pub target: Target,
    /// The k of the factor `2^-k` by which residual streams are scaled.
    /// [`StreamMagnitude`](crate::StreamMagnitude) finds a k that fits.
    pub scale_stream: Option<u32>,
    /// The half-precision type to which the result is converted.
    pub to: Option<HalfType>,
    /// The type of inputs and outputs of a converted result.
    pub io: EndType,
    /// Sizes that replace unknown dimensions of the inputs, by name of the dimension. The result
    /// declares these sizes, and its shape arithmetic is folded.
    /// [`Input::sizes`](crate::run::Input::sizes) has a possible size for each unknown dimension.
    pub fix: Dims,
    /// Whether regions run in parts, to limit the memory of activations, and which.
    pub slicing: Slicing,
    /// A number of changes of the model, or the name of a pass. Folding stops after this number of
    /// changes, or after the first run of this pass.
    pub stop_after: Option<String>,
    /// Called with the name of the stage, the work that is done, and the total work.
    pub progress: Option<OnProgress<'o>>,
    /// Called after each pass that changes the model.
    pub observer: Option<&'o dyn Fn(&PassResult)>,
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
            constant_norms,
            scale_stream,
            target,
            to,
            io,
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
            constant_norms,
            scale_stream,
            target,
            to,
            io,
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
            constant_norms,
            scale_stream,
            target,
            to,
            io,
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
            constant_norms: *constant_norms,
            scale_stream: *scale_stream,
            target: *target,
            to: *to,
            io: *io,
            fix: fix.clone(),
            slicing: slicing.clone(),
            stop_after: stop_after.clone(),
        }
    }

    /// The pipeline with these options for a model.
    ///
    /// # Errors
    /// If there are too many patterns to skip, the scale of streams is out of range, or the pass to
    /// stop after does not exist.
    pub(super) fn pipeline<'r>(
        &'r self,
        model: &Model,
        tell: &'r dyn Fn(&str, usize, usize),
    ) -> Result<PipelineRun<'r>> {
        let settings = Settings {
            only: None,
            range_check: RangeCheck::Done,
            skip: SkipSet::new(&self.skip)?,
            centre: self.centre,
            gives_shifts_away: self.centre,
            merge_norms: self.merge_norms,
            constant_norms: self.constant_norms,
            growth: GrowthBudget::new(model, self.max_growth),
            scale_stream: self.scale_stream,
            half: self.to.map(|to| (to, self.io)),
            target: self.target,
            slicing: &self.slicing,
            tell,
        };
        self.scale_stream
            .map(residual::stream_scaling::possible)
            .transpose()?;
        let stop_after = self.stop_after.as_deref();
        Ok(PipelineRun {
            stages: PIPELINE,
            settings,
            stop_after: stop_after.map(pass_to_stop_after).transpose()?,
            observer: self.observer,
        })
    }

    /// The entries of `skip` that match no pass, no site or kind of the plan, and no function of
    /// the model. These entries may be misspelled.
    pub fn idle_skips(&self, model: &Model, plan: &Plan) -> Vec<&str> {
        let skip = self.skip.iter().map(String::as_str);
        skip.filter(|pattern| is_idle(pattern, model, plan))
            .collect()
    }

    /// Returns an error for an entry of `skip` that is an invalid pattern, unless it equals a name
    /// or a kind.
    pub(super) fn check_skips(&self, model: &Model, plan: &Plan) -> Result<()> {
        for pattern in self.idle_skips(model, plan) {
            if let Err(error) = Glob::new(pattern) {
                return Err(no_pattern(pattern, &error));
            }
        }
        Ok(())
    }

    /// The names of the options that request a change of the whole model, but whose change is not
    /// in the plan.
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
        if self.constant_norms && plan.constants() == 0 {
            idle.push("constant_norms");
        }
        if self.scale_stream.is_some() && !streams.iter().any(StreamPlan::is_scaled) {
            idle.push("scale_stream");
        }
        if self.to.is_some() && plan.half.is_none() {
            idle.push("to");
        }
        if self.slicing.parts.is_some() && cuts.count() == 0 {
            idle.push("slice");
        }
        idle
    }
}

/// The kinds of changes that `--skip` knows besides passes and sites.
const KINDS: &[&str] = &[hard_swish::KIND, residual::CENTRING, residual::SCALING];

/// Whether an entry of `skip` matches no pass that can be skipped, and no kind, function, stream or
/// site.
fn is_idle(pattern: &str, model: &Model, plan: &Plan) -> bool {
    let Ok(skip) = SkipSet::new(&[pattern.to_owned()]) else {
        return true;
    };
    let mut passes = PIPELINE.iter().flat_map(PipelineStage::passes);
    let mut kinds = KINDS.iter();
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

/// Parses the point to stop after: a number of changes, or the name of a pass.
fn pass_to_stop_after(name: &str) -> Result<StopAfter> {
    name.parse().map_err(|reason| Error::StopAfter {
        pass: name.to_owned(),
        reason,
    })
}
