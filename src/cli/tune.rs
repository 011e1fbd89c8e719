//! `unfold tune`: measures the results of several options of `fuse`, then writes the best one.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::Serialize;
use unfold::bench::choice::TuneGoal;
use unfold::bench::{BenchOptions, Stop};
use unfold::onnx::Model;
use unfold::report::plain;
use unfold::run::{Dims, Input};

use super::candidates::candidates;
use super::command_line::command;
use super::exit_code::{EXIT_CODES, End};
use super::fuse::{Fix, FuseArgs, Task, fuse, to_fix};
use super::inputs::{known_to_some, read_inputs};
use super::option_values::{file, from_zero};
use super::out::{self, Paint};
use super::output_path::target;
use super::path::JsonPath;
use super::progress_bar::StepProgress;
use super::rounds::{RoundArgs, labelled};
use super::storage::ReachArgs;
use super::tune_report::Tuned;
use super::usage_errors::misused;

const EXAMPLES: &str = "\
Examples:
  unfold tune model.onnx -o fast.onnx
  unfold tune model.onnx -o fast.onnx --dim batch=8 --rounds 50
  unfold tune model.onnx -o fast.onnx --fix batch=1 --input sample.npz
  unfold tune model.onnx -o small.onnx --for memory --max-slowdown 20
  unfold tune model.onnx -o fast.onnx --json | jq -r '.command'";

/// Measures the results of several options of `fuse` for a model on this machine, then writes the
/// best one.
///
/// Candidates are the exported file, the result of `fuse` by default and with each other
/// `--target`, and that of `--memory` if something can be cut. Equal results are measured once. All
/// run in tract in interleaved rounds. The report has the ratio of each time to that of the
/// exported file, with its 95 % interval, and the command that produces the file. The default is
/// preferred unless another one is measurably faster. The result is verified as by `fuse`.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub(crate) struct TuneArgs {
    /// The model
    #[arg(value_name = "MODEL", value_parser = file())]
    model: PathBuf,

    /// The file of the result; an existing ONNX model is replaced
    #[arg(long, short, value_name = "OUT", value_parser = file())]
    output: PathBuf,

    /// The property to minimize
    #[arg(long = "for", value_name = "GOAL", value_enum, default_value_t = GoalName::Latency)]
    goal: GoalName,

    /// The maximum slowdown of a candidate relative to the fastest one with `--for memory`, in
    /// percent
    #[arg(long, value_name = "PERCENT", value_parser = from_zero, allow_negative_numbers = true, default_value_t = 10.0)]
    max_slowdown: f64,

    /// Fixes a dimension in all candidates, as `fuse --fix` does (may be repeated). `all` fixes
    /// every open dimension, to the size at which the candidates are measured
    #[arg(long = "fix", value_name = "NAME=SIZE|all", value_parser = to_fix)]
    fix: Vec<Fix>,

    /// Inputs, as a .npy or .npz file. Default: random inputs
    #[arg(long, value_name = "FILE", value_parser = file())]
    input: Option<PathBuf>,

    #[command(flatten)]
    rounds: RoundArgs,

    #[command(flatten)]
    reach: ReachArgs,

    /// Prints the report as JSON
    #[arg(long)]
    json: bool,
}

/// The property to minimize.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum GoalName {
    /// The time of a run
    Latency,
    /// The peak of the heap in a run, among candidates that are fast enough (see --max-slowdown)
    Memory,
}

