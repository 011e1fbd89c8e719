//! The report of `unfold fuse`, as text and as JSON.

use std::path::PathBuf;

use serde::Serialize;
use unfold::affine::plan::{
    MemoryChange, MergedNorm, PassStats, Placed, StopReason, StreamPlan, Tidy,
};
use unfold::epsilon_error::EpsilonError;
use unfold::onnx::{Model, Saved};
use unfold::outline;
use unfold::passes::legalize::Target;
use unfold::prove::Proof;
use unfold::prove_passes::PassProof;
use unfold::report::{ReportedTensor, bytes, plain};
use unfold::run::Failure;
use unfold::verify::{Verdict, VerifyOptions};
use unfold::{FuseOptions, Fused, Plan, Planned};

use super::next_steps;
use super::norms;
use super::operators::{self, Operators};
use super::out::Paint;
use super::path::JsonPath;
use super::scaling::ScalingChoice;
use super::sites::{self, JsonSite};
use super::slicing;
use super::stats;
use super::streams;
use super::summary::{self, Summary};
use crate::cli::placement;
use crate::cli::unused_options::Idle;
use crate::cli::verification::{Judged, When};

/// The report on one model.
pub struct FuseReport {
    /// The original model.
    pub before: Model,
    /// The result; `None` in a dry run, and where nothing folds.
    pub after: Option<Model>,
    /// The outcome of verification.
    pub judged: Judged,
    /// The written files, if any.
    pub written: Option<Saved>,
    /// The certificate, if one was written.
    pub certificate: Option<PathBuf>,
    /// The changes, and the refusals.
    pub plan: Plan,
    /// Options without effect.
    pub idle: Vec<Idle>,
    /// By what residual streams are scaled.
    scaling: ScalingChoice,
    /// The error of merged norms, where it was measured.
    slack: Option<Result<EpsilonError, Failure>>,
    lowered: Option<Model>,
    dry: bool,
    /// The engines that the result is for.
    target: Target,
    /// Whether streams were to be centred by name, so that those that are not are of interest.
    centre: bool,
    /// Whether the report lists each site.
    verbose: bool,
    /// Whether the report has statistics of passes.
    stats: bool,
}

impl FuseReport {
    /// A plan that is not carried out.
    pub fn dry(before: Model, planned: Planned, idle: Vec<Idle>) -> Self {
        let Planned { plan, lowered } = planned;
        Self {
            dry: true,
            ..Self::new(before, plan, lowered, idle)
        }
    }

