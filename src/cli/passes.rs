//! `unfold passes`: lists the pipeline.

use anyhow::Result;
use serde::Serialize;
use unfold::{PassInfo, Pipeline, StageInfo};

use super::out::{self, Paint};
use crate::cli::exit_code::End;

const EXAMPLES: &str = "\
Examples:
  unfold passes
  unfold passes --json
  unfold fuse model.onnx -o fused.onnx --skip canonicalize
  unfold fuse model.onnx -o fused.onnx --stop-after fold-affines --stats";

/// Lists the passes of `unfold fuse`, in the order in which they run.
///
/// A stage with a bound begins again after a change, until none of its passes changes anything, or
/// until it has begun as often as the bound allows. `--skip` takes the names of passes, and their older
/// names, which are listed as aliases.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct PassesArgs {
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// The JSON of the command.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct PassesJson<'j> {
    /// The stages, in order.
    stages: &'j [StageInfo],
}

/// Runs the command.
pub(super) fn run(args: &PassesArgs) -> Result<End> {
    let stages = Pipeline::stages();
    if args.json {
        out::print(&out::json(&PassesJson { stages: &stages })?)?;
    } else {
        out::print(&text(&stages, Paint::stdout()))?;
    }
    Ok(End::Done)
}

/// Tables of all stages.
fn text(stages: &[StageInfo], paint: Paint) -> String {
    let tables = stages.iter().map(|stage| stage_text(stage, paint));
    tables.collect::<Vec<_>>().join("\n")
}

fn stage_text(stage: &StageInfo, paint: Paint) -> String {
    let mut table = paint.table(&[stage.stage, &conditions(stage), "alias"]);
    for pass in &stage.passes {
        table.add_row([
            out::cell(pass.name),
            out::cell(description(pass)),
            out::cell(pass.aliases.join(", ")),
        ]);
    }
    out::lines(&table)
}

/// How often a stage runs, and the pass after whose changes it runs, in words.
fn conditions(stage: &StageInfo) -> String {
    let mut conditions = vec![];
    conditions.extend(stage.after.map(|pass| format!("only after {pass}")));
    conditions.push(match stage.bound {
        None => "once".to_owned(),
        Some(bound) => format!("until nothing changes, at most {bound} times"),
    });
    conditions.join(", ")
}

fn description(pass: &PassInfo) -> String {
    let required = if pass.required {
        " (cannot be skipped)"
    } else {
        ""
    };
    format!("{}{required}", pass.description)
}
