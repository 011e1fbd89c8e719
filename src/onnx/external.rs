//! The data that tensors keep in files next to the model.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::element::{self, DataType};
use super::proto::TensorProto;
use crate::error::{Error, Result};

/// How much is read at a time of what is only copied.
const PIECE: usize = 1 << 20;

/// Where the external data of the tensors of one model is found.
///
/// Files are opened once. Clones share them.
#[derive(Debug, Clone)]
pub struct Externals {
    model: PathBuf,
    /// The folder of the model; a model in memory has none.
    folder: Option<PathBuf>,
    files: Arc<Mutex<HashMap<String, Arc<DataFile>>>>,
}

/// A file that holds data of tensors.
#[derive(Debug)]
struct DataFile {
    location: String,
    /// Locked from finding a place in it to reading what is there.
    file: Mutex<File>,
}

/// Which bytes of which file the data of a tensor is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Span {
    pub location: String,
    pub offset: u64,
    pub length: usize,
}

impl Externals {
    /// For a model in memory: there are no files that its tensors could refer to.
    pub fn none() -> Self {
        Self { model: "<memory>".into(), folder: None, files: Arc::default() }
    }

    /// For a model in a file: its tensors may refer to files in the same folder, and in folders
    /// inside it.
    pub fn beside(model: &Path) -> Self {
        let folder = model.parent().filter(|folder| !folder.as_os_str().is_empty());
        Self {
            model: model.to_owned(),
            folder: Some(folder.unwrap_or(Path::new(".")).to_owned()),
            files: Arc::default(),
        }
    }

    /// The external data of a tensor, read anew whenever it is asked for.
    pub fn bytes(&self, tensor: &TensorProto) -> Result<Bytes> {
        let (file, span) = self.locate(tensor)?;
        let bytes = file.read(span.offset, span.length);
        bytes.map(Bytes::from).map_err(|reason| self.error(tensor, reason))
    }

    /// The external data of a tensor, one piece after the other.
    pub(super) fn pieces(
        &self,
        tensor: &TensorProto,
        mut take: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let (file, Span { offset, length, .. }) = self.locate(tensor)?;
        for from in (0..length).step_by(PIECE) {
            let piece = file.read(offset + from as u64, PIECE.min(length - from));
            take(&piece.map_err(|reason| self.error(tensor, reason))?)?;
        }
        Ok(())
    }

    /// All of the file that a tensor has its data in, one piece after the other.
    pub(super) fn whole(&self, tensor: &TensorProto, mut take: impl FnMut(&[u8])) -> Result<()> {
        let (file, _) = self.locate(tensor)?;
        let mut from = 0;
        loop {
            let piece = file.up_to(from, PIECE).map_err(|reason| self.error(tensor, reason))?;
            if piece.is_empty() {
                return Ok(());
            }
            from += piece.len() as u64;
            take(&piece);
        }
    }

    /// Where the data of a tensor is, if it can be there.
    pub(crate) fn span(&self, tensor: &TensorProto) -> Result<Span> {
        self.locate(tensor).map(|(_, span)| span)
    }

    /// Opens a file, if it can be opened, so that it can be read after it lost its name.
    pub(super) fn hold(&self, location: &str) {
        let _ = self.file(location);
    }

    fn locate(&self, tensor: &TensorProto) -> Result<(Arc<DataFile>, Span)> {
        let fixed = DataType::from_code(tensor.data_type()).is_some_and(|it| it.bits().is_some());
        let needed = if fixed { Some(element::byte_size(tensor)?) } else { None };
        self.resolve(tensor, needed).map_err(|reason| self.error(tensor, reason))
    }

