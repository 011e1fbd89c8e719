//! Where a result may be written.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use unfold::onnx::{Model, destination};

/// The file that a result replaces or makes, after links are followed.
///
/// What is there already is replaced if it is an ONNX model, as a compiler replaces what it made before;
/// anything else, such as the weights of a model, is left alone. The input is replaced only `in_place`.
pub fn target(input: &Path, output: Option<&Path>) -> Result<PathBuf> {
    let Some(output) = output else {
        return input.canonicalize().with_context(|| input.display().to_string());
    };
    let shown = output.display();
    let Ok(existing) = output.canonicalize() else {
        let new = destination(output).with_context(|| shown.to_string())?;
        let folder = new.parent().filter(|folder| !folder.as_os_str().is_empty());
        if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
            bail!("{shown}: there is no folder {}", folder.display());
        }
        return Ok(new);
    };
    if input.canonicalize().is_ok_and(|input| input == existing) {
        bail!("{shown} is the input; --in-place overwrites it");
    }
    if existing.is_dir() {
        bail!("{shown} is a folder");
    }
    let is_empty = existing.metadata().is_ok_and(|metadata| metadata.len() == 0);
    if !is_empty && existing.is_file() && Model::open(&existing).is_err() {
        bail!("{shown} exists and is no ONNX model, and is not overwritten");
    }
    Ok(existing)
}
