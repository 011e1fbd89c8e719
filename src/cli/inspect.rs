//! `unfold inspect`: lists the normalizers of a model and the operators into which each would fold.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde::Serialize;
use unfold::error::Error;
use unfold::onnx::Model;
use unfold::plan::{Placed, Plan, StopReason, StreamPlan, Tidy};
use unfold::provenance::Provenance;
use unfold::report::plain;
use unfold::{FuseOptions, Fused, Planned, model_page};

use super::option_values::file;
use super::out::{self, Paint};
use super::output_path::page_target;
use super::path::JsonPath;
use super::placement;
use super::progress_bar::StepProgress;
use super::sites::{self, JsonSite};
use super::storage::ReachArgs;
use super::streams;
use super::summary::{self, Summary};
use crate::cli::exit_code::End;

const EXAMPLES: &str = "\
Examples:
  unfold inspect model.onnx
  unfold inspect model.onnx --html model.html
  unfold inspect model.onnx --streams
  unfold inspect model.onnx --json | jq '.sites[] | select(.folded | not) | .name'
  unfold inspect model.onnx --json | jq -c '.sites[] | [.name, .pre.outcome, .post.outcome]'";

/// Lists the normalizers of a model: name, kind, channels, and the operators into which each folds,
/// or why it stays.
///
/// For a folded model, also lists the folded sites and the original file. Writes no model.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct InspectArgs {
    /// The model
    #[arg(value_parser = file())]
    model: PathBuf,

    #[command(flatten)]
    reach: ReachArgs,

    /// Lists residual streams instead: the writers and readers of each, and the obstacles to
    /// another basis
    #[arg(long)]
    streams: bool,

    /// Prints JSON. `folded` of a site says whether the affine after its core folds, or the whole
    /// site if it has no core. `pre`, `core` and `post` give the outcome of each part
    #[arg(long)]
    json: bool,

    /// Writes a self-contained page to explore the model: the graph before and after, and each site
    /// with the formulas of its new weights, or the reason why it stays
    #[arg(long, value_name = "FILE", value_parser = file())]
    html: Option<PathBuf>,

    /// Shows no progress
    #[arg(long, short)]
    quiet: bool,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct InspectJson<'p> {
    model: JsonPath<'p>,
    sites: Vec<JsonSite<'p>>,
    summary: Summary,
    /// The reason why the run would stop.
    stopped: StopReason,
    /// The changes outside of sites that would be made, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    tidy: Option<&'p Tidy>,
    /// The linear operators that would move to values with fewer places, and those that could move
    /// but would stay.
    #[serde(skip_serializing_if = "<[Placed]>::is_empty")]
    placed: &'p [Placed],
    /// The earlier runs that folded the model, with the sites that they folded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    provenance: Vec<Provenance>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct StreamsJson<'p> {
    model: JsonPath<'p>,
    streams: &'p [StreamPlan],
}

/// Runs the command.
pub(crate) fn run(args: &InspectArgs) -> Result<End> {
    args.html.as_deref().map_or(Ok(()), page_target)?;
    let steps = StepProgress::new("inspect", args.quiet);
    steps.begin("load");
    let model = args.reach.open(&args.model)?;
    let progress = steps.progress();
    let options = FuseOptions {
        centre: args.streams,
        progress: Some(&progress),
        ..FuseOptions::default()
    };
    let Planned { mut plan, lowered } = match &args.html {
        Some(page) => with_page(&args.model, &model, &options, page)?,
        None => unfold::dry_run(&model, &options)?,
    };
    if args.streams {
        // Plans again with a scale, because only one change of streams is planned at a time. Any
        // power of two shows which readers absorb the scale.
        let options = FuseOptions {
            scale_stream: Some(1),
            progress: Some(&progress),
            ..FuseOptions::default()
        };
        plan.streams_scaled_as(unfold::plan(&model, &options)?);
    }
    drop(progress);
    drop(steps);
    let mut text = match (args.streams, args.json) {
        (true, true) => out::json(&StreamsJson {
            model: JsonPath(&args.model),
            streams: &plan.streams,
        })?,
        (true, false) => streams::table(&plan, Paint::stdout()),
        (false, true) => out::json(&InspectJson {
            model: JsonPath(&args.model),
            sites: sites::json(&plan),
            summary: Summary::from_plan(&plan),
            stopped: plan.stopped,
            tidy: Some(&plan.tidy).filter(|tidy| **tidy != Tidy::default()),
            placed: &plan.placed,
            provenance: Provenance::from_model(&model),
        })?,
        (false, false) => text(&model, lowered.as_ref().unwrap_or(&model), &plan)?,
    };
    if let Some(page) = args.html.as_ref().filter(|_| !args.json) {
        text += &(plain(&format!("page written to {}", page.display())) + "\n");
    }
    out::print(&text)?;
    Ok(End::Done)
}

/// The sites, the other changes and the provenance as text.
fn text(model: &Model, lowered: &Model, plan: &Plan) -> Result<String> {
    let paint = Paint::stdout();
    let rows = sites::rows(lowered, plan.sites.iter())?;
    let mut text = String::new();
    if !rows.is_empty() {
        text += &(sites::table(&rows, true, paint) + "\n");
    }
    text += &(Summary::from_plan(plan).line(paint) + "\n");
    text += &summary::tidied(&plan.tidy);
    text += &placement::stays(&plan.placed);
    text += &summary::stopped(plan.stopped);
    text += &streams::text(plan, false);
    let history = Provenance::from_model(model);
    Ok(text + &history.iter().map(provenance_text).collect::<String>())
}

/// Plans the folding, then writes a page about the model and its result.
pub(crate) fn with_page(
    path: &Path,
    model: &Model,
    options: &FuseOptions,
    page: &Path,
) -> Result<Planned> {
    let fused = unfold::fuse(model, options)?;
    let name = path
        .file_name()
        .unwrap_or(path.as_os_str())
        .to_string_lossy();
    let text = model_page(&name, model, &fused)?;
    fs::write(page, text).map_err(|source| Error::Io {
        path: page.to_owned(),
        source,
    })?;
    let Fused { plan, lowered, .. } = fused;
    Ok(Planned { plan, lowered })
}

/// A line about one earlier run that folded the model.
fn provenance_text(time: &Provenance) -> String {
    const SHOWN: usize = 12;
    let Provenance {
        version,
        original,
        folded,
        options,
        ..
    } = time;
    let from = original.as_ref().map_or_else(String::new, |digest| {
        format!(" from {}…", digest.chars().take(SHOWN).collect::<String>())
    });
    let skipped = match &options.skip[..] {
        [] => String::new(),
        skip => format!("; skipped {}", skip.join(", ")),
    };
    let growth = match options.max_growth == FuseOptions::default().max_growth {
        true => String::new(),
        false => format!("; copies up to {} %", options.max_growth),
    };
    let scaled = options.scale_stream.map_or_else(String::new, |power| {
        format!("; streams scaled by 2^-{power}")
    });
    let centred = if options.centre {
        "; streams centred"
    } else {
        ""
    };
    let merged = if options.merge_norms {
        "; normalizers merged"
    } else {
        ""
    };
    let target = format!("; for {}", options.target);
    let line = format!(
        "folded by unfold {version}{from}: {folded}{skipped}{growth}{centred}{merged}{scaled}{target}"
    );
    plain(&line) + "\n"
}
