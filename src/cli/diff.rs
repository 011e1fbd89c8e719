//! `unfold diff`: aligns the nodes of two models by the values that they compute.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, ColumnConstraint, Table};
use serde::Serialize;
use unfold::diff::{BlockVerdict, DiffBlock, DiffNode, ModelDifference, NodeCounts, diff};
use unfold::inspect::{PairedNodes, pair_page};
use unfold::onnx::Model;
use unfold::report::plain;

use super::model_pair::ModelPairArgs;
use super::option_values::file;
use super::out::{self, Paint, Tone};
use super::output_path::page_target;
use super::path::JsonPath;
use super::progress_bar::StepProgress;
use super::verdicts::{self, Accepted, JudgedModel};
use crate::cli::exit_code::{EXIT_CODES, End};

/// The maximum number of rows of the table. Further rows are only counted.
const LISTED: usize = 60;

/// The maximum number of operators that a cell names. Further operators are only counted.
const NAMED: usize = 6;

const EXAMPLES: &str = "\
Examples:
  unfold diff model.onnx fused.onnx
  unfold diff model.onnx simplified.onnx --accept rounding
  unfold diff model.onnx simplified.onnx --html diff.html
  unfold diff model.onnx fused.onnx --json | jq -c '.blocks[] | [.verdict, .first[].name]'
  unfold diff model.onnx fused.onnx --json | jq -r '.aligned[] | [.first, .second] | @tsv'";

/// Aligns the nodes of two models by the values that they compute, whatever their names, and lists the nodes that
/// became others.
///
/// The values are those of a point of the proof of `unfold prove`, so rounding does not matter. Nodes without a
/// counterpart are listed in blocks between values that both models have, each with its verdict. Blocks of the same
/// operators share a row.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub(crate) struct DiffArgs {
    #[command(flatten)]
    models: ModelPairArgs,

    /// Verdicts that end with 0, as a proof does: rounding (else 5), casts (else 6)
    #[arg(long, value_name = "VERDICT", value_delimiter = ',')]
    accept: Vec<Accepted>,

    /// Prints JSON, with all pairs of nodes
    #[arg(long)]
    json: bool,

    /// Writes a self-contained page with both graphs side by side, aligned by value
    #[arg(long, value_name = "FILE", value_parser = file())]
    html: Option<PathBuf>,

    /// Shows no progress
    #[arg(long, short)]
    quiet: bool,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct DiffJson<'d> {
    first: JsonPath<'d>,
    second: JsonPath<'d>,
    #[serde(flatten)]
    difference: &'d ModelDifference,
}

/// Runs the command.
pub(crate) fn run(args: &DiffArgs) -> Result<End> {
    args.html.as_deref().map_or(Ok(()), page_target)?;
    let steps = StepProgress::new("diff", args.quiet);
    steps.begin("load");
    let ([first, second], options) = args.models.load()?;
    steps.begin("prove");
    let difference = diff(&first, &second, &options)?;
    drop(steps);
    if let Some(page) = &args.html {
        write_page(
            page,
            [&args.models.first, &args.models.second],
            [&first, &second],
            &difference,
        )?;
    }
    let mut text = match args.json {
        true => out::json(&DiffJson {
            first: JsonPath(&args.models.first),
            second: JsonPath(&args.models.second),
            difference: &difference,
        })?,
        false => text(&difference, Paint::stdout()),
    };
    if let Some(page) = args.html.as_ref().filter(|_| !args.json) {
        text += &(plain(&format!("page written to {}", page.display())) + "\n");
    }
    out::print(&text)?;
    let judged = JudgedModel {
        path: &args.models.second,
        accept: &args.accept,
        witness: None,
        advice: "`unfold prove --witness FILE.npz` saves the inputs that show it",
    };
    verdicts::end(&difference.judgement, &judged)
}

/// Writes the page of two models.
fn write_page(
    page: &Path,
    paths: [&Path; 2],
    models: [&Model; 2],
    difference: &ModelDifference,
) -> Result<()> {
    let [first, second] = paths.map(|path| path.file_name().unwrap_or(path.as_os_str()));
    let name = format!("{}, {}", first.to_string_lossy(), second.to_string_lossy());
    let mut pairs = vec![];
    for pair in &difference.aligned {
        pairs.push(PairedNodes {
            first: &pair.first,
            second: &pair.second,
            kept: pair.kept,
        });
    }
    let text = pair_page(&name, models, &pairs)?;
    fs::write(page, text).with_context(|| page.display().to_string())
}

