//! `unfold bench`: measures the speed-up by folding.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use unfold::bench::{Stop, Variant};
use unfold::onnx::Model;
use unfold::report::{
    Report, ReportedSite, html, markdown, overview_heading, overview_lines, overview_markdown,
    plain, terminal_of,
};
use unfold::zoo;

use super::interrupt::end;
use super::measure::MeasureArgs;
use super::option_values::{file, named};
use super::output_path::page_target;
use super::storage::ReachArgs;
use super::{bench_variants, bench_zoo, out};
use crate::cli::exit_code::End;
use crate::cli::usage_errors::misused;

const EXAMPLES: &str = "\
Examples:
  unfold bench model.onnx
  unfold bench model.onnx --batch 1,8 --rounds 50
  unfold bench model.onnx --reference 'as exported' --html report.html
  unfold bench before=model.onnx after=fused.onnx --reference before
  unfold bench swin-t.un --json";

/// Measures variants of a model against each other in tract, on the CPU.
///
/// Without a model, measures networks of the zoo. Exit codes: 0 if something was measured, 1 if
/// tract can run none of the variants, 3 if the fused model computes something else, and 130 after
/// an interruption. The report then has the rounds before the interruption. `unfold tune` compares
/// the options of `fuse`.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("{}\n\n{EXAMPLES}", bench_variants::DEFINITIONS))]
pub(super) struct BenchArgs {
    /// The model, or a network of the zoo such as `swin-t.un`. Several models are compared with
    /// each other, each under the name of its file, or under the given one: NAME=FILE
    #[arg(value_name = "MODEL", value_parser = named)]
    models: Vec<String>,

    /// Measures the whole zoo, however long it takes
    #[arg(long, conflicts_with = "models")]
    all: bool,

    #[command(flatten)]
    measure: MeasureArgs,

    /// Prints the report as JSON
    #[arg(long, conflicts_with = "markdown")]
    json: bool,

    /// Prints the report as Markdown
    #[arg(long)]
    markdown: bool,

    /// Writes the report as one self-contained page
    #[arg(long, value_name = "FILE", value_parser = file())]
    html: Option<PathBuf>,
}

/// Runs the command.
pub(super) fn run(args: &BenchArgs) -> Result<End> {
    args.html.as_deref().map_or(Ok(()), page_target)?;
    let stop = stop_on_interrupt()?;
    let reports = if args.models.is_empty() {
        args.zoo(&stop)?
    } else {
        vec![args.one(&stop)?]
    };
    if let Some(path) = &args.html {
        fs::write(path, html(&reports))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    let mut settings = reports.iter().flat_map(|report| &report.settings);
    Ok(match () {
        () if stop.asked() => End::Interrupted,
        () if reports.iter().any(|report| report.differs) => End::Differs,
        () if settings.all(|setting| setting.ran().next().is_none()) => End::Failed,
        () => End::Done,
    })
}

/// Returns a request to stop, which Ctrl-C makes.
fn stop_on_interrupt() -> Result<Stop> {
    let stop = Stop::default();
    let asked = stop.clone();
    ctrlc::set_handler(move || match asked.asked() {
        false => asked.ask(),
        // A second Ctrl-C ends the program without waiting for the running operator.
        true => end(),
    })
    .context("cannot listen for interrupts")?;
    Ok(stop)
}

impl BenchArgs {
    /// Measures the variants of one model, or several models, and prints the report.
    fn one(&self, stop: &Stop) -> Result<Report> {
        let (title, variants, sites) = subject(&self.models)?;
        self.measure
            .refer_to(variants.iter().map(|variant| variant.name.as_str()))?;
        self.measure.size_what_is_there(&variants)?;
        let report = self
            .measure
            .measure(title, &variants, sites, &self.measure.batch, stop)?;
        out::print(&match (self.json, self.markdown) {
            (true, _) => out::json(&report)?,
            (_, true) => markdown(&report),
            _ => terminal_of(&report, out::width().unwrap_or(usize::MAX)),
        })?;
        Ok(report)
    }

    /// Measures networks of the zoo. Prints a line for each network when it is measured, or at the
    /// end the reports of all as JSON or Markdown.
    fn zoo(&self, stop: &Stop) -> Result<Vec<Report>> {
        self.measure.refer_to(bench_variants::NAMES)?;
        let tells = !self.json && !self.markdown;
        let entries = bench_zoo::entries(self.all);
        if tells {
            let names: Vec<&str> = entries.iter().map(zoo::Entry::name).collect();
            let names = names.join(", ");
            let heading = overview_heading();
            out::print(&format!(
                "{names}\n\n{}\npeak: of memory in a run, fused ÷ exported\n\n{heading}",
                bench_variants::DEFINITIONS
            ))?;
        }
        let print_line = |report: &Report| {
            if tells {
                print_overview(report)
            } else {
                Ok(())
            }
        };
        let (reports, left_out) =
            bench_zoo::measure(&entries, self.all, &self.measure, stop, &print_line)?;
        if self.json {
            out::print(&out::json(&reports)?)?;
        } else if self.markdown {
            out::print(&overview_markdown(&reports))?;
        }
        if !left_out.is_empty() {
            let why = if stop.asked() {
                "interrupted"
            } else {
                "--all measures all, however long it takes"
            };
            out::complain("not measured", &format!("{}; {why}", left_out.join(", ")));
        }
        Ok(reports)
    }
}

/// Prints a line for each setting of a report, and the report's notes if a folded model computes
/// something else.
fn print_overview(report: &Report) -> std::io::Result<()> {
    let mut lines = overview_lines(report);
    if report.differs {
        for note in &report.notes {
            lines += &(plain(note) + "\n");
        }
    }
    out::print(&lines)
}

/// The title of the report, the variants to measure, and the sites if there is a single model.
fn subject(models: &[String]) -> Result<(String, Vec<Variant>, Vec<ReportedSite>)> {
    if let [model] = models {
        let (name, model) = open(model)?;
        let (mut variants, sites) = bench_variants::variants(&model)?;
        variants.extend(bench_variants::sliced(&model)?);
        return Ok((name, variants, sites));
    }
    let mut variants = vec![];
    for model in models {
        let (name, model) = open(model)?;
        variants.push(bench_variants::named(&name, model)?);
    }
    let names: Vec<&str> = variants
        .iter()
        .map(|variant| variant.name.as_str())
        .collect();
    if let Some((_, name)) = names
        .iter()
        .enumerate()
        .find(|(at, name)| names[..*at].contains(name))
    {
        return Err(misused(format!(
            "two variants are called `{name}`; NAME=FILE gives them names"
        )));
    }
    Ok((names.join(", "), variants, vec![]))
}

/// Opens a model that the command line names as `NAME=FILE`, as a file, or as a network of the zoo.
/// Returns its name in the report, too. If a file with the whole text as its name exists, that file
/// is opened.
fn open(model: &str) -> Result<(String, Model)> {
    let exists = Path::new(model).exists();
    if let Some(entry) = zoo::find(model).filter(|_| !exists) {
        return Ok((model.to_owned(), entry.model(0)?));
    }
    let (name, path) = match model.split_once('=') {
        Some((name, path)) if !exists => (name.to_owned(), Path::new(path)),
        None if !exists => {
            bail!("{model} is neither a file nor a network of the zoo: `unfold zoo list` has those")
        }
        _ => {
            let path = Path::new(model);
            (
                path.file_stem()
                    .unwrap_or(path.as_os_str())
                    .to_string_lossy()
                    .into_owned(),
                path,
            )
        }
    };
    Ok((name, ReachArgs::default().open(path)?))
}
