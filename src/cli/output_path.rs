//! Checks that a result may be written to a path.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use unfold::certificate::Certificate;
use unfold::onnx::{destination, is_model};

use crate::cli::usage_errors::misused;

/// The error if the folder of an output file does not exist.
#[derive(Debug, thiserror::Error)]
#[error("{}: there is no folder {}", path.display(), folder.display())]
pub(crate) struct NoFolder {
    pub path: PathBuf,
    pub folder: PathBuf,
}

/// The file that a result replaces or creates, after links are followed.
///
/// An existing file is replaced if it is an ONNX model, as a compiler replaces its earlier output,
/// or if it is empty, as temporary files are. Any other file, such as the weights of a model, is an
/// error. The input is replaced only with `--in-place`.
pub(crate) fn target(input: &Path, output: Option<&Path>) -> Result<PathBuf> {
    let Some(output) = output else {
        return in_folder(input);
    };
    let existing = output.canonicalize();
    if existing.is_ok_and(|existing| input.canonicalize().is_ok_and(|input| input == existing)) {
        return Err(misused(format!(
            "{} is the input; --in-place overwrites it",
            output.display()
        )));
    }
    model_target(output)
}

/// The file that a model without an input file replaces or creates, such as a network of the zoo.
pub(crate) fn model_target(path: &Path) -> Result<PathBuf> {
    let (shown, file) = (path.display(), in_folder(path)?);
    if file.is_dir() {
        bail!("{shown} is a folder");
    }
    let is_empty = file.metadata().is_ok_and(|metadata| metadata.len() == 0);
    if !is_empty && file.is_file() && !is_model(&file).unwrap_or(false) {
        bail!("{shown} exists and is no ONNX model, and is not overwritten");
    }
    Ok(file)
}

/// The file that the certificate of a result replaces or creates.
///
/// An existing file is replaced only if it is empty or a certificate, so that neither the model nor
/// its weights can be replaced. The names of the result and of its weights are refused too.
pub(crate) fn certificate_target(path: &Path, result: &Path) -> Result<PathBuf> {
    let shown = path.display();
    let file = in_folder(path)?;
    if let (Some(own), Some(result_name)) = (name_of(&file), name_of(result))
        && folder_of(&file) == folder_of(result)
        && let Some(rest) = own.strip_prefix(&result_name)
        && (rest.is_empty() || rest.ends_with(".data"))
    {
        bail!("{shown} is the name of the result or of its weights");
    }
    let is_empty = file
        .metadata()
        .map_or(true, |metadata| metadata.is_file() && metadata.len() == 0);
    if !is_empty && (!file.is_file() || Certificate::open(&file).is_err()) {
        bail!("{shown} exists and is no certificate, and is not overwritten");
    }
    Ok(file)
}

fn name_of(path: &Path) -> Option<String> {
    let name = path.file_name()?;
    Some(name.to_string_lossy().into_owned())
}

fn folder_of(path: &Path) -> Option<PathBuf> {
    let absolute = std::path::absolute(path).ok()?;
    absolute.parent()?.canonicalize().ok()
}

/// The file at a path after links are followed. It need not exist, but its folder must.
fn in_folder(path: &Path) -> Result<PathBuf> {
    let file = destination(path).with_context(|| path.display().to_string())?;
    let folder = file
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        return Err(NoFolder {
            path: path.to_owned(),
            folder: folder.to_owned(),
        }
        .into());
    }
    Ok(file)
}

/// Checks that a page may be written to a path. An existing file is replaced only if it is a page
/// too.
pub(crate) fn page_target(path: &Path) -> Result<()> {
    const BEGIN: &[u8] = b"<!doctype html>";
    let file = in_folder(path)?;
    if file.is_dir() {
        bail!("{} is a folder", path.display());
    }
    let mut begin = vec![];
    if file.is_file() {
        let file = File::open(file).with_context(|| path.display().to_string())?;
        file.take(BEGIN.len() as u64).read_to_end(&mut begin)?;
    }
    match begin.is_empty() || begin == BEGIN {
        true => Ok(()),
        false => bail!(
            "{} exists and is no page, and is not overwritten",
            path.display()
        ),
    }
}
