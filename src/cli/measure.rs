//! The measurement of `unfold bench` for one model.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, anyhow};
use unfold::bench::{BenchOptions, Stop, Variant, bench, machine};
use unfold::report::{Report, ReportedSite};
use unfold::run::{Dims, Input};
use unfold::verify::{Verdict, VerifyOptions, compare};

use super::inputs::{known_to_some, read_inputs};
use super::steps::Steps;
use super::values::{from_one, seconds, threads};
use crate::cli::reexecute::resident;
use crate::cli::usage_errors::misused;

/// How to measure.
#[derive(Debug, clap::Args)]
pub struct MeasureArgs {
    /// Sizes of the batch, each measured on its own
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', value_parser = from_one)]
    pub batch: Vec<NonZeroUsize>,

    /// Size of a symbolic dimension, which is called by its input and its place, such as x:2, where it has no symbol (may be
    /// repeated)
    #[arg(long = "dim", value_name = "NAME=SIZE")]
    pub dims: Vec<Dims>,

    /// How many rounds; every variant runs once in a round
    #[arg(long, value_name = "N", value_parser = from_one)]
    pub rounds: Option<NonZeroUsize>,

    /// How long the rounds of each batch size may take, in seconds, where --rounds does not say
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true, default_value_t = 10.0)]
    pub time: f64,

    /// Threads for matrix products
    #[arg(long, value_name = "N", value_parser = threads, default_value_t = NonZeroUsize::MIN)]
    pub threads: NonZeroUsize,

    /// Inputs, as a .npy or .npz file; random ones where it is not given
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "batch",
        requires = "models"
    )]
    pub input: Option<PathBuf>,

    /// A variant that the others are compared with (may be repeated); by default `LN twin`, `floor` and `as exported`,
    /// or the first of several models
    #[arg(long = "reference", value_name = "NAME")]
    pub references: Vec<String>,

    /// Shows no progress
    #[arg(long, short)]
    pub quiet: bool,
}

impl MeasureArgs {
    /// How long the rounds may take.
    pub fn time(&self) -> Result<Duration> {
        Duration::try_from_secs_f64(self.time)
            .map_err(|_| anyhow!("--time {} is no duration", self.time))
    }

    /// Checks that each reference variant exists.
    pub fn refer_to<'v>(&self, variants: impl IntoIterator<Item = &'v str>) -> Result<()> {
        let variants: Vec<&str> = variants.into_iter().collect();
        match self
            .references
            .iter()
            .find(|reference| !variants.contains(&reference.as_str()))
        {
            Some(reference) => {
                let there = variants.join(", ");
                Err(misused(format!(
                    "--reference: there is no variant `{reference}`; there are {there}"
                )))
            }
            None => Ok(()),
        }
    }

    /// Checks that each dimension with a given size exists in some variant.
    pub fn size_what_is_there(&self, variants: &[Variant]) -> Result<()> {
        let models: Vec<_> = variants.iter().map(|variant| &variant.model).collect();
        known_to_some(&self.dims, &models)
    }

    /// Measures variants with each size of the batch, and compares the fused one with the exported one.
    pub fn measure(
        &self,
        title: String,
        variants: &[Variant],
        sites: Vec<ReportedSite>,
        batches: &[NonZeroUsize],
        stop: &Stop,
    ) -> Result<Report> {
        let settings = self.settings(variants, batches)?;
        let steps = Steps::new(&title, self.quiet);
        let progress = steps.progress();
        let mut report = Report {
            model: title,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            machine: machine(),
            settings: vec![],
            sites,
            notes: vec![],
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
                report.notes.push(told(&verdict, &options.label));
            }
        }
        Ok(report)
    }

    /// One measurement for each size of the batch.
    fn settings(
        &self,
        variants: &[Variant],
        batches: &[NonZeroUsize],
    ) -> Result<Vec<BenchOptions>> {
        let model = &variants
            .first()
            .ok_or_else(|| anyhow!("there is nothing to compare"))?
            .model;
        let mut dims = Dims::default();
        dims.extend(self.dims.iter().cloned());
        let references = ["LN twin", "floor", "as exported"].map(String::from);
        let base = BenchOptions {
            dims,
            threads: self.threads.get(),
            rounds: self.rounds.map(NonZeroUsize::get),
            time: self.time()?,
            references: if self.references.is_empty() {
                references.into()
            } else {
                self.references.clone()
            },
            child: Some(resident()?),
            ..BenchOptions::default()
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
        let sized = |batch: usize| {
            let mut dims = base.dims.clone();
            symbols
                .iter()
                .for_each(|symbol| dims.set(symbol.clone(), batch));
            labelled(BenchOptions {
                dims,
                ..base.clone()
            })
        };
        Ok(match batches {
            [] => vec![sized(1)],
            batches => batches.iter().map(|batch| sized(batch.get())).collect(),
        })
    }
}

/// Under the sizes that tell it from others.
fn labelled(options: BenchOptions) -> BenchOptions {
    let sizes: Vec<String> = options
        .dims
        .iter()
        .map(|(name, size)| format!("{name}={size}"))
        .collect();
    let label = if sizes.is_empty() {
        options.label
    } else {
        sizes.join(", ")
    };
    BenchOptions { label, ..options }
}

/// Whether the fused variant computes what the exported one does, where there are both.
fn verdict(variants: &[Variant], options: &BenchOptions) -> Option<Verdict> {
    let find = |name: &str| {
        variants
            .iter()
            .find(|variant| variant.name == name)
            .map(|variant| &variant.model)
    };
    let (original, fused) = (find("as exported")?, find("fused")?);
    let options = VerifyOptions {
        dims: options.dims.clone(),
        ..VerifyOptions::default()
    };
    Some(compare(original, fused, &options))
}

/// A verdict in a sentence.
fn told(verdict: &Verdict, label: &str) -> String {
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
