//! Writing a model: whole files or none.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use prost::Message;
use tempfile::NamedTempFile;

use super::external::Span;
use super::proto::{DataLocation, ModelProto, StringStringEntryProto, TensorProto};
use super::walk::{self, Part};
use super::{Model, sink, tensor};
use crate::error::{Error, Result};

/// Initializers from this size on are put into the data file, if the model has one.
const EXTERNAL_FROM: usize = 1024;

/// What offsets in a data file are multiples of, so that tensors can be mapped.
const ALIGNMENT: u64 = 4096;

/// The entries of external data that may be written anew: what they say is about the file that is
/// replaced.
const KNOWN_ENTRIES: [&str; 5] = ["location", "offset", "length", "checksum", "basepath"];

/// The size that protobuf readers refuse to exceed.
const MAX_MESSAGE: usize = i32::MAX as usize;

impl Model {
    /// The model as a file holds it. External data stays where it is.
    ///
    /// A message that was read and not changed gives the same bytes again, if its writer followed
    /// the order of the field numbers, as the protobuf libraries do.
    pub fn to_bytes(&self) -> Result<Bytes> {
        check_size(&self.proto, Path::new("<memory>"))?;
        Ok(self.proto.encode_to_vec().into())
    }

    /// Writes the model, and its weights into one data file next to it if [`Model::external`] says
    /// so.
    ///
    /// The data file has the name of the model with `.data` appended, and holds everything that the
    /// model kept in other files, so that the two can be moved together. Only a model that is saved
    /// over the file that it was read from, with no new weights, keeps referring to the data files
    /// it has. If [`Model::external`] does not say so, everything is written into the model itself.
    ///
    /// Files are complete before they take their names: a failure leaves what was there. The files
    /// that the model was read from may be overwritten; it can still be used afterwards.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let mut settled = self.external && self.is_at(path);
        walk::parts(&mut self.proto.clone(), &mut |part| {
            settled &= !matches!(part, Part::Initializer(tensor) if is_large(tensor));
            Ok(())
        })?;
        if settled { Draft::of(&self.proto, path)?.persist() } else { self.save_with(path, |_| Ok(None)) }
    }

    /// As [`Model::save`], with other elements for some of the initializers.
    ///
    /// `rewrite` is given each dense initializer of each graph, one after the other, and returns
    /// its new elements as [`tensor::raw`] does, or nothing if it stays what it is. An initializer
    /// may have no elements at all before it is given them here. Weights that go to a data file are
    /// written one by one, and are not kept in memory.
    ///
    /// ```
    /// use unfold::onnx::{Model, tensor};
    /// # use unfold::onnx::proto::{GraphProto, ModelProto, OperatorSetIdProto};
    /// # let weight = ndarray::array![1.0, 2.0].into_dyn();
    /// # let mut model = Model::from_proto(ModelProto {
    /// #     ir_version: Some(10),
    /// #     opset_import: vec![OperatorSetIdProto { domain: None, version: Some(21) }],
    /// #     graph: Some(GraphProto {
    /// #         initializer: vec![tensor::make("weight", tensor::DataType::Float, &weight.view())?],
    /// #         ..Default::default()
    /// #     }),
    /// #     ..Default::default()
    /// # });
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("model.onnx");
    /// model.save_with(&path, |initializer| {
    ///     let doubled = tensor::read_f64(initializer, model.externals())? * 2.0;
    ///     let data_type = tensor::data_type(initializer)?;
    ///     Ok(tensor::encode_f64(data_type, &doubled.view()).ok())
    /// })?;
    /// # let again = Model::open(&path)?;
    /// # let read = tensor::read_f64(&again.graph().initializer[0], again.externals())?;
    /// # assert_eq!(read, ndarray::array![2.0, 4.0].into_dyn());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn save_with(
        &self,
        path: impl AsRef<Path>,
        mut rewrite: impl FnMut(&TensorProto) -> Result<Option<Bytes>>,
    ) -> Result<()> {
        let path = path.as_ref();
        let mut proto = self.proto.clone();
        let mut data = DataFile::new(self, path);
        walk::parts(&mut proto, &mut |part| match part {
            Part::Graph(_) => Ok(()),
            Part::Initializer(tensor) => {
                if let Some(bytes) = rewrite(tensor)? {
                    tensor::replace(tensor, bytes)?;
                }
                if self.external && is_large(tensor) { data.take(tensor) } else { data.copy(tensor) }
            }
            Part::Tensor(tensor) => data.copy(tensor),
        })?;
        let model = Draft::of(&proto, path)?;
        data.persist(self.is_at(path))?;
        model.persist()
    }

    /// Writes the file that the model was read from under another name, byte for byte.
    ///
    /// A model in memory, and one whose weights are in other files, is saved as [`Model::save`] does: what
    /// refers to other files cannot be moved as it is.
    pub fn copy(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let Some(origin) = self.path().filter(|_| !self.external) else { return self.save(path) };
        let mut from = File::open(origin).map_err(|source| Error::Io { path: origin.to_owned(), source })?;
        let mut draft = Draft::new(path)?;
        io::copy(&mut from, &mut draft.file).map_err(|source| draft.error(source))?;
        draft.persist()
    }

    /// Whether a path is that of the file that the model was read from.
    fn is_at(&self, path: &Path) -> bool {
        let origin = self.path().and_then(|origin| origin.canonicalize().ok());
        origin.is_some_and(|origin| path.canonicalize().is_ok_and(|path| path == origin))
    }
}

