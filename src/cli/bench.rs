//! `unfold bench`: what folding is worth.

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use unfold::bench::{BenchOptions, Child, Stop, Variant, bench, machine, measure_here, read_inputs};
use unfold::onnx::Model;
use unfold::progress::Progress;
use unfold::report::{Report, Setting, Site, html, markdown, terminal};
use unfold::run::{Dims, Input};
use unfold::verify::{Verdict, VerifyOptions, compare};
use unfold::zoo;

use super::bench_zoo;
use super::interrupt::{INTERRUPTED, end};
use super::out;

/// Measures variants of a model against each other in tract, on the CPU.
///
/// Without a model it measures networks of the zoo. Exit codes: 0 if something was measured, 1 if tract
/// can run none of the variants, 3 if the fused model computes something else, 130 if it was interrupted;
/// what was measured until then is printed.
#[derive(Debug, clap::Args)]
pub struct BenchArgs {
    /// The model, or one of the zoo such as `swin-t.un`. Several are compared with one another, each
    /// under the name of its file, or another: NAME=FILE
    #[arg(value_name = "MODEL")]
    models: Vec<String>,

    /// All of the zoo, however long it takes
    #[arg(long, conflicts_with = "models")]
    pub all: bool,

    /// Sizes of the batch, each measured on its own
    #[arg(long, value_name = "N,N,...", value_delimiter = ',')]
    pub batch: Vec<NonZeroUsize>,

    /// Size of a symbolic dimension
    #[arg(long = "dim", value_name = "NAME=SIZE")]
    dims: Vec<Dims>,

    /// How many rounds; every variant runs once in a round
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,

    /// How long the rounds of each batch size may take, in seconds, where --rounds does not say
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    pub time: f64,

    /// Threads for matrix products
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: usize,

    /// Inputs, as a .npy or .npz file; random ones where it is not given
    #[arg(long, value_name = "FILE", conflicts_with = "batch", requires = "models")]
    input: Option<PathBuf>,

    /// The variants that the others are compared with
    #[arg(long = "reference", value_name = "NAME")]
    references: Vec<String>,

    /// Prints the report as JSON
    #[arg(long, conflicts_with = "markdown")]
    pub json: bool,

    /// Prints the report as Markdown
    #[arg(long)]
    pub markdown: bool,

    /// Writes the report as one self-contained page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Shows no progress
    #[arg(long, short)]
    quiet: bool,

    /// Runs MODEL once and prints the peak of the resident set; threads and sizes follow it
    #[arg(long, hide = true)]
    resident: bool,
}

/// What is made from one model: its variants, and the table of its sites.
pub type MakeVariants<'m> = &'m dyn Fn(&Model) -> Result<(Vec<Variant>, Vec<Site>)>;

/// Runs the command.
pub fn run(args: &BenchArgs, make: MakeVariants<'_>) -> Result<ExitCode> {
    if args.resident {
        return resident(&args.models);
    }
    if !(args.time.is_finite() && args.time >= 0.0) {
        bail!("--time {} is no duration", args.time);
    }
    let stop = stop_on_interrupt()?;
    let reports = match args.models.as_slice() {
        [] => bench_zoo::run(args, make, &stop)?,
        models => {
            let (title, variants, sites) = variants(models, make)?;
            let options = options(args, &variants, &args.batch)?;
            let report = measure(title, &variants, sites, &options, args, &stop);
            print(args, &report)?;
            vec![report]
        }
    };
    if let Some(path) = &args.html {
        fs::write(path, html(&reports)).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let mut settings = reports.iter().flat_map(|report| &report.settings);
    Ok(match () {
        () if stop.asked() => ExitCode::from(INTERRUPTED),
        () if reports.iter().any(|report| report.differs) => ExitCode::from(3),
        () if settings.all(nothing_ran) => ExitCode::FAILURE,
        () => ExitCode::SUCCESS,
    })
}

/// What Ctrl-C asks to stop.
fn stop_on_interrupt() -> Result<Stop> {
    let stop = Stop::default();
    let asked = stop.clone();
    ctrlc::set_handler(move || match asked.asked() {
        false => asked.ask(),
        // Whoever asks twice does not want to wait for the operator that is running.
        true => end(),
    })
    .context("cannot listen for interrupts")?;
    Ok(stop)
}

/// Measures variants, and compares the fused one with the exported one.
pub fn measure(
    title: String,
    variants: &[Variant],
    sites: Vec<Site>,
    options: &[BenchOptions],
    args: &BenchArgs,
    stop: &Stop,
) -> Report {
    let progress = Progress::new(&title, args.quiet);
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let mut report = Report {
        model: title,
        version,
        machine: machine(),
        settings: vec![],
        sites,
        notes: vec![],
        differs: false,
    };
    for options in options {
        if stop.asked() {
            break;
        }
        report.settings.push(bench(variants, options, stop, &mut |what, part| progress.set(what, part)));
        if stop.asked() {
            break;
        }
        progress.set("verifying", 1.0);
        if let Some(verdict) = verdict(variants, options) {
            report.differs |= !verdict.passed() && !matches!(verdict, Verdict::CouldNotVerify { .. });
            report.notes.push(told(&verdict, &options.label));
        }
    }
    report
}

fn nothing_ran(setting: &Setting) -> bool {
    setting.variants.iter().all(|variant| variant.measurement().is_none())
}

/// The title of the report, and what it compares.
fn variants(models: &[String], make: MakeVariants<'_>) -> Result<(String, Vec<Variant>, Vec<Site>)> {
    if let [model] = models {
        let (name, model) = open(model)?;
        let (variants, sites) = make(&model)?;
        return Ok((name, variants, sites));
    }
    let variant = |model: &String| {
        let (name, model) = open(model)?;
        let normalizers = unfold::variants::normalizers(&model)?;
        Ok(Variant { name, model, normalizers })
    };
    let variants = models.iter().map(variant).collect::<Result<Vec<_>>>()?;
    let names: Vec<&str> = variants.iter().map(|variant| variant.name.as_str()).collect();
    if let Some(name) =
        names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)).map(|(_, name)| name)
    {
        bail!("two variants are called `{name}`; NAME=FILE gives them names");
    }
    Ok((names.join(", "), variants, Vec::new()))
}

