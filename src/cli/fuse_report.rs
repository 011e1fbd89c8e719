//! The report of `unfold fuse`, as text and as JSON.

use std::path::{Path, PathBuf};

use serde::Serialize;
use unfold::HalfError;
use unfold::HalfType;
use unfold::inspect;
use unfold::measurements::VarianceMargin;
use unfold::onnx::{Model, Saved};
use unfold::plan::{
    ConstantNorm, HalfPlan, MemoryChange, MergedNorm, PassStats, Placed, Plan, StopReason,
    StreamPlan, Tidy,
};
use unfold::prove::Proof;
use unfold::prove_passes::PassProof;
use unfold::provenance::FoldOptions;
use unfold::report::{ReportedTensor, plain};
use unfold::run::{Dims, Failure, Input, random};
use unfold::verify::{Verdict, VerifyOptions};
use unfold::{EpsilonError, FuseOptions, Fused, Planned, Target};

use super::constant_norms;
use super::half;
use super::merged_norms;
use super::next_steps::FusedFile;
use super::operators;
use super::out::Paint;
use super::path::JsonPath;
use super::scale_stream::{Samples, ScalingChoice};
use super::sites::{self, JsonSite};
use super::size_change::{Growth, Sizes};
use super::slicing;
use super::stats;
use super::streams;
use super::summary::{self, Summary};
use crate::cli::placement;
use crate::cli::unused_options::Idle;
use crate::cli::verification::{Judged, When};

/// The report on one model.
pub(crate) struct FuseReport {
    /// The original model.
    pub before: Model,
    /// The result; `None` in a dry run, or if nothing folds.
    pub after: Option<Model>,
    /// The outcome of verification.
    pub judged: Judged,
    /// The written files, if any.
    pub written: Option<Saved>,
    /// The certificate, if one was written.
    pub certificate: Option<PathBuf>,
    /// The plan, with the changes and the refusals.
    pub plan: Plan,
    /// Options without effect.
    pub idle: Vec<Idle>,
    /// The scale of residual streams.
    scaling: ScalingChoice,
    /// The error of merged norms, if it was measured.
    slack: Option<Result<EpsilonError, Failure>>,
    /// The largest variances, compared with the limits below which normalizers are constant, if
    /// they were measured.
    margin: Option<Result<VarianceMargin, Failure>>,
    /// The original with some normalizers replaced by constants, if the plan replaces any. A proof
    /// compares the result with this model.
    assumed: Option<Model>,
    /// The result in float32, if it was converted to half precision.
    wide: Option<Fused>,
    /// The samples of the inputs.
    samples: Option<Samples>,
    /// The error of half precision, if it was measured.
    half: Option<Result<HalfError, Failure>>,
    lowered: Option<Model>,
    dry: bool,
    /// The engines for which the result is written.
    target: Target,
    /// The sizes of the dimensions that were fixed.
    fixed: Dims,
    /// Whether `--centre` was given. Then streams that are not centred are reported too.
    centre: bool,
    /// Whether the report lists each site in its own row.
    verbose: bool,
    /// Whether the report has the statistics of passes.
    stats: bool,
}

impl FuseReport {
    /// The report of a dry run.
    pub(crate) fn dry(before: Model, planned: Planned, idle: Vec<Idle>) -> Self {
        let Planned { plan, lowered } = planned;
        Self {
            dry: true,
            ..Self::new(before, plan, lowered, idle)
        }
    }

    /// The report of a plan that was carried out.
    pub(crate) fn from_fused(before: Model, fused: Fused, idle: Vec<Idle>) -> Self {
        let after = fused.changed().then_some(fused.model);
        let Fused { lowered, plan, .. } = fused;
        Self {
            after,
            ..Self::new(before, plan, lowered, idle)
        }
    }

