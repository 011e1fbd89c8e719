//! `unfold fuse`: folds a model, verifies the result, then writes it.

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, FromArgMatches};
use strum::VariantNames;
use unfold::Target;
use unfold::certificate::Certificate;
use unfold::onnx::Model;
use unfold::prove::ProveOptions;
use unfold::prove_passes::PassProver;
use unfold::provenance::FoldOptions;
use unfold::run::{Dims, Input};
use unfold::verify::VerifyOptions;
use unfold::{FuseOptions, PassResult};

use super::fuse_report::FuseReport;
use super::half::HalfArgs;
use super::inputs::sizes;
use super::observers::{Observers, pass_name};
use super::option_values::{file, from_one, from_zero};
use super::out::{self, Paint};
use super::output_path::{certificate_target, target};
use super::progress_bar::StepProgress;
use super::scale_stream::ScalingArgs;
use super::slicing::SlicingArgs;
use super::storage::{ReachArgs, StorageArgs};
use crate::cli::exit_code::{EXIT_CODES, End};
use crate::cli::unused_options::Idle;
use crate::cli::usage_errors::misused;
use crate::cli::verification::When;

const EXAMPLES: &str = "\
Examples:
  unfold fuse model.onnx -o fused.onnx
  unfold fuse model.onnx --dry-run
  unfold fuse model.onnx -o fused.onnx --skip 'blocks.0.*' --skip LN
  unfold fuse model.onnx -o fused.onnx --dim batch=4 --dim sequence=128 --verify require
  unfold fuse model.onnx -o fused.onnx --verify prove
  unfold fuse model.onnx -o fused.onnx --verify each --stats
  unfold fuse model.onnx -o fused.onnx --certificate fused.json
  unfold fuse model.onnx -o fused.onnx --max-growth 20
  unfold fuse model.onnx -o fused.onnx --centre
  unfold fuse model.onnx -o fused.onnx --merge-norms
  unfold fuse model.onnx -o fused.onnx --constant-norms
  unfold fuse model.onnx -o fused.onnx --scale-stream auto --input tokens.npz
  unfold fuse model.onnx -o half.onnx --to float16 --input samples.npz
  unfold fuse model.onnx -o fused.onnx --fix batch=1 --fix sequence=128
  unfold fuse model.onnx -o fused.onnx --external-data always
  unfold fuse model.onnx --in-place --quiet
  unfold fuse a.onnx b.onnx c.onnx -o fused/ --jobs 2
  unfold fuse models/ -o fused/";

