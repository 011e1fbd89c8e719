//! The pipeline of a model: inline, then recognize, plan, apply and simplify until nothing folds
//! any more. If calls of functions remain, the pipeline runs again with all functions inlined. The
//! second result is taken if it has more folds, or equally many folds and fewer operators.

mod edits;
mod first_constants;
mod graph_equality;
mod growth_budget;
mod observe;
mod options;
mod pass;
mod pass_info;
mod passes;
mod pipeline;
pub(crate) mod plan_log;
#[cfg(all(test, feature = "prove"))]
mod planted_faults;
mod recompute;
mod runner;
mod single_pass;
mod skip_patterns;
mod stage;
mod stats;
mod stop_after;

use std::cell::OnceCell;

use crate::affine::apply::RangeCheck;
use crate::affine::plan::{Plan, StreamPlan};
use crate::error::{Error, Result};
use crate::fuse::pass::unknown_operators;
use crate::fuse::passes::prepare::Inline;
use crate::fuse::runner::PipelineRun;
use crate::onnx::Model;
use crate::onnx::tensor::check_size;
use crate::passes::half::{EndType, retyped_ends};
use crate::passes::inline::{Lowered, Lowering, opaque, operators, written_out};
use crate::provenance::{FoldOptions, Provenance};
use crate::run::fixed;

pub use observe::PassResult;
pub use options::{FuseOptions, OnProgress};
pub use pass_info::{PassInfo, StageInfo};
pub use single_pass::Pipeline;

/// The result of the pipeline, with the plan.
pub struct Fused {
    /// The result. If the plan is empty, it equals the model in `lowered`, or the input if there is
    /// no such model.
    pub model: Model,
    /// The changes and the refusals.
    pub plan: Plan,
    /// The model to compare the result with; `None` if this is the input itself. Its dimensions
    /// have the sizes of [`FuseOptions::fix`]. Opaque normalizers are inlined in it, because
    /// engines do not know them. Functions are inlined in it only if more folds then.
    pub lowered: Option<Model>,
}

impl Fused {
    /// Whether the result differs from the input.
    pub fn changed(&self) -> bool {
        self.lowered.is_some() || !self.plan.is_empty()
    }
}

/// A plan that is not applied.
pub(crate) struct Planned {
    /// The changes that would be made, and the refusals.
    pub plan: Plan,
    /// The model whose nodes the plan names, like [`Fused::lowered`].
    pub lowered: Option<Model>,
}

/// Plans without changing anything: runs [`fuse`] and drops the result.
///
/// # Errors
/// If the graph of the model is invalid, an entry of `skip` is neither a name nor a valid glob, the
/// scale of streams is out of range, a dimension to fix does not exist, or a resolver fails.
pub fn plan(model: &Model, options: &FuseOptions) -> Result<Plan> {
    Ok(dry_run(model, options)?.plan)
}

/// Like [`plan`], but also returns the model to which the plan applies.
///
/// # Errors
/// The errors of [`plan`].
pub(crate) fn dry_run(model: &Model, options: &FuseOptions) -> Result<Planned> {
    let (_, plan, lowered) = run(model, options, RunScope::default())?;
    Ok(Planned { plan, lowered })
}

/// Like [`plan`], but does not check that large new tensors fit their types. For callers that
/// compute these tensors anyway.
///
/// # Errors
/// The errors of [`plan`].
#[cfg(feature = "prove")]
pub(crate) fn plan_without_ranges(model: &Model, options: &FuseOptions) -> Result<Plan> {
    let scope = RunScope {
        range_check: RangeCheck::Left,
        ..RunScope::default()
    };
    let (_, plan, _) = run(model, options, scope)?;
    Ok(plan)
}

/// Folds everything that can be folded exactly. The metadata of the result record the run, as a
/// [`Provenance`].
///
/// # Errors
/// The errors of [`plan`]. A refused fold is not an error, and its reason is in the plan.
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
    Pipeline::default().run(model, options)
}

/// Like [`fuse`], but does not wait for the digest of the file from which the model was read,
/// because this digest takes longer than folding. Until the result is written or [`Model::settle`]
/// is called, its metadata has zeros in place of the digest.
///
/// # Errors
/// The errors of [`fuse`].
pub(crate) fn fuse_ahead(model: &Model, options: &FuseOptions) -> Result<Fused> {
    fuse_with(model, options, None)
}

/// Like [`fuse_ahead`]. If `only` is the name of a pass, runs only this pass and the required ones.
fn fuse_with(model: &Model, options: &FuseOptions, only: Option<&'static str>) -> Result<Fused> {
    model.begin_sha256();
    let scope = RunScope {
        only,
        ..RunScope::default()
    };
    let (result, plan, lowered) = run(model, options, scope)?;
    let result = result.unwrap_or_else(|| lowered.as_ref().unwrap_or(model).clone());
    let mut fused = Fused {
        model: result,
        plan,
        lowered,
    };
    if let Some(to) = options
        .to
        .filter(|_| fused.plan.half.is_some() && options.io == EndType::Half)
    {
        retyped_ends(&mut fused.model, to)?;
    }
    if fused.changed() {
        fused.model.forget_source();
        Provenance::note(&mut fused.model, model, &fused.plan, options.chosen());
    }
    Ok(fused)
}

