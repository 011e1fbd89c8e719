//! The pipeline of a model: inline, then recognize, plan, apply and simplify until nothing more
//! folds. Where calls of functions remain, it runs again with all of them inlined, and that result
//! is taken if more folds.

mod graph_equality;
mod pipeline;
pub(crate) mod plan_log;
mod skips;

use globset::Glob;

use self::skips::{SkipSet, no_pattern};
use crate::affine::plan::{Plan, StreamPlan};
use crate::affine::recognize::hard_swish;
use crate::error::{Error, Result};
use crate::fuse::pipeline::{GrowthBudget, Pipeline, forms_for, not_known};
use crate::ir::Graph;
use crate::onnx::Model;
use crate::onnx::tensor::check_size;
use crate::passes::inline::{Lowered, Lowering, lower, opaque, operators, written_out};
use crate::passes::legalize::{self, Target};
use crate::passes::simplify;
use crate::passes::slice::{SLICING, Slicing};
use crate::passes::{demand, placement};
use crate::progress::OnProgress;
use crate::provenance::{FoldOptions, Provenance};
use crate::residual;
use crate::run::{Dims, fixed};

/// The options of folding, and a progress callback.
pub struct FuseOptions<'o> {
    /// Sites that stay: names or kinds, or patterns of them with `*` and `?`.
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
    /// Is told the stage, and how much of it is done out of how much.
    pub progress: Option<OnProgress<'o>>,
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
            progress: None,
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
        }
    }

    /// The patterns to skip that are neither name nor kind of any site of a plan, nor name a function of the model:
    /// misspelled, perhaps.
    pub fn idle_skips(&self, model: &Model, plan: &Plan) -> Vec<&str> {
        let is_idle = |pattern: &&String| {
            let meant = |set: SkipSet| {
                simplify::KINDS
                    .iter()
                    .chain(&residual::KINDS)
                    .chain([
                        &hard_swish::KIND,
                        &legalize::KIND,
                        &placement::KIND,
                        &demand::KIND,
                        &SLICING,
                    ])
                    .any(|kind| set.is_match(kind))
                    || plan.streams.iter().any(|stream| set.is_match(&stream.name))
                    || model
                        .proto
                        .functions
                        .iter()
                        .any(|function| set.is_match(function.name()))
                    || plan
                        .sites
                        .iter()
                        .any(|site| set.has(&site.name, &site.kind))
            };
            !SkipSet::new(std::slice::from_ref(pattern)).is_ok_and(meant)
        };
        self.skip
            .iter()
            .filter(is_idle)
            .map(String::as_str)
            .collect()
    }

    /// Refuses an invalid pattern, unless it is literally a name or a kind.
    fn check_skips(&self, model: &Model, plan: &Plan) -> Result<()> {
        let wrong = |pattern: &str| {
            Glob::new(pattern)
                .err()
                .map(|error| no_pattern(pattern, &error))
        };
        self.idle_skips(model, plan)
            .into_iter()
            .find_map(wrong)
            .map_or(Ok(()), Err)
    }

    /// The changes of more than one site that were asked for, by the names of their fields, and that a plan has none of.
    pub fn idle_changes(&self, plan: &Plan) -> Vec<&'static str> {
        let changes = [
            (
                "centre",
                self.centre,
                plan.streams.iter().any(StreamPlan::is_centred),
            ),
            ("merge_norms", self.merge_norms, !plan.merged.is_empty()),
            (
                "scale_stream",
                self.scale_stream.is_some(),
                plan.streams.iter().any(StreamPlan::is_scaled),
            ),
            (
                "slice",
                self.slicing.parts.is_some(),
                plan.memory.as_ref().is_some_and(|it| !it.cuts.is_empty()),
            ),
        ];
        let idle = changes
            .into_iter()
            .filter(|(_, asked, done)| *asked && !done);
        idle.map(|(name, ..)| name).collect()
    }
}