/// Folds the normalizers of models into the operators around them, then writes the results.
///
/// Both models run on the same random inputs. If tract cannot run them, or if their outputs differ
/// by more than the tolerance, a proof decides. Nothing is written if the functions differ. If
/// nothing folds, the output is a byte-for-byte copy of the input.
///
/// Several models are independent: if one fails, the others continue. Each gets one line. Its
/// errors go to the standard error stream, and the exit code is the worst one: 3 before 1, and 1
/// before 4.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub(super) struct FuseArgs {
    /// The model, or several; a folder stands for the models in it
    #[arg(required = true, value_name = "MODEL", value_parser = file())]
    pub models: Vec<PathBuf>,

    /// The file or folder of the result. An existing ONNX model is replaced. A folder receives
    /// results under the names of their models, and is created if it does not exist. Several models
    /// require a folder
    #[arg(long, short, value_name = "OUT", value_parser = file())]
    pub(super) output: Option<PathBuf>,

    /// Overwrites the input
    #[arg(long, conflicts_with = "output")]
    pub(super) in_place: bool,

    /// Prints the plan, but neither verifies nor writes the result
    #[arg(long)]
    pub dry_run: bool,

    /// Sites to leave unchanged: a name, a kind, or a pattern with * and ? (may be repeated). The
    /// name of a pass leaves the pass out. `unfold passes` lists the passes and their aliases
    #[arg(long, visible_alias = "keep", value_name = "SITE_OR_KIND_OR_PASS")]
    skip: Vec<String>,

    /// Stops after the first run of this pass, or after this number of changes
    #[arg(long, value_name = "PASS|N")]
    stop_after: Option<String>,

    /// Prints the model after each change by this pass in ONNX's textual syntax, to the standard
    /// error stream
    #[arg(long, value_name = "PASS", value_parser = pass_name, conflicts_with = "dry_run")]
    print_after: Option<String>,

    /// Prints the runs, changes, removed operators and seconds of each pass
    #[arg(long)]
    pub stats: bool,

    /// The limit for growth by copies of weights that have other readers, and by biases that
    /// differ from place to place, in percent of the weights. If it is exceeded, the sites that add
    /// the most stay. New vectors do not count
    #[arg(
        long,
        value_name = "PERCENT",
        value_parser = from_zero,
        allow_negative_numbers = true,
        default_value_t = FuseOptions::default().max_growth
    )]
    max_growth: f64,

    /// Centres residual streams with `--target portable` too; all other targets always do. If only
    /// LayerNormalizations read a stream, the mean that they subtract is no longer written, and
    /// each becomes an RMS normalization. `--skip centring`, or the name of a stream, leaves a
    /// stream unchanged
    #[arg(long, alias = "center")]
    centre: bool,

    /// Removes a normalizer without parameters if all its readers are normalizers, with only linear
    /// operators without a bias between them. The result is equal up to the ε of the remaining
    /// ones. The difference cannot be proved, and is measured if the result is verified by running.
    /// `--skip merging`, or the name of a site, keeps a normalizer
    #[arg(long)]
    merge_norms: bool,

    /// Takes normalizers as constant whose ε is all of `var + ε` in floating point, as in networks that were trained to do
    /// without: each is an affine of its input without the mean, and folds. Exact while no variance reaches the limit that
    /// is printed; the run that verifies the result measures the largest. `--skip` with the name of a site keeps one
    #[arg(long)]
    constant_norms: bool,

    /// The engines for which the result is written. `cpu`: each exact form that runs slower in none
    /// of tract, onnxruntime and OpenVINO. A product with one open extent and its bias become one
    /// Gemm between two Reshapes (ViT-S in onnxruntime: 0.93 to 0.95 of the export's time, and 0.98
    /// to 1.01 without). Residual streams are centred (0.98 in tract and OpenVINO). `portable`:
    /// LayerNormalization, MatMul and attention stay, for GPUs, and for quantization or conversion
    /// afterwards. `onnxruntime`: like `cpu`, but intermediate values with open shapes are not
    /// declared (BERT: 0.77 of the export, 0.95 by default), and attention without a mask is one MultiHeadAttention, which keeps
    /// no scores. `tract`: like `cpu`, but a layer runs before the windows that it reads (Swin-T in
    /// tract: 0.91, and 0.95 without)
    #[arg(long, value_name = "ENGINE", value_parser = target_parser(), default_value_t = Target::default())]
    target: Target,

    /// Writes a model for inputs of one size: the dimension becomes this number, and values
    /// computed from it become constants (may be repeated). `all` fixes every open dimension, to
    /// the sizes of --dim, or else to 2 for a batch, 224 for a side of an image, and 8 for all
    /// others
    #[arg(long = "fix", value_name = "NAME=SIZE|all", value_parser = to_fix)]
    fix: Vec<Fix>,

    #[command(flatten)]
    half: HalfArgs,

    #[command(flatten)]
    scaling: ScalingArgs,

    #[command(flatten)]
    slicing: SlicingArgs,

    #[command(flatten)]
    storage: StorageArgs,

    #[command(flatten)]
    pub reach: ReachArgs,

    /// Writes a certificate: the formula of each new tensor over those of the model, for
    /// `unfold prove` and other checkers
    #[arg(long, value_name = "FILE", conflicts_with = "dry_run", value_parser = file())]
    pub(super) certificate: Option<PathBuf>,

    /// The method of verification
    #[arg(long, value_name = "HOW", value_enum, default_value_t = When::Auto)]
    verify: When,

    /// Writes the result without verifying it, like --verify off
    #[arg(long, conflicts_with = "verify")]
    no_verify: bool,

    /// Size of a symbolic dimension during verification. A dimension without a symbol is named by
    /// its input and its place, such as x:2 (may be repeated)
    #[arg(long = "dim", value_name = "NAME=SIZE")]
    dims: Vec<Dims>,

    /// The largest error that passes, relative to the largest output. Default: 1e-4, or more if the
    /// type of the weights is less precise than float32
    #[arg(long, value_name = "ERROR", value_parser = from_zero, allow_negative_numbers = true)]
    tolerance: Option<f64>,

    /// The number of models that are processed at once, if memory suffices. Default: one for each
    /// core
    #[arg(long, value_name = "N", value_parser = from_one)]
    pub jobs: Option<NonZeroUsize>,

    /// Prints JSON; for several models or a folder, one object with all of them as `models`
    #[arg(long)]
    pub json: bool,

    /// Prints only warnings and errors
    #[arg(long, short, conflicts_with = "verbose")]
    pub quiet: bool,

    /// Lists each site in its own row, even if sites stay for equal reasons
    #[arg(long, short)]
    pub verbose: bool,
}

