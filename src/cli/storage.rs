//! Where the weights of a model may be, and where those of a result go.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use unfold::error::Result;
use unfold::onnx::{DataPlace, Model, SaveOptions};

use super::values::folder;

/// Where the weights of a model may be.
#[derive(Debug, Default, clap::Args)]
pub struct ReachArgs {
    /// Lets a model have data in files below this folder too, and not only below its own (may be repeated)
    #[arg(long, value_name = "FOLDER", value_parser = folder())]
    allow_external: Vec<PathBuf>,
}

impl ReachArgs {
    /// Reads a model, if its external data exist: without data it has no constants, and nothing
    /// would seem to fold.
    pub fn open(&self, path: &Path) -> Result<Model> {
        let model = Model::open_reaching(path, self.allow_external.clone())?;
        model.find_data()?;
        Ok(model)
    }

    /// The options as they are on the command line.
    pub fn words(&self) -> Vec<OsString> {
        self.allow_external
            .iter()
            .flat_map(|folder| ["--allow-external".into(), folder.clone().into()])
            .collect()
    }
}

/// Whether the weights of a result go into a file beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum External {
    /// If those of the model are in such files, or are too many for one of 2 GB
    Auto,
    /// They do
    Always,
    /// They are inside
    Never,
}

/// Where the weights of a result go.
#[derive(Debug, clap::Args)]
pub struct StorageArgs {
    /// Whether weights go into a data file beside the result
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = External::Auto)]
    pub external_data: External,

    /// From how many bytes on a weight goes into the data file, if there is one;
    /// integers of less than 1 kB never do, and other numbers of less than 64 bytes,
    /// since engines need them to load a model
    #[arg(long, value_name = "BYTES", default_value_t = SaveOptions::default().threshold)]
    pub external_threshold: usize,
}

impl StorageArgs {
    /// As the library has it.
    pub fn options(&self) -> SaveOptions {
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