/// The numbers of nodes, the blocks and the verdict.
fn text(difference: &ModelDifference, paint: Paint) -> String {
    let mut text = out::lines(&counts(&difference.nodes, paint));
    if !difference.blocks.is_empty() {
        text += &format!("\n{}", table(&difference.blocks, paint));
    }
    // Prints only the first line of the verdict, because `unfold prove` lists the conditions of the
    // verdict.
    let verdict = verdicts::success(&difference.judgement, paint);
    if let Some(line) = verdict
        .as_deref()
        .and_then(|verdict| verdict.lines().next())
    {
        text += &format!("\n{line}\n");
    }
    text
}

/// A table of the numbers of nodes of each model.
fn counts(nodes: &[NodeCounts; 2], paint: Paint) -> Table {
    let mut table = paint.table(&["nodes", "first model", "second model"]);
    for (name, count) in [
        ("all", (|counts| counts.all) as fn(&NodeCounts) -> usize),
        ("with a value that both have", |counts| counts.same),
        ("with a value that only this model has", |counts| {
            counts.only
        }),
        ("that no output reads", |counts| counts.unread),
    ] {
        let [first, second] = nodes.each_ref().map(count);
        table.add_row([name.to_owned(), first.to_string(), second.to_string()].map(out::cell));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// A group of blocks with the same operators and the same verdict.
struct BlockGroup<'d> {
    count: usize,
    first: &'d DiffBlock,
    operators: [String; 2],
}

/// The blocks as a table. Blocks of the same operators share a row.
fn table(blocks: &[DiffBlock], paint: Paint) -> String {
    let groups = groups(blocks);
    let mut table = paint.table(&["blocks", "first model", "second model", "verdict", "at"]);
    for group in groups.iter().take(LISTED) {
        let tone = match group.first.verdict {
            BlockVerdict::Same => Tone::Good,
            _ => Tone::Bad,
        };
        let [before, after] = group.operators.each_ref().map(out::cell);
        table.add_row([
            out::cell(group.count),
            before,
            after,
            paint.cell(tone, group.first.verdict.word()),
            out::cell(place(group.first)),
        ]);
    }
    if let Some(verdicts) = table.column_mut(3) {
        verdicts.set_constraint(ColumnConstraint::ContentWidth);
    }
    let others = groups.len().saturating_sub(LISTED);
    let mut text = out::lines(&table);
    if others > 0 {
        text += &format!("... and {others} more; --json lists all\n");
    }
    text
}

fn groups(blocks: &[DiffBlock]) -> Vec<BlockGroup<'_>> {
    let mut groups: Vec<BlockGroup> = vec![];
    for block in blocks {
        let stored = match block.stored {
            0 => String::new(),
            1 => "a tensor".to_owned(),
            count => format!("{count} tensors"),
        };
        let (before, after) = (
            operators(&block.first, ""),
            operators(&block.second, &stored),
        );
        let operators = [before, after];
        let verdict = block.verdict;
        let mut known = groups.iter_mut();
        let known =
            known.find(|group| group.first.verdict == verdict && group.operators == operators);
        match known {
            Some(group) => group.count += 1,
            None => groups.push(BlockGroup {
                count: 1,
                first: block,
                operators,
            }),
        }
    }
    groups
}

/// The operators of nodes with their counts, in the order of their first occurrence, and then
/// `others`.
fn operators(nodes: &[DiffNode], others: &str) -> String {
    let mut counts: Vec<(&str, usize)> = vec![];
    for node in nodes {
        match counts
            .iter_mut()
            .find(|(operator, _)| *operator == node.operator)
        {
            Some((_, count)) => *count += 1,
            None => counts.push((&node.operator, 1)),
        }
    }
    let more = counts.len().saturating_sub(NAMED);
    counts.truncate(if more > 1 { NAMED } else { counts.len() });
    let mut words: Vec<String> = counts
        .into_iter()
        .map(|(operator, count)| match count {
            1 => operator.to_owned(),
            _ => format!("{count} {operator}"),
        })
        .collect();
    if more > 1 {
        words.push(format!("{more} other operators"));
    }
    if !others.is_empty() {
        words.push(others.to_owned());
    }
    if words.is_empty() {
        words.push("nothing".to_owned());
    }
    words.join(", ")
}

/// The last two steps of the name of a block's first node.
fn place(block: &DiffBlock) -> String {
    let first = block.first.first().or(block.second.first());
    let name = first.map_or("", |node| node.name.as_str());
    let steps: Vec<&str> = name.split('/').collect();
    match &steps[..] {
        [_, .., module, last] if steps.len() > 2 => format!("…{module}/{last}"),
        _ => name.to_owned(),
    }
}