    fn new(before: Model, plan: Plan, lowered: Option<Model>, idle: Vec<Idle>) -> Self {
        Self {
            before,
            lowered,
            target: Target::default(),
            fixed: Dims::default(),
            centre: false,
            verbose: false,
            stats: false,
            after: None,
            judged: Judged::default(),
            written: None,
            certificate: None,
            plan,
            idle,
            scaling: ScalingChoice::default(),
            slack: None,
            margin: None,
            assumed: None,
            wide: None,
            samples: None,
            half: None,
            dry: false,
        }
    }

    /// Sets the scale of residual streams.
    pub(crate) fn with(self, scaling: ScalingChoice) -> Self {
        Self { scaling, ..self }
    }

    /// Prepares the models for a proof of the result of these options. If normalizers are replaced
    /// by constants, the original is replaced by a model in which they are constants. If the result
    /// is in half precision, the folded model in float32 replaces it.
    ///
    /// # Errors
    /// The errors of [`unfold::fuse`].
    pub(crate) fn assuming(mut self, chosen: FoldOptions) -> unfold::error::Result<Self> {
        if self.plan.constants() > 0 {
            let assumed = unfold::with_constant_norms(&self.before, &chosen.clone().into())?;
            self.assumed = Some(assumed.model);
        }
        if self.plan.half.is_some() {
            let wide = FuseOptions {
                to: None,
                ..chosen.into()
            };
            self.wide = Some(unfold::fuse(&self.before, &wide)?);
        }
        Ok(self)
    }

    /// Sets the samples on which the error of half precision is measured.
    pub(crate) fn sampled(self, samples: Option<Samples>) -> Self {
        Self { samples, ..self }
    }

    /// Sets whether the report lists each site in its own row.
    pub(crate) fn listing_all(self, verbose: bool) -> Self {
        Self { verbose, ..self }
    }

    /// Sets the options of the run that the report mentions: the target, the fixed dimensions and
    /// `--centre`.
    pub(crate) fn chosen_by(self, options: &FuseOptions) -> Self {
        Self {
            target: options.target,
            fixed: options.fix.clone(),
            centre: options.centre,
            ..self
        }
    }

    /// Sets whether the report has the statistics of passes.
    pub(crate) fn with_stats(self, stats: bool) -> Self {
        Self { stats, ..self }
    }

    /// Verifies the result, if the model changed.
    pub(crate) fn judge(&mut self, when: When, options: &VerifyOptions, begin: impl Fn(&str)) {
        let is_fixed = self.reference().graph().input != self.before.graph().input;
        if let Some(after) = &self.after {
            let (after, tensors) = match &self.wide {
                Some(wide) => (&wide.model, &wide.plan.tensors),
                None => (after, &self.plan.tensors),
            };
            // A proof treats inputs with other declared extents as different inputs, so fixed
            // dimensions must be fixed in the original too.
            let original = if is_fixed {
                self.reference()
            } else {
                &self.before
            };
            let original = self.assumed.as_ref().unwrap_or(original);
            let before = [original, self.reference()];
            // A model with merged normalizers equals the original only up to ε, so a proof would
            // fail. It is tried only if it was requested explicitly.
            let tried = match when {
                When::Auto | When::Require if !self.plan.merged.is_empty() => When::Run,
                when => when,
            };
            self.judged = Judged {
                passes: self.judged.passes.clone(),
                ..Judged::new(tried, before, after, tensors, options, &begin)
            };
            if !self.plan.merged.is_empty() && self.judged.run.is_some() {
                begin("slack");
                self.slack = Some(EpsilonError::measure(
                    self.reference(),
                    after,
                    &self.plan.merged,
                    options,
                ));
            }
            let constant = constant_norms::taken_as_constant(&self.plan);
            if !constant.is_empty() && self.judged.run.is_some() {
                begin("variances");
                let margin = VarianceMargin::measure(self.reference(), &constant, options);
                self.margin = Some(margin);
            }
            if self.wide.is_some() && self.judged.run.is_some() {
                begin("half");
                self.half = self.half_error(options);
            }
        }
    }