impl GoalName {
    /// The goal, with a maximum slowdown relative to the fastest candidate in percent.
    pub(crate) fn with_slowdown(self, percent: f64) -> TuneGoal {
        match self {
            GoalName::Latency => TuneGoal::Latency,
            GoalName::Memory => TuneGoal::Memory {
                slowdown: 1.0 + percent / 100.0,
            },
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: &TuneArgs) -> Result<End> {
    // Checks the output path first, so that a wrong path fails before anything is measured.
    let task = args.task(&args.fuse_words(vec![]))?;
    target(&task.model, task.output.as_deref())?;
    let steps = StepProgress::new("tune", args.rounds.quiet);
    let progress = steps.progress();
    steps.begin("load");
    let model = args.reach.open(&args.model)?;
    let (options, fix) = args.measurement(&model)?;
    let candidates = candidates(&model, &options.dims, &fix, &progress)?;
    let goal = args.goal.with_slowdown(args.max_slowdown);
    let tuned = Tuned::in_tract(&candidates, &options, goal, &Stop::default(), &progress)?;
    let mut chosen = tuned.chosen().words(&options.dims);
    chosen.extend(with_sizes("--fix", &fix));
    let words = args.fuse_words(chosen);
    let fuse_args = FuseArgs::from_words(&words)?;
    let fused = fuse(&fuse_args, &task, model, &progress)?;
    drop(progress);
    drop(steps);
    let command = command(&words);
    if args.json {
        let report = TuneJson {
            model: JsonPath(&args.model),
            tuned: &tuned,
            command: &command,
            written: fused.written.as_ref().map(|saved| JsonPath(&saved.path)),
            verified: fused.judged.is_verified(),
        };
        out::print(&out::json(&report)?)?;
    } else {
        let paint = Paint::stdout();
        let verified = fused.judged.text(paint) + &fused.written_line();
        let text = tuned.text(paint) + &verified + &plain(&command) + "\n";
        out::print(&text)?;
    }
    for (kind, line) in fused.complaints(fuse_args.when()) {
        out::complain(kind, &line);
    }
    Ok(fused.judged.end(fuse_args.when()))
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct TuneJson<'j> {
    model: JsonPath<'j>,
    #[serde(flatten)]
    tuned: &'j Tuned,
    /// The command line that produces the file.
    command: &'j str,
    written: Option<JsonPath<'j>>,
    verified: bool,
}

impl TuneArgs {
    /// The command line of `fuse` that produces the result with these options.
    fn fuse_words(&self, options: Vec<String>) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec!["fuse".into(), self.model.clone().into()];
        words.extend(["-o".into(), self.output.clone().into()]);
        words.extend(options.into_iter().map(OsString::from));
        let sizes = self.rounds.dims.iter();
        words.extend(sizes.flat_map(|dims| with_sizes("--dim", dims).map(OsString::from)));
        words.extend(self.reach.words());
        words
    }

    /// The options of the measurement, and the sizes of the dimensions that are fixed in the
    /// candidates.
    fn measurement(&self, model: &Model) -> Result<(BenchOptions, Dims)> {
        let mut options = sized(self.rounds.options()?, &self.fix, model)?;
        if let Some(file) = &self.input {
            let (inputs, dims) = read_inputs(file, model, &options.dims)?;
            options = labelled(BenchOptions {
                inputs: Some(inputs),
                dims,
                ..options
            });
        }
        let fix = take_fixed(&self.fix, &mut options.dims)?;
        Ok((options, fix))
    }

    /// The model with the path of its result.
    fn task(&self, words: &[OsString]) -> Result<Task> {
        let tasks = FuseArgs::from_words(words)?.tasks()?;
        tasks.into_iter().next().context("there is no model")
    }
}

/// Returns the sizes of the dimensions that `fix` names, and removes these dimensions from `sizes`,
/// the sizes at which candidates are measured.
pub(crate) fn take_fixed(fix: &[Fix], sizes: &mut Dims) -> Result<Dims> {
    let mut fixed = Dims::default();
    for fix in fix {
        fixed.extend([fix.sizes().unwrap_or(sizes).clone()]);
    }
    let other = sizes
        .iter()
        .find(|(name, size)| fixed.get(name).is_some_and(|fixed| fixed != *size));
    if let Some((name, size)) = other {
        return Err(misused(format!(
            "--fix `{name}`: the candidates are measured with {name}={size}"
        )));
    }
    sizes.remove_all(&fixed);
    Ok(fixed)
}

/// For each size, the words `option` and `name=size` of a command line.
fn with_sizes<'d>(option: &'d str, sizes: &'d Dims) -> impl Iterator<Item = String> + 'd {
    sizes
        .iter()
        .flat_map(move |(name, size)| [option.to_owned(), format!("{name}={size}")])
}

/// Gives every open dimension a size in the options, including the dimensions in `fix`. The default
/// for a batch is 1.
pub(crate) fn sized(mut options: BenchOptions, fix: &[Fix], model: &Model) -> Result<BenchOptions> {
    let fixed: Vec<Dims> = fix.iter().filter_map(Fix::sizes).cloned().collect();
    known_to_some("--dim", &[options.dims.clone()], &[model])?;
    known_to_some("--fix", &fixed, &[model])?;
    let given = std::mem::take(&mut options.dims);
    options.dims.extend(fixed);
    options.dims.extend([given]);
    for symbol in Input::batch_symbols(model) {
        if options.dims.get(&symbol).is_none() {
            options.dims.set(symbol, 1);
        }
    }
    // If tract does not support the inputs at any size, the sizes stay incomplete, and the
    // measurement reports the failure.
    if let Ok(sizes) = Input::sizes(model, &options.dims) {
        options.dims = sizes;
    }
    Ok(labelled(options))
}