/// Replaces only the normalizers that `constant_norms` takes as constant, and inlines opaque
/// normalizers. The result and the model differ as functions only because of the replaced
/// normalizers. So a proof compares a folded model with this result instead of the original model.
///
/// # Errors
/// The errors of [`fuse`].
pub fn with_constant_norms(model: &Model, options: &FuseOptions) -> Result<Fused> {
    let others = ["deduplicate-initializers", "identity-elimination"].map(str::to_owned);
    let alone = FoldOptions {
        skip: options.skip.iter().cloned().chain(others).collect(),
        stop_after: Some("constant-norms".to_owned()),
        constant_norms: true,
        to: None,
        ..options.chosen()
    };
    fuse(model, &alone.into())
}

/// The parts of a run that callers of this crate choose.
#[derive(Clone, Copy)]
struct RunScope {
    /// The only pass that runs besides the required ones; `None` if all run.
    only: Option<&'static str>,
    range_check: RangeCheck,
}

impl Default for RunScope {
    fn default() -> Self {
        Self {
            only: None,
            range_check: RangeCheck::Done,
        }
    }
}

/// The result if a pass after inlining changed the model, the plan, and the input after inlining
/// and with fixed dimensions if it differs from the input.
type Run = (Option<Model>, Plan, Option<Model>);

/// Gives dimensions their fixed sizes and runs the pipeline. Checks that all required data could be
/// read, and that each entry of `skip` is a name or a valid pattern.
fn run(model: &Model, options: &FuseOptions, scope: RunScope) -> Result<Run> {
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
    let (result, plan, lowered) = run_pipeline(fixed.as_ref().unwrap_or(model), options, scope)?;
    model.find_refused()?;
    options.check_skips(model, &plan)?;
    Ok((result, plan, lowered.or(fixed)))
}

/// Runs the pipeline. If streams should be centred but none is, runs it again without the folds of
/// shifts that cost an Add and pay only in a centred stream. Finally runs it with all functions
/// inlined, and takes this last result if it is better.
fn run_pipeline(model: &Model, options: &FuseOptions, scope: RunScope) -> Result<Run> {
    let tell = |stage: &str, done, of| {
        if let Some(progress) = options.progress {
            progress(stage, done, of);
        }
    };
    let mut pipeline = options.pipeline(model, &tell)?;
    pipeline.settings.only = scope.only;
    pipeline.settings.range_check = scope.range_check;
    let inlined = OnceCell::new();
    let (mut result, mut plan) = pipeline.run(model, &inlined)?;
    if options.centre && !plan.streams.iter().any(StreamPlan::is_centred) {
        // Since every normalizer still subtracts the mean, a shift that was moved out of a
        // normalizer is a useless Add.
        pipeline.settings.gives_shifts_away = false;
        let streams = std::mem::take(&mut plan.streams);
        (result, plan) = pipeline.run(model, &inlined)?;
        // Each stream keeps the refusal of the first run, in which its normalizers have no shift.
        plan.streams_centred_as(streams);
    }
    let lowered = inlined.into_inner().map(|inlined| inlined.model);
    let first = lowered.as_ref().unwrap_or(model);
    // If the run with all functions inlined fails, the result of the earlier run is returned.
    if let Some(all) = all_written_out(model, first, &pipeline)
        && let all = OnceCell::from(all)
        && let Ok((written, further)) = pipeline.run(model, &all)
        && let Some(all) = all.into_inner()
    {
        let counts = [(&result, first), (&written, &all.model)].map(|(result, first)| {
            operators(result.as_ref().unwrap_or(first)).unwrap_or(usize::MAX)
        });
        let has_fewer = plan.gone() > 0 && counts[1] < counts[0];
        if further.gone() > plan.gone() || further.gone() == plan.gone() && has_fewer {
            return Ok((written, further, Some(all.model)));
        }
    }
    Ok((result, plan, lowered))
}

/// Inlines everything that [`opaque`] counts: functions, Scalers and sequences. `None` if `lowered`
/// contains none of them, if none of those that it contains can be inlined, if it has unknown
/// operators, or if inlining is skipped.
fn all_written_out(model: &Model, lowered: &Model, pipeline: &PipelineRun) -> Option<Lowered> {
    if opaque(lowered).is_empty() || unknown_operators(lowered).is_some() {
        return None;
    }
    if pipeline.settings.skips(&Inline) {
        return None;
    }
    let skip = &pipeline.settings.skip;
    let all = written_out(model, Lowering::All, &|name, operator| {
        skip.is_match(name) || skip.is_match(operator)
    });
    let all = all.ok()??;
    (opaque(&all.model) != opaque(lowered)).then_some(all)
}
