//! Lists the models that `unfold fuse` folds, with the paths of their results.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::fuse::{FuseArgs, Task};
use crate::cli::temporary_folders::make;
use crate::cli::usage_errors::misused;

impl FuseArgs {
    /// The folder for the results. `None` if there is no output, or if the output is a single file.
    pub(super) fn folder(&self) -> Option<&Path> {
        let is_several = self.models.len() > 1 || self.models.iter().any(|model| model.is_dir());
        self.output
            .as_deref()
            .filter(|output| is_several || is_folder(output))
    }

    /// Lists the tasks, and creates the folder for their results.
    pub(super) fn tasks(&self) -> Result<Vec<Task>> {
        if self.output.is_none() && !self.dry_run && !self.in_place {
            return Err(misused(
                "-o OUT says where to write the result; --in-place overwrites the model, and --dry-run only prints the plan",
            ));
        }
        let models = self.all_models()?;
        if let ([_, _, ..], Some(certificate)) = (&models[..], &self.certificate) {
            return Err(misused(format!(
                "--certificate {}: a certificate is for one model",
                certificate.display()
            )));
        }
        let folder = self.folder();
        if let Some(folder) = folder.filter(|_| !self.dry_run) {
            make_folder(folder)?;
        }
        models
            .into_iter()
            .map(|model| self.task(model, folder))
            .collect()
    }

    /// Lists the models, where each given folder stands for the models in it.
    fn all_models(&self) -> Result<Vec<PathBuf>> {
        let mut models = vec![];
        for model in &self.models {
            match model.is_dir() {
                true => models.extend(models_in(model)?),
                false => models.push(model.clone()),
            }
        }
        Ok(models)
    }

    /// The model with the path of its result. If a folder is given, the result is written into it
    /// under the model's file name.
    fn task(&self, model: PathBuf, folder: Option<&Path>) -> Result<Task> {
        let output = match folder {
            Some(folder) => {
                let name = model
                    .file_name()
                    .with_context(|| format!("{} names no file", model.display()))?;
                Some(folder.join(name))
            }
            None => self.output.clone(),
        };
        Ok(Task { model, output })
    }
}

/// Lists the models in a folder, sorted by name. Nested folders are not searched.
fn models_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let shown = folder.display();
    let mut models = vec![];
    for entry in fs::read_dir(folder).with_context(|| shown.to_string())? {
        let path = entry.with_context(|| shown.to_string())?.path();
        if path.is_file() && path.extension() == Some(OsStr::new("onnx")) {
            models.push(path);
        }
    }
    if models.is_empty() {
        bail!("{shown}: no file in this folder ends with .onnx");
    }
    models.sort();
    Ok(models)
}

/// Creates the folder for the results.
fn make_folder(folder: &Path) -> Result<()> {
    let shown = folder.display();
    if folder.exists() && !folder.is_dir() {
        bail!("{shown} is a file, and several models go into a folder");
    }
    // If the output of several models ends with .onnx, either a slash is missing, or several models
    // were given by mistake.
    let is_file_name = folder.extension() == Some(OsStr::new("onnx"));
    if is_file_name && !is_folder(folder) {
        let why = "several models go into a folder: the name of one that ends with .onnx ends with a slash";
        return Err(misused(format!("-o {shown}: {why}")));
    }
    make(folder)
}

/// Whether a path is an existing folder, or ends with a slash and therefore means a folder.
fn is_folder(path: &Path) -> bool {
    let ends = path
        .as_os_str()
        .to_string_lossy()
        .ends_with(std::path::is_separator);
    ends || path.is_dir()
}
