//! The two models of a command that compares them.

use std::path::PathBuf;

use anyhow::Result;
use unfold::onnx::Model;
use unfold::prove::ProveOptions;
use unfold::run::Dims;

use super::inputs::sizes;
use super::option_values::file;
use super::storage::ReachArgs;

/// Two models, and the sizes at which they are compared.
#[derive(Debug, clap::Args)]
pub(super) struct ModelPairArgs {
    /// The first model
    #[arg(value_name = "ORIGINAL", value_parser = file())]
    pub first: PathBuf,

    /// The other model, such as the result of a fold or of another tool
    #[arg(value_name = "OTHER", value_parser = file())]
    pub second: PathBuf,

    /// Size of a symbolic dimension. A dimension without a symbol is named by its input and its
    /// place, such as x:2 (may be repeated)
    #[arg(long = "dim", value_name = "NAME=SIZE")]
    dims: Vec<Dims>,

    #[command(flatten)]
    reach: ReachArgs,
}

impl ModelPairArgs {
    /// Loads both models. Returns them with the options of the proof.
    ///
    /// # Errors
    /// If a file is no model, or if a size belongs to no input of the first model.
    pub(super) fn load(&self) -> Result<([Model; 2], ProveOptions)> {
        let first = self.reach.open(&self.first)?;
        let second = self.reach.open(&self.second)?;
        let options = ProveOptions {
            dims: sizes("--dim", &self.dims, &first)?,
            ..ProveOptions::default()
        };
        Ok(([first, second], options))
    }
}
