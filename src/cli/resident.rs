//! `unfold resident`: runs in a process that `unfold bench` starts for each variant.

use std::path::PathBuf;

use anyhow::{Context, Result};
use unfold::bench::measure_here;
use unfold::onnx::Model;
use unfold::run::Dims;

use super::out;
use crate::cli::exit_code::End;

/// Runs a model once and prints the peak of the resident set.
#[derive(Debug, clap::Args)]
pub(super) struct ResidentArgs {
    model: PathBuf,
    threads: usize,
    dims: Vec<Dims>,
}

/// Runs the command.
pub(super) fn run(args: &ResidentArgs) -> Result<End> {
    let mut dims = Dims::default();
    dims.extend(args.dims.iter().cloned());
    let peak = measure_here(&Model::open(&args.model)?, &dims, args.threads)?;
    out::print(&format!("{}\n", peak.context("this system does not tell")?))?;
    Ok(End::Done)
}