/// `NAME=FILE`, a file under its own name, or a network of the zoo. A file whose name has a `=` is taken
/// for what it is.
fn open(model: &str) -> Result<(String, Model)> {
    let exists = Path::new(model).exists();
    if let Some(entry) = zoo::find(model).filter(|_| !exists) {
        return Ok((model.to_owned(), entry.model(0)?));
    }
    match model.split_once('=').filter(|_| !exists) {
        Some((name, path)) => Ok((name.to_owned(), Model::open(path)?)),
        None => {
            let path = Path::new(model);
            let name = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
            Ok((name, Model::open(path)?))
        }
    }
}

/// One measurement for each size of the batch.
pub fn options(
    args: &BenchArgs,
    variants: &[Variant],
    batches: &[NonZeroUsize],
) -> Result<Vec<BenchOptions>> {
    let model = &variants.first().ok_or_else(|| anyhow!("there is nothing to compare"))?.model;
    let mut dims = Dims::default();
    dims.extend(args.dims.iter().cloned());
    let program = std::env::current_exe().context("cannot find the program itself")?;
    let child = Child { program, arguments: ["bench".into(), "--resident".into()].into() };
    let references = ["LN twin", "floor", "as exported"].map(String::from);
    let base = BenchOptions {
        dims,
        threads: args.threads.max(1),
        rounds: args.rounds,
        time: Duration::from_secs_f64(args.time),
        references: if args.references.is_empty() { references.into() } else { args.references.clone() },
        child: Some(child),
        ..BenchOptions::default()
    };
    if let Some(file) = &args.input {
        let (inputs, dims) = read_inputs(file, model, &base.dims).map_err(anyhow::Error::msg)?;
        return Ok(vec![labelled(BenchOptions { inputs: Some(inputs), dims, ..base })]);
    }
    let symbols = Input::batch_symbols(model);
    let given = symbols.iter().any(|symbol| base.dims.get(symbol).is_some());
    match (symbols.is_empty() || given, batches) {
        (true, []) => return Ok(vec![labelled(base)]),
        (true, _) if given => bail!("--batch and --dim give the same dimension a size"),
        (true, _) => bail!("--batch: the first dimension of no input of this model is symbolic"),
        (false, _) => {}
    }
    let sized = |batch: usize| {
        let mut dims = base.dims.clone();
        symbols.iter().for_each(|symbol| dims.set(*symbol, batch));
        labelled(BenchOptions { dims, ..base.clone() })
    };
    Ok(match batches {
        [] => vec![sized(1)],
        batches => batches.iter().map(|batch| sized(batch.get())).collect(),
    })
}

/// Under the sizes that tell it from others.
fn labelled(options: BenchOptions) -> BenchOptions {
    let sizes: Vec<String> = options.dims.iter().map(|(name, size)| format!("{name}={size}")).collect();
    let label = if sizes.is_empty() { options.label } else { sizes.join(", ") };
    BenchOptions { label, ..options }
}

/// Whether the fused variant computes what the exported one does, where there are both.
fn verdict(variants: &[Variant], options: &BenchOptions) -> Option<Verdict> {
    let find =
        |name: &str| variants.iter().find(|variant| variant.name == name).map(|variant| &variant.model);
    let (original, fused) = (find("as exported")?, find("fused")?);
    let options = VerifyOptions { dims: options.dims.clone(), ..VerifyOptions::default() };
    Some(compare(original, fused, &options))
}

/// A verdict in a sentence.
fn told(verdict: &Verdict, label: &str) -> String {
    match verdict {
        Verdict::Compared(comparison) => {
            let relative = comparison.worst().map_or(0.0, |worst| worst.relative);
            let verb = if comparison.agrees() { "agree" } else { "DIFFER" };
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

fn print(args: &BenchArgs, report: &Report) -> Result<()> {
    out::print(&match (args.json, args.markdown) {
        (true, _) => serde_json::to_string_pretty(report)? + "\n",
        (_, true) => markdown(report),
        _ => terminal(report),
    })?;
    Ok(())
}

/// The process that [`Child`] starts.
fn resident(arguments: &[String]) -> Result<ExitCode> {
    let [model, threads, sizes @ ..] = arguments else {
        bail!("a model and a number of threads are expected");
    };
    let mut dims = Dims::default();
    for size in sizes {
        dims.extend([size.parse::<Dims>().map_err(anyhow::Error::msg)?]);
    }
    let peak = measure_here(&Model::open(model)?, &dims, threads.parse()?)?;
    out::print(&format!("{}\n", peak.context("this system does not tell")?))?;
    Ok(ExitCode::SUCCESS)
}
