//! `unfold fuse`: folds, verifies, writes.

use std::path::PathBuf;

use anyhow::Result;
use unfold::certificate::Certificate;
use unfold::onnx::{Model, SaveOptions};
use unfold::run::Dims;
use unfold::verify::VerifyOptions;
use unfold::{FuseOptions, Plan};

use super::end::{EXIT_CODES, End};
use super::fused::FuseReport;
use super::inputs::sizes;
use super::interrupt::end_between_saves;
use super::judged::{Judged, When};
use super::out::{self, Paint};
use super::steps::Steps;
use super::target::{certificate_target, target};

const EXAMPLES: &str = "\
Examples:
  unfold fuse model.onnx -o fused.onnx
  unfold fuse model.onnx --dry-run
  unfold fuse model.onnx -o fused.onnx --skip 'blocks.0.*' --skip LN
  unfold fuse model.onnx -o fused.onnx --dim batch=4 --dim sequence=128 --verify require
  unfold fuse model.onnx -o fused.onnx --verify prove
  unfold fuse model.onnx -o fused.onnx --certificate fused.json
  unfold fuse model.onnx --in-place --quiet";

/// Folds the normalizers of a model into the operators around them, and writes the result.
///
/// Both models run on the same random inputs. Where they cannot, or where their outputs differ by more than the
/// tolerance, it is proved that they are the same function; and nothing is written if they are not. A model in which
/// there is nothing to fold is written as it is.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub struct FuseArgs {
    /// The model
    model: PathBuf,

    /// Where the result goes; an ONNX model that is there already is replaced
    #[arg(long, short, value_name = "OUT", required_unless_present_any = ["dry_run", "in_place"])]
    output: Option<PathBuf>,

    /// Overwrites the input
    #[arg(long, conflicts_with = "output")]
    in_place: bool,

    /// Prints the plan, and neither verifies nor writes the result
    #[arg(long)]
    dry_run: bool,

    /// Leaves sites as they are: a name or a kind, with * and ? (may be repeated)
    #[arg(long, value_name = "SITE_OR_KIND")]
    skip: Vec<String>,

    /// Writes how each new tensor is computed from those of the model, for `unfold prove` and other checkers
    #[arg(long, value_name = "FILE", conflicts_with = "dry_run")]
    certificate: Option<PathBuf>,

    /// How the result is verified
    #[arg(long, value_name = "HOW", value_enum, default_value_t = When::Auto)]
    verify: When,

    /// Writes the result without verifying it, as --verify off does
    #[arg(long, conflicts_with = "verify")]
    no_verify: bool,

    /// Size of a symbolic dimension while verifying (may be repeated)
    #[arg(long = "dim", value_name = "NAME=SIZE")]
    dims: Vec<Dims>,

    /// The largest error that passes, as a part of the largest output; by default 1e-4, or what the
    /// type of the weights allows if it is not float32
    #[arg(long, value_name = "ERROR", value_parser = tolerance)]
    tolerance: Option<f64>,

    /// Prints JSON
    #[arg(long)]
    json: bool,

    /// Prints nothing but warnings and errors
    #[arg(long, short)]
    quiet: bool,
}

fn tolerance(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
        _ => Err("not a number from 0 on".to_owned()),
    }
}

/// Runs the command.
pub fn run(args: &FuseArgs) -> Result<End> {
    let report = fuse(args)?;
    warn_of_left_data(&report);
    let end = report.judged.end(args.when());
    if args.json {
        out::print(&(serde_json::to_string_pretty(&report.json())? + "\n"))?;
    } else if !args.quiet {
        out::print(&report.text(Paint::stdout()))?;
    }
    report.judged.complain(args.when());
    Ok(end)
}

fn fuse(args: &FuseArgs) -> Result<FuseReport> {
    let steps = Steps::new("fuse", args.quiet);
    steps.begin("load");
    let model = Model::open(&args.model)?;
    let progress = steps.progress();
    let options = FuseOptions { skip: args.skip.clone(), progress: Some(&progress) };
    if args.dry_run {
        let planned = unfold::dry_run(&model, &options)?;
        warn_of_idle_skips(&options, &planned.plan);
        return Ok(FuseReport::dry(model, planned));
    }
    end_between_saves()?;
    let path = target(&args.model, args.output.as_deref())?;
    let certificate = args.certificate.as_ref().map(|file| certificate_target(file, &path)).transpose()?;
    let dims = sizes(&args.dims, &model)?;
    let fused = unfold::fuse(&model, &options)?;
    warn_of_idle_skips(&options, &fused.plan);
    let mut report = FuseReport::of(model, fused);
    if let Some(after) = &report.after {
        let options = VerifyOptions { dims, tolerance: args.tolerance, ..VerifyOptions::default() };
        let begin = |step: &str| steps.begin(step);
        let tensors = &report.plan.tensors;
        let before = [&report.before, report.reference()];
        report.judged = Judged::of(args.when(), before, after, tensors, &options, begin);
    }
    if report.judged.end(args.when()) == End::Done {
        // Before it is overwritten, if it is.
        let original = certificate.as_ref().map(|_| report.before.digests()).transpose()?;
        steps.begin("save");
        report.written = match &report.after {
            Some(after) => Some(after.save(&path)?),
            None if args.in_place => None,
            None => Some(report.before.copy_as(&path, &SaveOptions::default())?),
        };
        if let (Some(file), Some(original), Some(saved)) = (certificate, original, &report.written) {
            let fused = Model::open(&saved.path)?.digests()?;
            let certificate = Certificate::new(&report.plan, options.chosen(), [original, fused]);
            report.certificate = Some(certificate.save(file)?);
        }
    }
    Ok(report)
}

fn warn_of_left_data(report: &FuseReport) {
    for data in report.written.iter().flat_map(|saved| &saved.left) {
        let data = data.display();
        let reason = "unfold may not have written it, or another model may refer to it";
        out::complain(
            "warning",
            &format!("{data}: the model that was replaced had its weights there; it is left, as {reason}"),
        );
    }
}

fn warn_of_idle_skips(options: &FuseOptions, plan: &Plan) {
    for pattern in options.idle_skips(plan) {
        out::complain("warning", &format!("--skip `{pattern}`: no site has this name or kind"));
    }
}

impl FuseArgs {
    fn when(&self) -> When {
        if self.no_verify { When::Off } else { self.verify }
    }
}