fn target_parser() -> impl TypedValueParser<Value = Target> {
    PossibleValuesParser::new(Target::VARIANTS).map(|name| name.parse().unwrap_or_default())
}

/// The dimensions to fix.
#[derive(Debug, Clone)]
pub(crate) enum Fix {
    /// All open dimensions.
    All,
    /// The listed dimensions.
    Sizes(Dims),
}

impl Fix {
    /// The listed dimensions. `None` if all open dimensions are fixed.
    pub(crate) fn sizes(&self) -> Option<&Dims> {
        match self {
            Fix::All => None,
            Fix::Sizes(dims) => Some(dims),
        }
    }
}

/// Parses `all` or `name=size`.
pub(super) fn to_fix(text: &str) -> Result<Fix, String> {
    if text == "all" {
        Ok(Fix::All)
    } else {
        text.parse().map(Fix::Sizes)
    }
}

/// A model, and the path of its result.
pub(super) struct Task {
    pub model: PathBuf,
    /// The path of the result. `None` if the result replaces the model, or if nothing is written.
    pub output: Option<PathBuf>,
}

/// Folds one model, and prints the report.
pub(super) fn one(args: &FuseArgs, task: &Task) -> Result<End> {
    let steps = StepProgress::new("fuse", args.quiet);
    steps.begin("load");
    let report = fuse(args, task, args.reach.open(&task.model)?, &steps.progress())?;
    drop(steps);
    warn_of_idle(&report.idle);
    if args.json {
        out::print(&out::json(&report.json())?)?;
    } else if !args.quiet {
        out::print(&report.text(Paint::stdout()))?;
    }
    report
        .complaints(args.when())
        .iter()
        .for_each(|(what, line)| out::complain(what, line));
    let end = report.judged.end(args.when());
    // The process ends after this, and the operating system frees all memory faster than this
    // program would.
    std::mem::forget(report);
    Ok(end)
}

/// Folds one model, then writes the result.
pub(super) fn fuse(
    args: &FuseArgs,
    task: &Task,
    model: Model,
    tell: &dyn Fn(&str, usize, usize),
) -> Result<FuseReport> {
    let scaling = args
        .scaling
        .choose(&model, &args.dims, args.half.to, tell)?;
    let options = args.options(&model, scaling.scale_stream, tell)?;
    if args.dry_run {
        let report = planned(args, model, &options)?;
        return Ok(report.with(scaling));
    }
    let path = target(&task.model, task.output.as_deref())?;
    let certificate = args.certificate.as_ref();
    let certificate = certificate
        .map(|file| certificate_target(file, &path))
        .transpose()?;
    let mut dims = sizes("--dim", &args.dims, &model)?;
    // The compared models have fixed sizes in place of these symbols, so no sizes may be given for
    // them.
    dims.remove_all(&options.fix);
    let observers = args.observers(&dims);
    let observer = |result: &PassResult| observers.observe(result);
    let options = FuseOptions {
        observer: observers.is_wanted().then_some(&observer),
        ..options
    };
    let samples = args.scaling.samples(&model, &args.dims)?;
    let fused = unfold::fuse_ahead(&model, &options)?;
    args.slicing.check(fused.plan.memory.as_ref())?;
    let idle = Idle::all(&options, &model, &fused.plan);
    let mut report = FuseReport::from_fused(model, fused, idle)
        .with(scaling)
        .chosen_by(&options)
        .listing_all(args.verbose)
        .with_stats(args.stats)
        .assuming(options.chosen())?
        .sampled(samples);
    report.judged.passes = observers.proofs();
    let verify = VerifyOptions {
        dims,
        tolerance: args.tolerance,
        ..VerifyOptions::default()
    };
    report.judge(args.when(), &verify, |step| tell(step, 0, 1));
    if report.judged.end(args.when()) == End::Done {
        tell("save", 0, 1);
        args.write(&mut report, &path, certificate, options.chosen())?;
    }
    Ok(report)
}

