//! `unfold reduce`: writes the smallest parts of two models that still differ.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use unfold::diff::{DifferingParts, reduce};
use unfold::judge::Judgement;
use unfold::onnx::Model;
use unfold::report::counted;

use super::model_pair::ModelPairArgs;
use super::option_values::file;
use super::out::{self, Paint};
use super::output_path::model_target;
use super::progress_bar::StepProgress;
use super::verdicts::{self, JudgedModel};
use crate::cli::exit_code::{EXIT_CODES, End};

/// The names of the written files.
const MODELS: [&str; 2] = ["a.onnx", "b.onnx"];
const INPUTS: &str = "inputs.npz";

const EXAMPLES: &str = "\
Examples:
  unfold reduce model.onnx simplified.onnx -o difference
  unfold reduce model.onnx fused.onnx -o difference --dim batch=1
  unfold print difference/a.onnx";

/// Writes the smallest parts of two models that still differ, with inputs that show the difference.
///
/// The parts begin at values that both models have, and end at the first values that differ although the same operators
/// read them. Of models that are the same but for casts, the parts are the operators around the first cast that only one
/// of them has. They are a.onnx and b.onnx, without external data, and have the same inputs, in inputs.npz: the values that
/// the first model computes there.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub(crate) struct ReduceArgs {
    #[command(flatten)]
    models: ModelPairArgs,

    /// The folder for a.onnx, b.onnx and inputs.npz
    #[arg(long, short, value_name = "FOLDER", value_parser = file())]
    output: PathBuf,

    /// Prints only errors
    #[arg(long, short)]
    quiet: bool,
}

/// Runs the command.
pub(crate) fn run(args: &ReduceArgs) -> Result<End> {
    let steps = StepProgress::new("reduce", args.quiet);
    steps.begin("load");
    let ([first, second], options) = args.models.load()?;
    steps.begin("prove");
    let reduction = reduce(&first, &second, &options)?;
    drop(steps);
    let Some(parts) = reduction.parts else {
        return nothing_to_reduce(&reduction.judgement, args);
    };
    write(&parts, &args.output)?;
    if !args.quiet {
        out::print(&text(&parts, [&first, &second], &args.output))?;
        if let Some(verdict) = verdicts::success(&parts.judgement, Paint::stdout()) {
            out::print(&format!("{verdict}\n"))?;
        }
    }
    let other = args.output.join(MODELS[1]);
    let judged = JudgedModel {
        path: &other,
        accept: &[],
        witness: None,
        advice: "the inputs in inputs.npz show it",
    };
    verdicts::end(&parts.judgement, &judged)
}

/// Reports that no differing parts were found, because both models are the same or cannot be
/// compared.
fn nothing_to_reduce(judgement: &Judgement, args: &ReduceArgs) -> Result<End> {
    if let Some(verdict) = verdicts::success(judgement, Paint::stdout()) {
        let line = verdict.lines().next().unwrap_or_default();
        if !args.quiet {
            out::print(&format!("{line}; nothing was written\n"))?;
        }
    }
    let judged = JudgedModel {
        path: &args.models.second,
        accept: &[],
        witness: None,
        advice: "no smaller part was found",
    };
    verdicts::end(judgement, &judged)
}

/// Writes both parts and their inputs into a folder, which is created if it is missing.
fn write(parts: &DifferingParts, folder: &Path) -> Result<()> {
    if folder.exists() && !folder.is_dir() {
        bail!("{} is no folder", folder.display());
    }
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    for (name, model) in MODELS.iter().zip(&parts.models) {
        let path = model_target(&folder.join(name))?;
        model.save(path)?;
    }
    let file = folder.join(INPUTS);
    verdicts::save_inputs(&parts.inputs, &file).with_context(|| file.display().to_string())
}

/// The sizes of the parts, and the values that they compute.
fn text(parts: &DifferingParts, wholes: [&Model; 2], folder: &Path) -> String {
    let mut text = String::new();
    for side in 0..2 {
        let nodes = &parts.models[side].graph().node;
        let operators: Vec<&str> = nodes.iter().map(|node| node.op_type()).collect();
        let all = counted(wholes[side].graph().node.len(), "node");
        let line = format!(
            "{}: {} of {all}, to `{}`: {}",
            folder.join(MODELS[side]).display(),
            nodes.len(),
            parts.values[side],
            operators.join(", ")
        );
        text += &(unfold::report::plain(&line) + "\n");
    }
    text
}