/// A model after the pipeline, with the plan.
pub struct Fused {
    /// The result; equal to the input where the plan is empty.
    pub model: Model,
    /// The changes, and the refusals.
    pub plan: Plan,
    /// The reference of the comparison, where it differs from the input: with the sizes of
    /// [`FuseOptions::fix`], with opaque normalizers inlined for engines that do not know them, and
    /// with functions inlined where more folds then.
    pub lowered: Option<Model>,
}

impl Fused {
    /// Whether the result differs from the input.
    pub fn changed(&self) -> bool {
        self.lowered.is_some() || !self.plan.is_empty()
    }
}

/// A plan that is not carried out.
pub struct Planned {
    /// The changes that would be made, and the refusals.
    pub plan: Plan,
    /// As [`Fused::lowered`]: the model whose nodes the plan names.
    pub lowered: Option<Model>,
}

/// Plans without changing anything: runs [`fuse`] and drops the result.
///
/// # Errors
/// If the model's graph is invalid, a `skip` is neither a name nor a valid glob, the scale of
/// streams is out of range, a dimension to fix does not exist, or a resolver fails.
pub fn plan(model: &Model, options: &FuseOptions) -> Result<Plan> {
    Ok(dry_run(model, options)?.plan)
}

/// As [`plan`], with the model that the plan is for.
///
/// # Errors
/// As [`plan`].
pub fn dry_run(model: &Model, options: &FuseOptions) -> Result<Planned> {
    let (_, plan, lowered) = run(model, options)?;
    Ok(Planned { plan, lowered })
}

/// Folds everything that is exact to fold, and notes the origin in the metadata of the result: a
/// [`Provenance`].
///
/// # Errors
/// As [`plan`]. A refused fold is no error: the plan has the reason.
///
/// ```
/// use unfold::onnx::Model;
/// let model = Model::open("models/digits/un-dynamo.onnx")?;
/// let fused = unfold::fuse(&model, &Default::default())?;
/// assert!(fused.plan.sites.iter().all(|site| site.is_folded()));
/// assert!(fused.model.graph().node.len() < model.graph().node.len());
/// # Ok::<(), unfold::error::Error>(())
/// ```
pub fn fuse(model: &Model, options: &FuseOptions) -> Result<Fused> {
    let mut fused = fuse_ahead(model, options)?;
    fused.model.settle()?;
    Ok(fused)
}

/// As [`fuse`], without waiting for the digest of what the model was read from, which takes longer than folding: the metadata
/// of the result has zeros for it. It is filled in while the result is written, in whatever way, or by [`Model::settle`].
///
/// ```
/// use unfold::onnx::Model;
/// let model = Model::open("models/digits/un-dynamo.onnx")?;
/// let ahead = unfold::fuse_ahead(&model, &Default::default())?;
/// let fused = unfold::fuse(&model, &Default::default())?;
/// assert_eq!(ahead.model.to_bytes()?, fused.model.to_bytes()?);
/// # Ok::<(), unfold::error::Error>(())
/// ```
///
/// # Errors
/// As [`fuse`].
pub fn fuse_ahead(model: &Model, options: &FuseOptions) -> Result<Fused> {
    model.begin_sha256();
    let (result, plan, lowered) = run(model, options)?;
    let result = result.unwrap_or_else(|| lowered.as_ref().unwrap_or(model).clone());
    let mut fused = Fused {
        model: result,
        plan,
        lowered,
    };
    if fused.changed() {
        fused.model.forget_source();
        Provenance::note(&mut fused.model, model, &fused.plan, options.chosen());
    }
    Ok(fused)
}

/// The result, if anything changed; the plan; and the input after inlining, if it differs.
type Run = (Option<Model>, Plan, Option<Model>);