/// A file that is written beside the one that it replaces, and takes its name only when it is
/// complete.
struct Draft {
    path: PathBuf,
    file: NamedTempFile,
}

impl Draft {
    /// An empty file, with the permissions that the one it replaces has, or that a new one would
    /// have.
    fn new(path: &Path) -> Result<Self> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut builder = tempfile::Builder::new();
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let mut create = || {
            let replaced = path.metadata().ok();
            if replaced.as_ref().is_some_and(|metadata| !metadata.is_file()) {
                return Err(io::Error::new(
                    io::ErrorKind::AlreadyExists,
                    "it is no regular file, and is not replaced",
                ));
            }
            let file = builder.prefix(".unfold-").tempfile_in(folder)?;
            replaced.map_or(Ok(()), |metadata| file.as_file().set_permissions(metadata.permissions()))?;
            Ok(Self { path: path.to_owned(), file })
        };
        create().map_err(|source| Error::Io { path: path.to_owned(), source })
    }

    /// A file with a model in it.
    fn of(proto: &ModelProto, path: &Path) -> Result<Self> {
        check_size(proto, path)?;
        let mut draft = Self::new(path)?;
        sink::write_message(proto, &mut draft.file).map_err(|source| draft.error(source))?;
        Ok(draft)
    }

    /// Gives the file its name.
    fn persist(self) -> Result<()> {
        let Self { path, file } = self;
        file.persist(&path).map(drop).map_err(|failed| Error::Io { path, source: failed.error })
    }

    fn error(&self, source: io::Error) -> Error {
        Error::Io { path: self.path.clone(), source }
    }
}

/// The data file of the model that is being saved.
struct DataFile<'a> {
    model: &'a Model,
    path: PathBuf,
    /// The file itself, from the first tensor in it on.
    draft: Option<Draft>,
    /// How many bytes are in it.
    length: u64,
    /// What was copied from the data files of the model, and where to: tensors that shared bytes
    /// still do.
    copied: HashMap<Span, Place>,
}

/// Where the bytes of a tensor are in the data file.
#[derive(Clone, Copy)]
struct Place {
    offset: u64,
    length: usize,
}

impl<'a> DataFile<'a> {
    fn new(model: &'a Model, path: &Path) -> Self {
        let mut data = path.as_os_str().to_owned();
        data.push(".data");
        Self { model, path: data.into(), draft: None, length: 0, copied: HashMap::new() }
    }