    /// A plan that was carried out.
    pub fn from_fused(before: Model, fused: Fused, idle: Vec<Idle>) -> Self {
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
            dry: false,
        }
    }

    /// The report, with what residual streams are scaled by.
    pub fn with(self, scaling: ScalingChoice) -> Self {
        Self { scaling, ..self }
    }

    /// The report with a row for each site, if `verbose`.
    pub fn listing_all(self, verbose: bool) -> Self {
        Self { verbose, ..self }
    }

    /// The report of a run with these options.
    pub fn chosen_by(self, options: &FuseOptions) -> Self {
        Self {
            target: options.target,
            centre: options.centre,
            ..self
        }
    }

    /// The report with statistics of passes, if `stats`.
    pub fn with_stats(self, stats: bool) -> Self {
        Self { stats, ..self }
    }

    /// Finds out whether the result computes what the model does, if anything was made of it.
    pub fn judge(&mut self, when: When, options: &VerifyOptions, begin: impl Fn(&str)) {
        let is_fixed = self.reference().graph().input != self.before.graph().input;
        if let Some(after) = &self.after {
            // To a proof, inputs that say their extents are other inputs.
            let original = if is_fixed {
                self.reference()
            } else {
                &self.before
            };
            let before = [original, self.reference()];
            // A result that is equal only up to an ε is another function to a proof, which runs
            // only on request.
            let tried = match when {
                When::Auto | When::Require if !self.plan.merged.is_empty() => When::Run,
                when => when,
            };
            self.judged = Judged {
                passes: self.judged.passes.clone(),
                ..Judged::new(tried, before, after, &self.plan.tensors, options, &begin)
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
        }
    }

    /// The reference of the comparison: the model, with everything inlined that engines can run.
    pub fn reference(&self) -> &Model {
        self.lowered.as_ref().unwrap_or(&self.before)
    }

    /// Whether anything is made of the model that differs from it, or would be in a dry run.
    fn changes(&self) -> bool {
        self.lowered.is_some() || !self.plan.is_empty()
    }

    /// How many sites there are, and how many of them fold.
    pub fn summary(&self) -> Summary {
        Summary::from_plan(&self.plan)
    }

    /// The model before and after, if anything was made of it.
    pub fn sizes(&self) -> Option<Sizes> {
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

    /// Warnings and errors, each with its kind.
    pub fn complaints(&self, when: When) -> Vec<(&'static str, String)> {
        let left = self.written.iter().flat_map(|saved| &saved.left).map(|data| {
            let data = data.display();
            let reason = "unfold may not have written it, or another model may refer to it";
            let line =
                format!("{data}: the model that was replaced had its weights there; it is left, as {reason}");
            ("warning", line)
        });
        left.chain(self.judged.complaint(when)).collect()
    }

    /// The report for people.
    pub fn text(&self, paint: Paint) -> String {
        let mut text = self.done(paint);
        text += &self.written_line();
        if let Some(certificate) = &self.certificate {
            text += &(plain(&format!("its certificate is {}", certificate.display())) + "\n");
        }
        if self.written.is_some() && self.after.is_some() {
            text += &next_steps::told(&self.plan);
        }
        text
    }

    /// The file that was written, in a line.
    pub fn written_line(&self) -> String {
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

    /// The changes as text, without the path of the result.
    pub fn done(&self, paint: Paint) -> String {
        let mut text = self.table(paint) + &self.summary().line(paint) + "\n";
        text += &summary::tidied(&self.plan.tidy);
        text += &summary::stopped(self.plan.stopped);
        if self.changes() {
            text += target_line(self.target);
        }
        text += &self.scaling.told();
        text += &streams::told(&self.plan, self.centre);
        text += &slicing::told(self.plan.memory.as_ref());
        text += &norms::told(&self.plan.merged, self.slack.as_ref());
        text += &placement::told(&self.plan.placed);
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

    /// The sites that stay, in a dry run all sites; empty without such sites.
    fn table(&self, paint: Paint) -> String {
        let sites = self.plan.sites.iter();
        let shown = sites.filter(|site| self.dry || !site.is_folded());
        // The reference was indexed before, or there were no report.
        let rows = sites::rows(self.reference(), shown).unwrap_or_default();
        if rows.is_empty() {
            return String::new();
        }
        sites::table(&rows, self.verbose, paint) + "\n"
    }

    /// The report for programs.
    pub fn json(&self) -> impl Serialize {
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
            tensors: outline::tensors(&self.plan),
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
struct FuseJson<'j> {
    model: Option<JsonPath<'j>>,
    /// Whether the result differs from the input, or would in a dry run.
    changed: bool,
    /// The engines that the result is for.
    target: Target,
    /// The file that was written, if one was.
    written: Option<JsonPath<'j>>,
    /// The file with its weights, if they were written into one.
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<JsonPath<'j>>,
    /// The certificate, if one was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate: Option<JsonPath<'j>>,
    sites: Vec<JsonSite<'j>>,
    /// The tensors that the result has and the model has not.
    tensors: Vec<ReportedTensor>,
    summary: Summary,
    /// Why the run stopped.
    stopped: StopReason,
    /// Runs, changes and seconds of each pass, with `--stats`.
    #[serde(skip_serializing_if = "Option::is_none")]
    stats: Option<&'j [PassStats]>,
    /// The proof of each change, with `--verify each`.
    #[serde(skip_serializing_if = "<[PassProof]>::is_empty")]
    passes: &'j [PassProof],
    /// Changes beside the sites, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    tidy: Option<&'j Tidy>,
    /// Options without effect, if any.
    #[serde(skip_serializing_if = "<[Idle]>::is_empty")]
    idle: &'j [Idle],
    #[serde(flatten)]
    scaling: ScalingChoice,
    /// The residual streams, where another basis was asked for.
    #[serde(skip_serializing_if = "<[StreamPlan]>::is_empty")]
    streams: &'j [StreamPlan],
    /// The normalizers that are gone as others follow them, where that was asked for.
    #[serde(skip_serializing_if = "<[MergedNorm]>::is_empty")]
    merged: &'j [MergedNorm],
    /// The linear work that is done where values have fewer places, or could be.
    #[serde(skip_serializing_if = "<[Placed]>::is_empty")]
    placed: &'j [Placed],
    /// The peak of activations and the cuts, where slicing was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<&'j MemoryChange>,
    /// The largest relative error of merged norms, where it was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    slack: Option<f64>,
    /// The growth by copies of shared weights, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    growth: Option<Growth>,
    /// The result; null if nothing changed.
    result: Option<Sizes>,
    /// Whether both models were run and agree, or are proved to be the same.
    verified: bool,
    /// The outcome of running both; null if they were not run.
    verification: Option<&'j Verdict>,
    /// The outcome of the proof, if one was tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    proof: Option<&'j Proof>,
    /// How far the outputs of the model move when its weights move by one rounding, if that was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    sensitivity: Option<f64>,
}

/// The engines that a result is for, and what another target would keep, in a line.
fn target_line(target: Target) -> &'static str {
    match target {
        Target::Cpu => "for CPUs; --target portable keeps LayerNormalization and MatMul\n",
        Target::Portable => "for any engine; --target cpu takes forms that CPUs run faster\n",
        Target::Onnxruntime => {
            "for onnxruntime; --target cpu keeps the open shapes of values within\n"
        }
        Target::Tract => "for tract; --target cpu keeps layers behind the windows that they read\n",
    }
}

/// The growth by copies of shared weights.
#[derive(Serialize)]
struct Growth {
    bytes: u64,
    /// Of all weights.
    percent: f64,
}

impl Growth {
    fn line(self) -> String {
        let Self {
            bytes: added,
            percent,
        } = self;
        format!(
            "copies of shared weights add {} ({percent:.1} % of the weights)\n",
            bytes(added)
        )
    }
}

/// The model before and after.
#[derive(Serialize)]
pub struct Sizes {
    pub operators: BeforeAfter<Operators>,
    pub file_bytes: BeforeAfter<u64>,
    weight_bytes: BeforeAfter<u64>,
}

impl Sizes {
    fn new(before: &Model, after: &Model, written: Option<u64>) -> Self {
        let file_bytes = BeforeAfter {
            before: before.read_bytes(),
            after: written.unwrap_or_else(|| after.file_bytes()),
        };
        Self {
            operators: BeforeAfter {
                before: Operators::from_model(before),
                after: Operators::from_model(after),
            },
            file_bytes,
            weight_bytes: BeforeAfter {
                before: before.weight_bytes(),
                after: after.weight_bytes(),
            },
        }
    }
}

#[derive(Serialize)]
pub struct BeforeAfter<T> {
    pub before: T,
    pub after: T,
}

impl BeforeAfter<u64> {
    /// Such as `88.6 MB to 88.2 MB (-352.3 kB)`: where weights grow, copies of shared ones were made.
    fn in_words(&self) -> String {
        let Self { before, after } = *self;
        let sign = if after < before { '-' } else { '+' };
        format!(
            "{} to {} ({sign}{})",
            bytes(before),
            bytes(after),
            bytes(after.abs_diff(before))
        )
    }
}
