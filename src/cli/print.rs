//! `unfold print`: prints a model as text.

use std::path::PathBuf;

use anyhow::Result;
use unfold::onnx::PrintedElements;

use super::exit_code::End;
use super::option_values::file;
use super::out;
use super::storage::ReachArgs;

const EXAMPLES: &str = "\
Examples:
  unfold print model.onnx
  unfold print model.onnx --elements all > model.txt
  diff <(unfold print model.onnx) <(unfold print fused.onnx)";

/// Prints a model in ONNX's textual syntax
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct PrintArgs {
    /// The model
    #[arg(value_name = "MODEL", value_parser = file())]
    model: PathBuf,

    /// Prints tensors of up to this number of elements, or `all`; larger tensors are printed as
    /// `...`
    #[arg(long, value_name = "COUNT", default_value = "16", value_parser = elements)]
    elements: PrintedElements,

    #[command(flatten)]
    reach: ReachArgs,
}

/// Prints the model.
pub(super) fn run(args: &PrintArgs) -> Result<End> {
    let model = args.reach.open(&args.model)?;
    out::print(&model.to_text(args.elements)?)?;
    Ok(End::Done)
}

fn elements(word: &str) -> Result<PrintedElements, String> {
    match word {
        "all" => Ok(PrintedElements::All),
        _ => word
            .parse()
            .map(PrintedElements::AtMost)
            .map_err(|_| "not a number, and not `all`".to_owned()),
    }
}