    /// Finds the bytes of a tensor which, if its type and shape say so, takes `needed` of them.
    fn resolve(&self, tensor: &TensorProto, needed: Option<usize>) -> Found<(Arc<DataFile>, Span)> {
        let location = entry(tensor, "location")?.ok_or("it has no location")?;
        let offset = size(tensor, "offset")?.unwrap_or(0);
        let declared = size(tensor, "length")?;

        let file = self.file(location)?;
        let held = file.open().metadata().map_err(|source| source.to_string())?.len();
        let available = held
            .checked_sub(offset)
            .ok_or_else(|| format!("its offset {offset} is past the end of `{location}`"))?;
        let length = needed.map_or(declared.unwrap_or(available), |needed| needed as u64);
        if let Some(declared) = declared.filter(|&declared| declared != length) {
            return Err(format!("its length is {declared}, and its shape and type take {length} bytes"));
        }
        if length > available {
            return Err(format!(
                "it takes {length} bytes, and `{location}` holds {available} from its offset on"
            ));
        }
        let length = usize::try_from(length).map_err(|source| source.to_string())?;
        Ok((file, Span { location: location.to_owned(), offset, length }))
    }

    /// Opens a file, unless it leaves the folder of the model.
    fn file(&self, location: &str) -> Found<Arc<DataFile>> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = files.get(location) {
            return Ok(file.clone());
        }
        let folder = self.folder.as_ref().ok_or("a model in memory has no folder to look in")?;
        let inside = |part| matches!(part, Component::Normal(_) | Component::CurDir);
        if location.is_empty() || !Path::new(location).components().all(inside) {
            return Err(format!("its location `{location}` is no path inside the model's folder"));
        }
        let unreadable = |source: io::Error| format!("`{location}` cannot be read: {source}");
        let path = folder.join(location).canonicalize().map_err(unreadable)?;
        if !path.starts_with(folder.canonicalize().map_err(unreadable)?) {
            return Err(format!("`{location}` is a link that leaves the model's folder"));
        }
        if !path.metadata().map_err(unreadable)?.is_file() {
            return Err(format!("`{location}` is no regular file"));
        }
        let file = Mutex::new(File::open(&path).map_err(unreadable)?);
        let file = Arc::new(DataFile { location: location.to_owned(), file });
        files.insert(location.to_owned(), file.clone());
        Ok(file)
    }

    fn error(&self, tensor: &TensorProto, reason: String) -> Error {
        Error::ExternalData { file: self.model.clone(), tensor: tensor.name().to_owned(), reason }
    }
}

/// What is found, or the reason why it is not.
type Found<T> = std::result::Result<T, String>;

/// The value of an entry of a tensor.
fn entry<'a>(tensor: &'a TensorProto, key: &str) -> Found<Option<&'a str>> {
    let mut entries = tensor.external_data.iter().filter(|entry| entry.key() == key);
    match (entries.next(), entries.next()) {
        (_, Some(_)) => Err(format!("it has two entries `{key}`")),
        (entry, None) => Ok(entry.map(|entry| entry.value())),
    }
}

/// The value of an entry of a tensor that is a number of bytes.
fn size(tensor: &TensorProto, key: &str) -> Found<Option<u64>> {
    let parse = |value: &str| value.parse();
    let value = entry(tensor, key)?;
    let size = value.map(parse).transpose();
    size.map_err(|_| format!("its {key} `{}` is no size", value.unwrap_or_default()))
}

impl DataFile {
    fn open(&self) -> MutexGuard<'_, File> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, offset: u64, length: usize) -> Found<Vec<u8>> {
        match self.up_to(offset, length)? {
            bytes if bytes.len() == length => Ok(bytes),
            _ => Err(format!("`{}` was cut short while it was read", self.location)),
        }
    }

    /// So many bytes, or those that there are.
    fn up_to(&self, offset: u64, length: usize) -> Found<Vec<u8>> {
        let mut file = self.open();
        let bytes = file.seek(SeekFrom::Start(offset)).and_then(|_| read(&mut file, length as u64));
        bytes.map_err(|source| format!("`{}` cannot be read: {source}", self.location))
    }
}

/// Up to so many bytes of a file.
pub(super) fn read(file: &mut File, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(usize::try_from(length).unwrap_or(usize::MAX))?;
    file.take(length).read_to_end(&mut bytes)?;
    Ok(bytes)
}
