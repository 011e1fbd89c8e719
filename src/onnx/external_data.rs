//! The data that tensors keep outside of the message: in files next to the model, in the model's
//! own file, or in no file yet.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

pub use super::data::Resolver;
pub(crate) use super::data::{Data, DataFile, Found, Make};

use super::element::{self, DataType, HELD, is_held};
use super::proto::{DataLocation, StringStringEntryProto, TensorProto};
use crate::error::{Error, Result};

/// Stands for the file in errors about a model without a file.
pub(super) const MEMORY: &str = "<memory>";

/// Resolves the external data of the tensors of one model.
///
/// Each file is opened once. Clones share the open files.
#[derive(Debug, Clone)]
pub struct Externals {
    model: PathBuf,
    reach: Reach,
    files: Arc<Mutex<HashMap<String, Arc<DataFile>>>>,
    held: Arc<Mutex<Vec<HeldData>>>,
}

/// The data at a location that does not name a file.
#[derive(Debug, Clone)]
struct HeldData {
    data: Data,
    /// The `data_location` of the tensor before [`Externals::hold`].
    said: Option<i32>,
}

/// The locations to which the tensors of a model may refer.
#[derive(Debug, Clone)]
enum Reach {
    Nothing,
    /// Files in the folder of the model, in the additional folders, and in all their subfolders.
    Folder(PathBuf, Vec<PathBuf>),
    /// The data of a resolver.
    Resolver(Arc<dyn Resolver>),
}

/// The part of a file that holds the data of a tensor.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Span {
    pub location: String,
    pub offset: u64,
    pub length: usize,
}

impl Span {
    /// The external-data entries of a tensor whose data is this span.
    pub(crate) fn entries(&self) -> Vec<StringStringEntryProto> {
        vec![
            StringStringEntryProto::new("location", &self.location),
            StringStringEntryProto::new("offset", &self.offset.to_string()),
            StringStringEntryProto::new("length", &self.length.to_string()),
        ]
    }
}

impl Externals {
    /// The externals of a model in memory without external data.
    pub fn none() -> Self {
        Self::new(MEMORY.into(), Reach::Nothing)
    }

    /// The externals of a model in memory whose external data `resolver` provides.
    pub fn resolved(resolver: Arc<dyn Resolver>) -> Self {
        Self::new(MEMORY.into(), Reach::Resolver(resolver))
    }

    /// The externals of a model whose external data is in the folder of its file or in subfolders.
    pub fn beside(model: &Path) -> Self {
        Self::reaching(model, vec![])
    }