/// Fixes dimensions with given sizes, runs the pipeline, and checks that all data could be read,
/// and that all skips are names or patterns.
fn run(model: &Model, options: &FuseOptions) -> Result<Run> {
    model
        .graph()
        .initializer
        .iter()
        .try_for_each(|tensor| match check_size(tensor) {
            Err(Error::Tensor { tensor, reason }) => Err(Error::Graph {
                file: model.file(),
                node: tensor,
                reason,
            }),
            fits => fits,
        })?;
    let fixed = (!options.fix.is_empty())
        .then(|| fixed(model, &options.fix))
        .transpose()?;
    let (result, plan, lowered) = run_pipeline(fixed.as_ref().unwrap_or(model), options)?;
    model.find_refused()?;
    options.check_skips(model, &plan)?;
    Ok((result, plan, lowered.or(fixed)))
}

/// Passes over the model until one finds nothing to do: where something went, operators meet that did not
/// before.
fn run_pipeline(model: &Model, options: &FuseOptions) -> Result<Run> {
    let tell = |stage: &str, done, of| {
        if let Some(progress) = options.progress {
            progress(stage, done, of);
        }
    };
    let skip = SkipSet::new(&options.skip)?;
    options
        .scale_stream
        .map(residual::stream_scaling::possible)
        .transpose()?;
    let is_kept = {
        let skip = skip.clone();
        move |name: &str, op: &str| skip.is_match(name) || skip.is_match(op)
    };
    let lowered = lower(model, &is_kept);
    if !matches!(lowered, Ok(None)) {
        // The input is checked first, so that errors name its own nodes.
        Graph::new(model)?;
    }
    let (lowered, formulas) = lowered?.map_or((None, vec![]), |lowered| {
        (Some(lowered.model), lowered.formulas)
    });
    let first = lowered.as_ref().unwrap_or(model);
    let FuseOptions {
        centre,
        merge_norms,
        scale_stream,
        target,
        ..
    } = *options;
    let (growth, forms) = (GrowthBudget::new(model, options), forms_for(&skip));
    let slicing = &options.slicing;
    let gives_shifts_away = centre;
    let mut pass = Pipeline {
        skip,
        centre,
        gives_shifts_away,
        merge_norms,
        scale_stream,
        target,
        growth,
        forms,
        slicing,
        tell: &tell,
    };
    let (mut result, mut plan) = pass.run(first, &formulas)?;
    if centre && !plan.streams.iter().any(StreamPlan::is_centred) {
        // Every normalizer takes the mean off: a shift outside of one is an Add for nothing.
        pass.gives_shifts_away = false;
        let streams = std::mem::take(&mut plan.streams);
        (result, plan) = pass.run(first, &formulas)?;
        // A stream inherits the refusal of the stream whose normalizers have no shift.
        plan.streams_centred_as(streams);
    }
    // A flaw in a body that need not be inlined is no error.
    if let Some(Lowered {
        model: all,
        formulas,
    }) = all_written_out(model, first, &is_kept)
        && let Ok((written, further)) = pass.run(&all, &formulas)
    {
        let fewer = || {
            let [as_is, all] = [(&result, first), (&written, &all)].map(|(result, first)| {
                operators(result.as_ref().unwrap_or(first)).unwrap_or(usize::MAX)
            });
            plan.gone() > 0 && all < as_is
        };
        if further.gone() > plan.gone() || further.gone() == plan.gone() && fewer() {
            return Ok((written, further, Some(all)));
        }
    }
    Ok((result, plan, lowered))
}

/// The model with everything inlined; `None` where that adds nothing to inlining normalizers, or
/// where nothing would fold.
fn all_written_out(
    model: &Model,
    lowered: &Model,
    is_kept: &dyn Fn(&str, &str) -> bool,
) -> Option<Lowered> {
    if opaque(lowered).is_empty() || not_known(lowered).is_some() {
        return None;
    }
    let all = written_out(model, Lowering::All, is_kept).ok()??;
    (opaque(&all.model) != opaque(lowered)).then_some(all)
}