    /// Measures the error of half precision, on the samples or on random inputs. `None` if there is
    /// no result, or if it is not in half precision.
    fn half_error(&self, options: &VerifyOptions) -> Option<Result<HalfError, Failure>> {
        let (wide, half) = (&self.wide.as_ref()?.model, self.after.as_ref()?);
        let to: HalfType = self.plan.half.as_ref()?.to.parse().ok()?;
        let samples = match &self.samples {
            Some(samples) => Ok(samples.clone()),
            None => Input::from_model(wide, &options.dims).map(|inputs| {
                let seed = options.seeds.first().copied().unwrap_or_default();
                (random(&inputs, seed), options.dims.clone())
            }),
        };
        let models = [self.reference(), wide, half];
        Some(samples.and_then(|(inputs, dims)| HalfError::measure(models, to, (&inputs, &dims))))
    }

    /// The model that runs in comparison with the result: the original, after inlining if anything
    /// was inlined.
    pub(crate) fn reference(&self) -> &Model {
        self.lowered.as_ref().unwrap_or(&self.before)
    }

    /// Whether the result differs from the model. In a dry run, whether it would differ.
    fn changes(&self) -> bool {
        self.lowered.is_some() || !self.plan.is_empty()
    }

    /// The numbers of sites and of folded sites.
    pub(crate) fn summary(&self) -> Summary {
        Summary::from_plan(&self.plan)
    }

    /// The sizes of the model before and after folding. `None` in a dry run, or if nothing folds.
    pub(crate) fn sizes(&self) -> Option<Sizes> {
        let written = self.written.as_ref().map(|saved| saved.bytes);
        self.after
            .as_ref()
            .map(|after| Sizes::new(&self.before, after, written))
    }

    fn growth(&self) -> Option<Growth> {
        let (bytes, weights) = (self.plan.growth, self.before.weight_bytes());
        (bytes > 0).then(|| Growth {
            bytes,
            percent: 100.0 * bytes as f64 / weights as f64,
        })
    }

    /// The warnings and errors, each with its kind.
    pub(crate) fn complaints(&self, when: When) -> Vec<(&'static str, String)> {
        let left = self.written.iter().flat_map(|saved| &saved.left).map(|data| {
            let data = data.display();
            let reason = "unfold may not have written it, or another model may refer to it";
            let line =
                format!("{data}: the model that was replaced had its weights there; it is left, as {reason}");
            ("warning", line)
        });
        left.chain(self.judged.complaint(when)).collect()
    }

    /// The report as text.
    pub(crate) fn text(&self, paint: Paint) -> String {
        let mut text = self.done(paint);
        text += &self.written_line();
        if let Some(certificate) = &self.certificate {
            text += &(plain(&format!("its certificate is {}", certificate.display())) + "\n");
        }
        text + &self.next_steps()
    }

    /// Suggests options and a command after a result was written.
    fn next_steps(&self) -> String {
        let (Some(result), true) = (&self.after, self.written.is_some()) else {
            return String::new();
        };
        let fused = FusedFile {
            plan: &self.plan,
            target: self.target,
            original: self.before.path().unwrap_or(Path::new("MODEL")),
            result,
        };
        fused.next_steps()
    }

    /// A line about the written file.
    pub(crate) fn written_line(&self) -> String {
        let Some(saved) = &self.written else {
            return "nothing was written\n".to_owned();
        };
        let verb = if self.after.is_some() {
            "written"
        } else {
            "copied"
        };
        let data = match &saved.data {
            Some(data) => format!(", its weights to {}", data.display()),
            None => String::new(),
        };
        plain(&format!("{verb} to {}{data}", saved.path.display())) + "\n"
    }

