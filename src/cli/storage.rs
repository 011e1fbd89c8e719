//! Options for the files in which the weights of a model are, and in which the weights of a result
//! are written.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use unfold::error::Result;
use unfold::onnx::{DataPlace, Model, SaveOptions};

use super::option_values::folder;

/// The folders in which the weights of a model may be.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct ReachArgs {
    /// Lets the model have external data below this folder too, and not only below its own (may be
    /// repeated)
    #[arg(long, value_name = "FOLDER", value_parser = folder())]
    allow_external: Vec<PathBuf>,
}

impl ReachArgs {
    /// Reads a model, and checks that its external data exist. Without this check, a model with
    /// missing data would have no constants, and nothing would fold.
    pub(crate) fn open(&self, path: &Path) -> Result<Model> {
        let model = Model::open_reaching(path, self.allow_external.clone())?;
        model.find_data()?;
        Ok(model)
    }

    /// The options as words of a command line.
    pub(crate) fn words(&self) -> Vec<OsString> {
        self.allow_external
            .iter()
            .flat_map(|folder| ["--allow-external".into(), folder.clone().into()])
            .collect()
    }
}

/// Whether the weights of a result are written into a data file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum External {
    /// In a data file if the model's weights are, or if the model would exceed 2 GB
    Auto,
    /// In a data file
    Always,
    /// In the model
    Never,
}

/// The place of a result's weights.
#[derive(Debug, clap::Args)]
pub(crate) struct StorageArgs {
    /// Whether weights are written into a data file next to the result
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = External::Auto)]
    pub external_data: External,

    /// The minimum size in bytes of a weight in the data file, if there is one; integers of less
    /// than 1 kB and other weights of less than 64 bytes always stay in the model, because engines
    /// need them to load it
    #[arg(long, value_name = "BYTES", default_value_t = SaveOptions::default().threshold)]
    pub external_threshold: usize,
}

impl StorageArgs {
    /// The options for the library.
    pub(crate) fn options(&self) -> SaveOptions {
        let place = match self.external_data {
            External::Auto => DataPlace::Auto,
            External::Always => DataPlace::Beside,
            External::Never => DataPlace::Inside,
        };
        SaveOptions {
            place,
            threshold: self.external_threshold,
        }
    }
}
