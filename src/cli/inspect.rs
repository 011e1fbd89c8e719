//! `unfold inspect`: which normalizers there are, and where each would go.

use std::path::PathBuf;

use anyhow::Result;
use serde::Serialize;
use unfold::graph::Graph;
use unfold::onnx::Model;
use unfold::{FuseOptions, Planned};

use super::end::End;
use super::out::{self, Paint};
use super::sites::{self, JsonSite, Summary};
use super::steps::Steps;

const EXAMPLES: &str = "\
Examples:
  unfold inspect model.onnx
  unfold inspect model.onnx --json | jq '.sites[] | select(.folded | not) | .name'";

/// Lists the normalizers of a model: name, kind, channels, and where each folds to, or why it stays.
///
/// Nothing is written.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct InspectArgs {
    /// The model
    model: PathBuf,

    /// Prints JSON
    #[arg(long)]
    json: bool,

    /// Shows no progress
    #[arg(long, short)]
    quiet: bool,
}

#[derive(Serialize)]
struct InspectJson<'p> {
    model: &'p std::path::Path,
    sites: Vec<JsonSite<'p>>,
    summary: Summary,
}

/// Runs the command.
pub fn run(args: &InspectArgs) -> Result<End> {
    let steps = Steps::new("inspect", args.quiet);
    steps.begin("load");
    let model = Model::open(&args.model)?;
    let progress = steps.progress();
    let options = FuseOptions { progress: Some(&progress), ..FuseOptions::default() };
    let Planned { plan, lowered } = unfold::dry_run(&model, &options)?;
    drop(progress);
    drop(steps);
    let summary = Summary::of(&plan);
    if args.json {
        let json = InspectJson { model: &args.model, sites: sites::json(&plan), summary };
        out::print(&(serde_json::to_string_pretty(&json)? + "\n"))?;
        return Ok(End::Done);
    }
    let paint = Paint::stdout();
    let rows = sites::rows(&Graph::new(lowered.as_ref().unwrap_or(&model))?, &plan);
    let table = if rows.is_empty() { String::new() } else { sites::table(&rows, paint) + "\n" };
    out::print(&format!("{table}{}\n", summary.line(paint)))?;
    Ok(End::Done)
}
