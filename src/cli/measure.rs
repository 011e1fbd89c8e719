//! The measurement of `unfold bench` for one model.

use std::borrow::Cow;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::{Result, anyhow};
use unfold::bench::{BenchOptions, Machine, Stop, Variant, bench};
use unfold::onnx::Model;
use unfold::report::{Report, ReportedSite};
use unfold::run::Input;
use unfold::verify::{Verdict, VerifyOptions, compare};

use super::bench_variants;
use super::inputs::{known_to_some, read_inputs};
use super::option_values::from_one;
use super::progress_bar::StepProgress;
use super::rounds::{RoundArgs, labelled};
use crate::cli::reexecute::resident;
use crate::cli::usage_errors::misused;

/// The options of a measurement.
#[derive(Debug, clap::Args)]
pub(crate) struct MeasureArgs {
    /// Sizes of the batch; each is measured separately
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', value_parser = from_one)]
    pub batch: Vec<NonZeroUsize>,

    #[command(flatten)]
    pub rounds: RoundArgs,

    /// Inputs, as a .npy or .npz file. Default: random inputs
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "batch",
        requires = "models"
    )]
    pub input: Option<PathBuf>,

    /// A variant with which the others are compared (may be repeated). Default: `LN twin`, `floor`
    /// and `as exported`, or the first of several models
    #[arg(long = "reference", value_name = "NAME")]
    pub references: Vec<String>,
}

impl MeasureArgs {
    /// Checks that each reference variant exists.
    pub(crate) fn refer_to<'v>(&self, variants: impl IntoIterator<Item = &'v str>) -> Result<()> {
        let variants: Vec<&str> = variants.into_iter().collect();
        let unknown = self
            .references
            .iter()
            .find(|reference| !variants.contains(&reference.as_str()));
        match unknown {
            Some(reference) => Err(misused(format!(
                "--reference: there is no variant `{reference}`; there are {}",
                variants.join(", ")
            ))),
            None => Ok(()),
        }
    }

    /// Checks that each dimension with a given size belongs to some variant.
    pub(crate) fn size_what_is_there(&self, variants: &[Variant]) -> Result<()> {
        let models: Vec<_> = variants.iter().map(|variant| &variant.model).collect();
        known_to_some("--dim", &self.rounds.dims, &models)
    }

    /// Measures variants with each size of the batch, and compares the fused one with the exported
    /// one.
    pub(crate) fn measure(
        &self,
        title: String,
        variants: &[Variant],
        sites: Vec<ReportedSite>,
        batches: &[NonZeroUsize],
        stop: &Stop,
    ) -> Result<Report> {
        let settings = self.settings(variants, batches)?;
        let steps = StepProgress::new(&title, self.rounds.quiet);
        let progress = steps.progress();
        let mut report = Report {
            model: title,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            machine: Machine::this(),
            settings: vec![],
            sites,
            notes: bench_variants::defined(variants).into_iter().collect(),
            differs: false,
        };
        for options in &settings {
            if stop.asked() {
                break;
            }
            report
                .settings
                .push(bench(variants, options, stop, &progress));
            if stop.asked() {
                break;
            }
            progress("verifying", 1, 1);
            if let Some(verdict) = verdict(variants, options) {
                report.differs |=
                    !verdict.passed() && !matches!(verdict, Verdict::CouldNotVerify { .. });
                report.notes.push(verdict_note(&verdict, &options.label));
            }
        }
        Ok(report)
    }

    /// The options of one measurement for each size of the batch.
    fn settings(
        &self,
        variants: &[Variant],
        batches: &[NonZeroUsize],
    ) -> Result<Vec<BenchOptions>> {
        let model = &variants
            .first()
            .ok_or_else(|| anyhow!("no model to compare"))?
            .model;
        let references = if self.references.is_empty() {
            ["LN twin", "floor", "as exported"].map(String::from).into()
        } else {
            self.references.clone()
        };
        let base = BenchOptions {
            references,
            child: Some(resident()?),
            ..self.rounds.options()?
        };
        if let Some(file) = &self.input {
            let (inputs, dims) = read_inputs(file, model, &base.dims)?;
            return Ok(vec![labelled(BenchOptions {
                inputs: Some(inputs),
                dims,
                ..base
            })]);
        }
        let symbols = Input::batch_symbols(model);
        let given = symbols.iter().any(|symbol| base.dims.get(symbol).is_some());
        match (symbols.is_empty() || given, batches) {
            (true, []) => return Ok(vec![labelled(base)]),
            (true, _) if given => {
                return Err(misused("--batch and --dim give the same dimension a size"));
            }
            (true, _) => {
                return Err(misused(
                    "--batch: the first dimension of every input of this model has a size",
                ));
            }
            (false, _) => {}
        }
        let batches = match batches {
            [] => &[NonZeroUsize::MIN],
            batches => batches,
        };
        Ok(batches
            .iter()
            .map(|batch| with_batch(&base, &symbols, batch.get()))
            .collect())
    }
}

/// The options for one size of the batch, which the dimensions `symbols` get.
fn with_batch(base: &BenchOptions, symbols: &[Cow<str>], batch: usize) -> BenchOptions {
    let mut options = base.clone();
    for symbol in symbols {
        options.dims.set(symbol.clone(), batch);
    }
    labelled(options)
}

/// Compares the fused variant with the exported one. `None` if either variant is missing.
fn verdict(variants: &[Variant], options: &BenchOptions) -> Option<Verdict> {
    let original = model_of(variants, "as exported")?;
    let fused = model_of(variants, "fused")?;
    let options = VerifyOptions {
        dims: options.dims.clone(),
        ..VerifyOptions::default()
    };
    Some(compare(original, fused, &options))
}

/// The model of the variant with this name. `None` if there is no such variant.
fn model_of<'v>(variants: &'v [Variant], name: &str) -> Option<&'v Model> {
    variants
        .iter()
        .find(|variant| variant.name == name)
        .map(|variant| &variant.model)
}

/// A verdict as a sentence.
fn verdict_note(verdict: &Verdict, label: &str) -> String {
    match verdict {
        Verdict::Compared(comparison) => {
            let relative = comparison.worst().map_or(0.0, |worst| worst.relative);
            let verb = if comparison.agrees() {
                "agree"
            } else {
                "DIFFER"
            };
            let tolerance = comparison.tolerance;
            format!(
                "With {label}, fused and as exported {verb}: relative error {relative:.1e}, tolerance \
                 {tolerance:.0e}."
            )
        }
        Verdict::Broken { reason } => format!("With {label}, the fused model is BROKEN: {reason}."),
        Verdict::CouldNotVerify { reason } => {
            format!("With {label}, fused and as exported could not be compared: {reason}.")
        }
    }
}