/// The report of a dry run.
fn planned(args: &FuseArgs, model: Model, options: &FuseOptions) -> Result<FuseReport> {
    let planned = unfold::dry_run(&model, options)?;
    args.slicing.check(planned.plan.memory.as_ref())?;
    let idle = Idle::all(options, &model, &planned.plan);
    Ok(FuseReport::dry(model, planned, idle)
        .chosen_by(options)
        .listing_all(args.verbose)
        .with_stats(args.stats))
}

/// Warns about options without effect.
pub(super) fn warn_of_idle(options: &[Idle]) {
    options
        .iter()
        .for_each(|idle| out::complain("warning", &idle.on_command_line()));
}

impl FuseArgs {
    /// Parses the arguments of a command line whose first word is `fuse`.
    pub(super) fn from_words(words: &[OsString]) -> Result<Self, clap::Error> {
        let command = FuseArgs::augment_args(clap::Command::new("fuse"));
        FuseArgs::from_arg_matches(&command.try_get_matches_from(words)?)
    }

    /// The method of verification.
    pub(super) fn when(&self) -> When {
        if self.no_verify {
            When::Off
        } else {
            self.verify
        }
    }

    /// The options for the library.
    fn options<'o>(
        &self,
        model: &Model,
        scale_stream: Option<u32>,
        tell: &'o dyn Fn(&str, usize, usize),
    ) -> Result<FuseOptions<'o>> {
        Ok(FuseOptions {
            skip: self.skip.clone(),
            max_growth: self.max_growth,
            centre: self.centre,
            merge_norms: self.merge_norms,
            constant_norms: self.constant_norms,
            scale_stream,
            target: self.target,
            to: self.half.to,
            io: self.half.io,
            fix: self.fixed(model)?,
            slicing: self.slicing.of(model)?,
            stop_after: self.stop_after.clone(),
            progress: Some(tell),
            observer: None,
        })
    }

    /// The observers of passes. With `--verify each`, they prove each pass at these sizes.
    fn observers(&self, dims: &Dims) -> Observers {
        let options = ProveOptions {
            dims: dims.clone(),
            ..ProveOptions::default()
        };
        Observers {
            prover: (self.when() == When::Each).then(|| PassProver::new(options)),
            printed: self.print_after.clone(),
        }
    }

    /// Writes the result, or a copy of the model if nothing folds. Also writes the certificate, if
    /// requested.
    fn write(
        &self,
        report: &mut FuseReport,
        path: &Path,
        certificate: Option<PathBuf>,
        chosen: FoldOptions,
    ) -> Result<()> {
        // Computes the digests of the original before the result may overwrite it.
        let original = certificate
            .as_ref()
            .map(|_| report.before.digests())
            .transpose()?;
        report.written = match &report.after {
            Some(after) => Some(after.save_as(path, &self.storage.options())?),
            None if self.in_place => None,
            None => Some(report.before.copy_as(path, &self.storage.options())?),
        };
        if let (Some(file), Some(original), Some(saved)) = (certificate, original, &report.written)
        {
            let fused = Model::open(&saved.path)?.digests()?;
            let certificate = Certificate::new(&report.plan, chosen, [original, fused]);
            report.certificate = Some(certificate.save(file)?);
        }
        Ok(())
    }

    /// The sizes of the dimensions that `--fix` names.
    fn fixed(&self, model: &Model) -> Result<Dims> {
        let mut fixed = Dims::default();
        for fix in &self.fix {
            match fix {
                Fix::All => {
                    fixed.extend([Input::sizes(model, &sizes("--dim", &self.dims, model)?)?])
                }
                Fix::Sizes(dims) => fixed.extend([dims.clone()]),
            }
        }
        let given = self.dims.iter().flat_map(Dims::iter);
        let other = given
            .into_iter()
            .find(|(name, size)| fixed.get(name).is_some_and(|fixed| fixed != *size));
        match other {
            Some((name, size)) => Err(misused(format!(
                "--fix `{name}`: --dim gives it another size, {size}"
            ))),
            None => Ok(fixed),
        }
    }
}