    /// Like [`Externals::beside`], but tensors may also refer to files in `others` and their
    /// subfolders.
    pub fn reaching(model: &Path, others: Vec<PathBuf>) -> Self {
        let folder = model
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new(".")).to_owned();
        Self::new(model.to_owned(), Reach::Folder(folder, others))
    }

    fn new(model: PathBuf, reach: Reach) -> Self {
        Self {
            model,
            reach,
            files: Arc::default(),
            held: Arc::default(),
        }
    }

    /// Whether these externals and `other` are clones. If so, equal locations have equal data.
    #[cfg(feature = "prove")]
    pub(super) fn is_clone_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.held, &other.held)
    }

    /// Replaces the elements of a tensor by data outside of any file. Only these externals, or a
    /// clone of them, can resolve the tensor afterwards.
    pub(crate) fn hold(&self, tensor: &mut TensorProto, data: Data) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let location = format!("{HELD}{}", held.len());
        let span = Span {
            location,
            offset: 0,
            length: data.len(),
        };
        held.push(HeldData {
            data,
            said: tensor.data_location,
        });
        tensor.raw_data = None;
        tensor.external_data = span.entries();
        tensor.data_location = Some(DataLocation::External.into());
    }

    /// The data that a tensor refers to.
    ///
    /// # Errors
    /// If the data does not exist.
    pub(crate) fn data(&self, tensor: &TensorProto) -> Result<Data> {
        if is_held(tensor) {
            return Ok(self.held(tensor)?.data);
        }
        let (file, span) = self.locate(tensor)?;
        Ok(Data::There(
            file,
            span.offset..span.offset + span.length as u64,
        ))
    }

    /// Takes the data that the model holds for a tensor. Afterwards the tensor has no elements, and
    /// its `data_location` is the original one.
    pub(super) fn release(&self, tensor: &mut TensorProto) -> Result<Data> {
        let HeldData { data, said } = self.held(tensor)?;
        tensor.external_data.clear();
        tensor.data_location = said;
        Ok(data)
    }

    fn held(&self, tensor: &TensorProto) -> Result<HeldData> {
        let location = entry(tensor, "location")
            .ok()
            .flatten()
            .and_then(|it| it.strip_prefix(HELD));
        let number = location.and_then(|number| number.parse::<usize>().ok());
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let found = number.and_then(|number| held.get(number)).cloned();
        found.ok_or_else(|| {
            self.error(
                tensor,
                "its elements are with the model that it was taken from".into(),
            )
        })
    }

    /// The whole file that holds the data of a tensor.
    pub(super) fn whole(&self, tensor: &TensorProto) -> Result<Data> {
        let (file, _) = self.locate(tensor)?;
        let length = file.length().map_err(|reason| self.error(tensor, reason))?;
        Ok(Data::There(file, 0..length))
    }

    /// The span of a file that holds the data of a tensor.
    pub(crate) fn span(&self, tensor: &TensorProto) -> Result<Span> {
        self.locate(tensor).map(|(_, span)| span)
    }

    /// Opens a file, if possible. It can then still be read after another file takes its name.
    pub(super) fn keep(&self, location: &str) {
        let _ = self.file(location);
    }

    /// The name of a file that has changed since it was opened, if there is one.
    pub(super) fn changed(&self) -> Option<String> {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changed = files
            .iter()
            .filter(|(_, file)| file.has_changed())
            .map(|(name, _)| name.clone());
        changed.next()
    }

    /// The location and the reason of a failure of the resolver; `None` if no read failed.
    pub(super) fn refused(&self) -> Option<(String, String)> {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files
            .iter()
            .find_map(|(name, file)| Some((name.clone(), file.refused()?.to_owned())))
    }

    fn locate(&self, tensor: &TensorProto) -> Result<(Arc<DataFile>, Span)> {
        let fixed = DataType::from_code(tensor.data_type()).is_some_and(|it| it.bits().is_some());
        let needed = if fixed {
            Some(element::byte_size(tensor)?)
        } else {
            None
        };
        self.resolve(tensor, needed)
            .map_err(|reason| self.error(tensor, reason))
    }

    /// Finds the file and the span of a tensor's data. `needed` is the number of bytes that the
    /// type and the shape require, if both are known.
    fn resolve(&self, tensor: &TensorProto, needed: Option<usize>) -> Found<(Arc<DataFile>, Span)> {
        let location = entry(tensor, "location")?.ok_or("it has no location")?;
        let offset = size(tensor, "offset")?.unwrap_or(0);
        let declared = size(tensor, "length")?;

        let file = self.file(location)?;
        let held = file.length()?;
        let available = held
            .checked_sub(offset)
            .ok_or_else(|| format!("its offset {offset} is past the end of `{location}`"))?;
        let length = needed.map_or(declared.unwrap_or(available), |needed| needed as u64);
        if let Some(declared) = declared.filter(|&declared| declared != length) {
            return Err(format!(
                "its length is {declared}, and its shape and type take {length} bytes"
            ));
        }
        if length > available {
            return Err(format!(
                "it takes {length} bytes, and `{location}` holds {available} from its offset on"
            ));
        }
        let length = usize::try_from(length).map_err(|source| source.to_string())?;
        Ok((
            file,
            Span {
                location: location.to_owned(),
                offset,
                length,
            },
        ))
    }

    /// Opens a file, if the model is allowed to refer to it.
    fn file(&self, location: &str) -> Found<Arc<DataFile>> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = files.get(location) {
            return Ok(file.clone());
        }
        let file = match &self.reach {
            Reach::Nothing => return Err("a model in memory has no folder to look in".into()),
            Reach::Folder(folder, others) => {
                let path = inside(folder, others, location)?;
                File::open(path)
                    .and_then(|file| DataFile::open(location, file))
                    .map_err(|source| unreadable(location, source))?
            }
            Reach::Resolver(resolver) => DataFile::resolved(location, resolver.clone()),
        };
        let file = Arc::new(file);
        files.insert(location.to_owned(), file.clone());
        Ok(file)
    }

    pub(super) fn error(&self, tensor: &TensorProto, reason: String) -> Error {
        Error::ExternalData {
            file: self.model.clone(),
            tensor: tensor.name().to_owned(),
            reason,
        }
    }
}

/// The path of a file to which a model in `folder` refers, or the reason why this is not allowed.
fn inside(folder: &Path, others: &[PathBuf], location: &str) -> Found<PathBuf> {
    let mut parts = Path::new(location).components();
    let has_inner_parts =
        parts.all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    let stays = !location.is_empty() && has_inner_parts;
    if !stays && (others.is_empty() || location.is_empty()) {
        return Err(format!(
            "its location `{location}` is no path inside the model's folder"
        ));
    }
    let path = folder.join(location).canonicalize();
    let path = path.map_err(|source| unreadable(location, source))?;
    let own = folder.canonicalize();
    let own = own.map_err(|source| unreadable(location, source))?;
    let mut allowed = others.iter().filter_map(|other| other.canonicalize().ok());
    if !path.starts_with(own) && !allowed.any(|other| path.starts_with(other)) {
        return Err(match stays {
            true => format!("`{location}` is a link that leaves the model's folder"),
            false => {
                format!("its location `{location}` is outside of the folders that are allowed")
            }
        });
    }
    let metadata = path.metadata();
    match metadata
        .map_err(|source| unreadable(location, source))?
        .is_file()
    {
        true => Ok(path),
        false => Err(format!("`{location}` is no regular file")),
    }
}

fn unreadable(location: &str, source: io::Error) -> String {
    format!("`{location}` cannot be read: {source}")
}

/// The value of an entry of a tensor's external data; an error if the tensor has two such entries.
fn entry<'a>(tensor: &'a TensorProto, key: &str) -> Found<Option<&'a str>> {
    let mut entries = tensor
        .external_data
        .iter()
        .filter(|entry| entry.key() == key);
    match (entries.next(), entries.next()) {
        (_, Some(_)) => Err(format!("it has two entries `{key}`")),
        (entry, None) => Ok(entry.map(|entry| entry.value())),
    }
}

/// The value of an entry that is a number of bytes.
fn size(tensor: &TensorProto, key: &str) -> Found<Option<u64>> {
    match entry(tensor, key)? {
        None => Ok(None),
        Some(value) => match value.parse() {
            Ok(size) => Ok(Some(size)),
            Err(_) => Err(format!("its {key} `{value}` is no size")),
        },
    }
}