    /// A line about the target, and about what another target would do differently.
    fn target_line(&self) -> String {
        let other = match self.target {
            Target::Cpu => "--target portable keeps LayerNormalization and MatMul",
            Target::Portable => "--target cpu takes forms that CPUs run faster",
            Target::Onnxruntime if !self.fixed.is_empty() => {
                "without --fix it is faster, since onnxruntime infers all shapes of fixed sizes"
            }
            Target::Onnxruntime => "--target cpu keeps the open shapes of values within",
            Target::Tract => "--target cpu keeps layers behind the windows that they read",
        };
        let engine = match self.target {
            Target::Cpu => "CPUs",
            Target::Portable => "any engine",
            Target::Onnxruntime => "onnxruntime",
            Target::Tract => "tract",
        };
        format!("for {engine}; {other}\n")
    }

    /// A line about the sizes that `--fix` gave to open dimensions.
    fn fixed_line(&self) -> String {
        let sizes: Vec<String> = self
            .fixed
            .iter()
            .map(|(name, size)| format!("{name}={size}"))
            .collect();
        if sizes.is_empty() {
            return String::new();
        }
        format!(
            "inputs fixed: {}; the result takes no other sizes\n",
            sizes.join(", ")
        )
    }

    /// The changes as text, without a line about the written file.
    pub(crate) fn done(&self, paint: Paint) -> String {
        let mut text = self.table(paint) + &self.summary().line(paint) + "\n";
        text += &summary::tidied(&self.plan.tidy);
        text += &summary::stopped(self.plan.stopped);
        if self.changes() {
            text += &self.target_line();
            text += &self.fixed_line();
        }
        text += &self.scaling.text();
        text += &streams::text(&self.plan, self.centre);
        text += &slicing::text(self.plan.memory.as_ref());
        text += &merged_norms::text(&self.plan.merged, self.slack.as_ref());
        text += &constant_norms::text(&self.plan, self.margin.as_ref());
        text += &half::text(self.plan.half.as_ref(), self.half.as_ref());
        text += &placement::text(&self.plan.placed);
        text += &self.growth().map_or_else(String::new, Growth::line);
        if let Some(change) = self.sizes() {
            let operators =
                operators::table(&change.operators.before, &change.operators.after, paint);
            let (file, weights) = (change.file_bytes.in_words(), change.weight_bytes.in_words());
            text += &format!("\n{operators}\nfile {file}, weights {weights}\n");
        } else if !self.changes() {
            text += "nothing to fold\n";
        }
        if self.stats {
            text += &stats::table(&self.plan.passes, paint);
        }
        text += &stats::proofs(&self.judged.passes, paint);
        if self.after.is_some() && !self.judged.was_tried() {
            text += "not verified\n";
        }
        text + &self.judged.text(paint)
    }

    /// A table of the sites that stay, or of all sites in a dry run; may be empty.
    fn table(&self, paint: Paint) -> String {
        let sites = self.plan.sites.iter();
        let shown = sites.filter(|site| self.dry || !site.is_folded());
        // This cannot fail, because folding has already checked the graph of the reference.
        let rows = sites::rows(self.reference(), shown).unwrap_or_default();
        if rows.is_empty() {
            return String::new();
        }
        sites::table(&rows, self.verbose, paint) + "\n"
    }