    /// Moves the elements of a tensor out of the message.
    fn take(&mut self, tensor: &mut TensorProto) -> Result<()> {
        let place = self.append(&tensor.raw_data.take().unwrap_or_default())?;
        self.refer(tensor, place)
    }

    /// Copies the elements of a tensor, if it has them in another file, to where the model keeps
    /// them now.
    fn copy(&mut self, tensor: &mut TensorProto) -> Result<()> {
        if !tensor::is_external(tensor) {
            return Ok(());
        }
        if !self.model.external {
            let bytes = self.model.externals.bytes(tensor)?;
            return tensor::replace(tensor, bytes);
        }
        let known = |key: &str| KNOWN_ENTRIES.contains(&key);
        if let Some(entry) = tensor.external_data.iter().find(|entry| !known(entry.key())) {
            return Err(Error::ExternalData {
                file: self.path.clone(),
                tensor: tensor.name().to_owned(),
                reason: format!("the meaning of its entry `{}` is unknown", entry.key()),
            });
        }
        let span = self.model.externals.span(tensor)?;
        let place = match self.copied.get(&span) {
            Some(&place) => place,
            None => {
                let place = self.append(&self.model.externals.bytes(tensor)?)?;
                self.copied.insert(span, place);
                place
            }
        };
        self.refer(tensor, place)
    }

    /// Writes bytes behind what is there.
    fn append(&mut self, bytes: &[u8]) -> Result<Place> {
        let draft = match &mut self.draft {
            Some(draft) => draft,
            None => self.draft.insert(Draft::new(&self.path)?),
        };
        let offset = self.length.next_multiple_of(ALIGNMENT);
        let padding = vec![0; (offset - self.length) as usize];
        let result = draft.file.write_all(&padding).and_then(|()| draft.file.write_all(bytes));
        result.map_err(|source| draft.error(source))?;
        self.length = offset + bytes.len() as u64;
        Ok(Place { offset, length: bytes.len() })
    }

    /// Lets a tensor refer to bytes of the file.
    fn refer(&self, tensor: &mut TensorProto, place: Place) -> Result<()> {
        let Some(location) = self.path.file_name().and_then(|name| name.to_str()) else {
            let source = io::Error::new(io::ErrorKind::InvalidInput, "a data file must have a name in UTF-8");
            return Err(Error::Io { path: self.path.clone(), source });
        };
        let entry = |key: &str, value: String| StringStringEntryProto {
            key: Some(key.to_owned()),
            value: Some(value),
        };
        tensor.external_data = vec![
            entry("location", location.to_owned()),
            entry("offset", place.offset.to_string()),
            entry("length", place.length.to_string()),
        ];
        tensor.data_location = Some(DataLocation::External.into());
        Ok(())
    }

    /// Gives the file its name, if anything is in it.
    fn persist(self, in_place: bool) -> Result<()> {
        let Some(draft) = self.draft else {
            return Ok(());
        };
        if !in_place && self.model.externals.read_from(&draft.path) {
            let reason = "it holds the weights of the model that is being saved under another name";
            return Err(draft.error(io::Error::new(io::ErrorKind::AlreadyExists, reason)));
        }
        draft.persist()
    }
}

/// Whether the elements of an initializer are in the message, and belong into a data file.
fn is_large(tensor: &TensorProto) -> bool {
    let inline = tensor.raw_data.as_ref().filter(|_| !tensor::is_external(tensor));
    inline.is_some_and(|bytes| bytes.len() >= EXTERNAL_FROM)
}

fn check_size(proto: &ModelProto, file: &Path) -> Result<()> {
    match proto.encoded_len() {
        bytes if bytes > MAX_MESSAGE => Err(Error::TooLarge { file: file.to_owned(), bytes }),
        _ => Ok(()),
    }
}
