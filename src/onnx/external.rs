//! The data that tensors keep in files next to the model.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use memmap2::MmapOptions;

use super::proto::TensorProto;
use super::tensor;
use crate::error::{Error, Result};

/// Where the external data of the tensors of one model is found.
///
/// Files are opened once. Clones share them.
#[derive(Debug, Clone)]
pub struct Externals {
    model: PathBuf,
    /// The folder of the model; a model in memory has none.
    folder: Option<PathBuf>,
    files: Arc<Mutex<HashMap<String, Arc<File>>>>,
}

/// Where the data of one tensor is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Span {
    /// The path of the file, relative to the folder of the model.
    pub location: String,
    /// Where the data begins.
    pub offset: u64,
    /// How many bytes it takes; to the end of the file where it is not given.
    pub length: Option<u64>,
}

impl Externals {
    /// For a model in memory: there are no files that its tensors could refer to.
    pub fn none() -> Self {
        Self {
            model: "<memory>".into(),
            folder: None,
            files: Arc::default(),
        }
    }

    /// For a model in a file: its tensors may refer to files in the same folder, and in folders inside it.
    pub fn beside(model: &Path) -> Self {
        let folder = model
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        Self {
            model: model.to_owned(),
            folder: Some(folder.unwrap_or(Path::new(".")).to_owned()),
            files: Arc::default(),
        }
    }

    /// The external data of a tensor, which is mapped, not copied, for as long as the bytes are kept.
    pub fn bytes(&self, tensor: &TensorProto) -> Result<Bytes> {
        let span = self.span(tensor)?;
        let fail = |reason| self.error(tensor, reason);
        let file = self.file(&span.location).map_err(fail)?;
        let held = file
            .metadata()
            .map_err(|source| fail(source.to_string()))?
            .len();
        let Some(available) = held.checked_sub(span.offset) else {
            return Err(fail(format!(
                "its offset {} is past the end of `{}`",
                span.offset, span.location
            )));
        };
        // Strings and types of a later version have no known size; what they need is left to whoever reads them.
        let needed = match tensor::byte_size(tensor) {
            Ok(size) => size as u64,
            Err(_) => span.length.unwrap_or(available),
        };
        if let Some(length) = span.length.filter(|&length| length != needed) {
            return Err(fail(format!(
                "its length is {length}, and its shape and type take {needed} bytes"
            )));
        }
        if needed > available {
            return Err(fail(format!(
                "it takes {needed} bytes, and `{}` holds {available} there",
                span.location
            )));
        }
        let length = usize::try_from(needed).map_err(|source| fail(source.to_string()))?;
        map(&file, span.offset, length).map_err(|source| fail(source.to_string()))
    }

    /// Where the data of a tensor is, as the tensor has it.
    pub(super) fn span(&self, tensor: &TensorProto) -> Result<Span> {
        Span::of(tensor).map_err(|reason| self.error(tensor, reason))
    }

    fn error(&self, tensor: &TensorProto, reason: String) -> Error {
        Error::ExternalData {
            file: self.model.clone(),
            tensor: tensor.name().to_owned(),
            reason,
        }
    }

    /// Opens a file, unless it leaves the folder of the model.
    fn file(&self, location: &str) -> std::result::Result<Arc<File>, String> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = files.get(location) {
            return Ok(file.clone());
        }
        let folder = self
            .folder
            .as_ref()
            .ok_or("the model was read from memory, so that it has no folder")?;
        let components = Path::new(location).components();
        if location.is_empty()
            || !components
                .clone()
                .all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
        {
            return Err(format!(
                "its location `{location}` is not a path inside the model's folder"
            ));
        }
        let unreadable = |source: io::Error| format!("`{location}` cannot be read: {source}");
        let path = folder.join(location).canonicalize().map_err(unreadable)?;
        if !path.starts_with(folder.canonicalize().map_err(unreadable)?) {
            return Err(format!(
                "`{location}` is a link that leaves the model's folder"
            ));
        }
        if !path.metadata().map_err(unreadable)?.is_file() {
            return Err(format!("`{location}` is no regular file"));
        }
        let file = Arc::new(File::open(path).map_err(unreadable)?);
        files.insert(location.to_owned(), file.clone());
        Ok(file)
    }
}

impl Span {
    /// What the entries of a tensor say; the reason where they make no sense.
    fn of(tensor: &TensorProto) -> std::result::Result<Self, String> {
        let entry = |key: &str| {
            let mut values = tensor
                .external_data
                .iter()
                .filter(|entry| entry.key() == key)
                .map(|entry| entry.value());
            match (values.next(), values.next()) {
                (value, None) => Ok(value),
                _ => Err(format!("it has two entries `{key}`")),
            }
        };
        let number = |key: &str| {
            let parse = |value: &str| {
                value
                    .parse()
                    .map_err(|_| format!("its {key} `{value}` is not a size"))
            };
            entry(key)?.map(parse).transpose()
        };
        Ok(Self {
            location: entry("location")?.ok_or("it has no location")?.to_owned(),
            offset: number("offset")?.unwrap_or(0),
            length: number("length")?,
        })
    }
}

fn map(file: &File, offset: u64, length: usize) -> io::Result<Bytes> {
    if length == 0 {
        return Ok(Bytes::new());
    }
    // SAFETY: the map is read-only; that nobody changes the file meanwhile is what the caller of `Model::open` promises.
    let map = unsafe { MmapOptions::new().offset(offset).len(length).map(file) }?;
    Ok(Bytes::from_owner(map))
}