    /// The report as JSON.
    pub(crate) fn json(&self) -> FuseJson<'_> {
        FuseJson {
            model: self.before.path().map(JsonPath),
            changed: self.changes(),
            target: self.target,
            written: self.written.as_ref().map(|saved| JsonPath(&saved.path)),
            data: self
                .written
                .as_ref()
                .and_then(|saved| saved.data.as_deref())
                .map(JsonPath),
            certificate: self.certificate.as_deref().map(JsonPath),
            sites: sites::json(&self.plan),
            tensors: inspect::tensors(&self.plan),
            summary: self.summary(),
            stopped: self.plan.stopped,
            stats: Some(&self.plan.passes[..]).filter(|_| self.stats),
            passes: &self.judged.passes,
            tidy: Some(&self.plan.tidy).filter(|tidy| **tidy != Tidy::default()),
            idle: &self.idle,
            scaling: self.scaling,
            streams: &self.plan.streams,
            merged: &self.plan.merged,
            placed: &self.plan.placed,
            memory: self.plan.memory.as_ref(),
            constant: &self.plan.constant,
            variance: self.margin.iter().flatten().next().copied(),
            half: self.plan.half.as_ref(),
            half_error: self.half.iter().flatten().next(),
            half_failure: self.half.as_ref().and_then(|half| half.as_ref().err()),
            slack: self.slack.iter().flatten().next().map(|slack| slack.bound),
            growth: self.growth(),
            result: self.sizes(),
            verified: self.judged.is_verified(),
            verification: self.judged.run.as_ref(),
            proof: self.judged.proof.as_ref(),
            sensitivity: self.judged.sensitivity,
        }
    }
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct FuseJson<'j> {
    model: Option<JsonPath<'j>>,
    /// Whether the result differs from the input, or would in a dry run.
    changed: bool,
    /// The engines for which the result is written.
    target: Target,
    /// The written file, if any.
    written: Option<JsonPath<'j>>,
    /// The data file with its weights, if one was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<JsonPath<'j>>,
    /// The certificate, if one was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate: Option<JsonPath<'j>>,
    sites: Vec<JsonSite<'j>>,
    /// The tensors that are in the result but not in the model.
    tensors: Vec<ReportedTensor>,
    summary: Summary,
    /// The reason why the run stopped.
    stopped: StopReason,
    /// Runs, changes and seconds of each pass, with `--stats`.
    #[serde(skip_serializing_if = "Option::is_none")]
    stats: Option<&'j [PassStats]>,
    /// The proof of each change, with `--verify each`.
    #[serde(skip_serializing_if = "<[PassProof]>::is_empty")]
    passes: &'j [PassProof],
    /// The changes outside of sites, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    tidy: Option<&'j Tidy>,
    /// Options without effect, if any.
    #[serde(skip_serializing_if = "<[Idle]>::is_empty")]
    idle: &'j [Idle],
    #[serde(flatten)]
    scaling: ScalingChoice,
    /// The residual streams, if another basis was requested.
    #[serde(skip_serializing_if = "<[StreamPlan]>::is_empty")]
    streams: &'j [StreamPlan],
    /// The merged normalizers, if merging was requested.
    #[serde(skip_serializing_if = "<[MergedNorm]>::is_empty")]
    merged: &'j [MergedNorm],
    /// The normalizers that are constant in floating point and are replaced or stay, if this was
    /// requested.
    #[serde(skip_serializing_if = "<[ConstantNorm]>::is_empty")]
    constant: &'j [ConstantNorm],
    /// The largest variances, compared with the limits below which normalizers are constant, if
    /// they were measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    variance: Option<VarianceMargin>,
    /// The outcome of the conversion to half precision, with `--to`.
    #[serde(skip_serializing_if = "Option::is_none")]
    half: Option<&'j HalfPlan>,
    /// The error of half precision, if it was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    half_error: Option<&'j HalfError>,
    /// The reason why the error of half precision could not be measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    half_failure: Option<&'j Failure>,
    /// The linear operators that were moved, or could be moved, to a point with fewer places.
    #[serde(skip_serializing_if = "<[Placed]>::is_empty")]
    placed: &'j [Placed],
    /// The peak of activations and the cuts, if slicing was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<&'j MemoryChange>,
    /// The largest relative error of merged norms, if it was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    slack: Option<f64>,
    /// The growth by copies of shared weights, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    growth: Option<Growth>,
    /// The sizes of the result; null if nothing changed.
    result: Option<Sizes>,
    /// Whether both models were run and agree, or are proved to be equal.
    verified: bool,
    /// The outcome of running both models; null if they were not run.
    verification: Option<&'j Verdict>,
    /// The outcome of the proof, if one was tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    proof: Option<&'j Proof>,
    /// The relative change of the model's outputs if its weights change by one rounding, if it was
    /// measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    sensitivity: Option<f64>,
}
