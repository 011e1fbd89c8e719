//! Writing a model: whole files or none.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use prost::Message;

use super::draft::FileDraft;
use super::external::Span;
use super::load::MAX_MESSAGE;
use super::proto::{DataLocation, ModelProto, StringStringEntryProto, TensorProto};
use super::walk::{self, Visited};
use super::{Model, sink, tensor};
use crate::error::{Error, Result};

/// Initializers from this size on are put into the data file, if the model has one.
const EXTERNAL_FROM: usize = 1024;

/// What offsets in a data file are multiples of, so that tensors can be mapped.
const ALIGNMENT: u64 = 4096;

/// The entries of external data that may be written anew: what they say is about the file that is
/// replaced.
const KNOWN_ENTRIES: [&str; 5] = ["location", "offset", "length", "checksum", "basepath"];

/// What [`Model::save`] wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Saved {
    /// The model: the path that was given, or where its links lead.
    pub path: PathBuf,
    /// The data file, if one was written.
    pub data: Option<PathBuf>,
    /// Data files of the model that was replaced, which this one does not need, and which are left: they may not be
    /// unfold's own, or another model refers to them.
    pub left: Vec<PathBuf>,
}

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
    /// The data file holds everything that the model kept in other files, so that the two can be moved
    /// together. Its name is that of the model with `.data` appended, or with `.1.data` and so on: one that
    /// nothing else has, as files that are there are never overwritten. Only a model that is saved over the file that
    /// it was read from, with no new weights, keeps referring to the data files it has. If [`Model::external`]
    /// does not say so, everything is written into the model itself.
    ///
    /// Files are complete before they take their names, and the moment when the model takes its own is the one
    /// at which anything changes: before it there is the old model, whole, and after it the new one. A failure
    /// leaves what was there. The data file of a model that is replaced is removed after it, if it has the name
    /// and the layout that this function gives, and no `.onnx` file of the folder mentions it. What a process leaves
    /// that is killed meanwhile is removed by the next one that saves into the folder.
    ///
    /// The files that the model was read from may be overwritten; it can still be used afterwards. A link is
    /// followed, though it may lead to nothing yet.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<Saved> {
        let path = path.as_ref();
        let mut settled = self.external && self.is_at(path);
        walk::parts(&mut self.proto.clone(), &mut |part| {
            settled &= !matches!(part, Visited::Initializer(tensor) if is_large(tensor));
            Ok(())
        })?;
        if settled {
            self.finish(Saving::new(path)?, &self.proto)
        } else {
            self.save_with(path, |_| Ok(None))
        }
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
    ) -> Result<Saved> {
        let mut proto = self.proto.clone();
        let mut saving = Saving::new(path.as_ref())?;
        walk::parts(&mut proto, &mut |part| match part {
            Visited::Graph(_) => Ok(()),
            Visited::Initializer(tensor) => {
                if let Some(bytes) = rewrite(tensor)? {
                    tensor::replace(tensor, bytes)?;
                }
                if self.external && is_large(tensor) {
                    saving.take(tensor)
                } else {
                    saving.copy(self, tensor)
                }
            }
            Visited::Tensor(tensor) => saving.copy(self, tensor),
        })?;
        self.finish(saving, &proto)
    }

    /// Writes the file that the model was read from under another name, byte for byte as it was read.
    ///
    /// A model in memory, and one whose weights are in other files, is saved as [`Model::save`] does: what
    /// refers to other files cannot be moved as it is.
    pub fn copy(&self, path: impl AsRef<Path>) -> Result<Saved> {
        let path = path.as_ref();
        let Some(source) = self.source.as_ref().filter(|source| source.whole) else { return self.save(path) };
        self.finish_with(Saving::new(path)?, |file| file.write_all(&source.bytes))
    }

    /// Whether a path is that of the file that the model was read from.
    fn is_at(&self, path: &Path) -> bool {
        let origin = self.path().and_then(|origin| origin.canonicalize().ok());
        origin.is_some_and(|origin| path.canonicalize().is_ok_and(|path| path == origin))
    }

    fn finish(&self, saving: Saving, proto: &ModelProto) -> Result<Saved> {
        check_size(proto, saving.draft.path())?;
        self.finish_with(saving, |file| sink::write_message(proto, file))
    }

    /// Writes the message, and lets the files take their names.
    fn finish_with(&self, saving: Saving, write: impl FnOnce(&mut File) -> io::Result<()>) -> Result<Saved> {
        let Saving { mut draft, data, .. } = saving;
        let path = draft.path().to_owned();
        let replaced = Replaced::by(&draft).unwrap_or_default();
        // Of what will have no name any more, this model may still have something to read.
        replaced.own.iter().for_each(|name| self.externals.hold(name));
        let commit = || {
            let mut file = draft.model()?;
            write(&mut file)?;
            file.sync_all()?;
            data.as_ref().map_or(Ok(()), |data| data.file.sync_all())?;
            draft.commit(data.as_ref().map(|data| data.name.as_str()), replaced.own.as_deref())
        };
        commit().map_err(|source| Error::Io { path: path.clone(), source })?;
        let beside = |name: String| path.with_file_name(name);
        let left = replaced.used.into_iter().filter(|name| draft.is_left(name));
        let left = left.map(beside).collect();
        Ok(Saved { data: data.map(|data| beside(data.name)), left, path })
    }
}

/// What the model that is replaced has in files whose names are those of its data files.
#[derive(Default)]
struct Replaced {
    /// The files that it refers to.
    used: Vec<String>,
    /// The one that [`Model::save`] wrote for it.
    own: Option<String>,
}

impl Replaced {
    fn by(draft: &FileDraft) -> Option<Self> {
        let names = draft.data_names();
        // Nothing is read where there is nothing to find.
        names.first()?;
        let Model { mut proto, externals, .. } = Model::open(draft.path()).ok()?;
        let mut locations = HashSet::new();
        let (mut laid_out, mut end, mut seen) = (true, 0, HashSet::new());
        let walked = walk::parts(&mut proto, &mut |part| {
            if let Visited::Initializer(tensor) | Visited::Tensor(tensor) = part
                && tensor::is_external(tensor)
            {
                let span = externals.span(tensor)?;
                let place = Place { offset: span.offset, length: span.length };
                laid_out &= tensor.external_data == place.entries(&span.location);
                locations.insert(span.location.clone());
                if seen.insert(span) {
                    laid_out &= place.offset == u64::next_multiple_of(end, ALIGNMENT);
                    end = place.offset + place.length as u64;
                }
            }
            Ok(())
        });
        walked.ok()?;
        let used: Vec<String> = names.into_iter().filter(|name| locations.contains(name)).collect();
        let is_whole = |name: &&String| {
            let held = draft.folder().join(name).metadata();
            held.is_ok_and(|metadata| metadata.len() == end)
        };
        let own = used.first().filter(|_| laid_out && locations.len() == 1).filter(is_whole).cloned();
        Some(Self { used, own })
    }
}

/// A model that is being saved.
struct Saving {
    draft: FileDraft,
    /// The data file, from the first tensor in it on.
    data: Option<NewData>,
    /// What was copied from the data files of the model, and where to: tensors that shared bytes
    /// still do.
    copied: HashMap<Span, Place>,
}

/// The data file of the model that is being saved.
struct NewData {
    name: String,
    file: File,
    /// How many bytes are in it.
    length: u64,
}

/// Where the bytes of a tensor are in the data file.
#[derive(Clone, Copy)]
struct Place {
    offset: u64,
    length: usize,
}

impl Place {
    /// How a tensor refers to it.
    fn entries(self, location: &str) -> Vec<StringStringEntryProto> {
        let entry = |key: &str, value: String| StringStringEntryProto {
            key: Some(key.to_owned()),
            value: Some(value),
        };
        vec![
            entry("location", location.to_owned()),
            entry("offset", self.offset.to_string()),
            entry("length", self.length.to_string()),
        ]
    }
}

impl Saving {
    fn new(path: &Path) -> Result<Self> {
        let draft = FileDraft::new(path).map_err(|source| Error::Io { path: path.to_owned(), source })?;
        Ok(Self { draft, data: None, copied: HashMap::new() })
    }

    /// Moves the elements of a tensor out of the message.
    fn take(&mut self, tensor: &mut TensorProto) -> Result<()> {
        let bytes = tensor.raw_data.take().unwrap_or_default();
        let offset = self.align()?;
        self.append(&bytes)?;
        self.refer(tensor, Place { offset, length: bytes.len() });
        Ok(())
    }

    /// Copies the elements of a tensor, if the model has them in another file, to where they are kept now.
    fn copy(&mut self, model: &Model, tensor: &mut TensorProto) -> Result<()> {
        if !tensor::is_external(tensor) {
            return Ok(());
        }
        if !model.external {
            let bytes = model.externals.bytes(tensor)?;
            return tensor::replace(tensor, bytes);
        }
        let known = |key: &str| KNOWN_ENTRIES.contains(&key);
        if let Some(entry) = tensor.external_data.iter().find(|entry| !known(entry.key())) {
            return Err(Error::ExternalData {
                file: self.draft.path().to_owned(),
                tensor: tensor.name().to_owned(),
                reason: format!("the meaning of its entry `{}` is unknown", entry.key()),
            });
        }
        let span = model.externals.span(tensor)?;
        let place = match self.copied.get(&span) {
            Some(&place) => place,
            None => {
                let offset = self.align()?;
                model.externals.pieces(tensor, |piece| self.append(piece))?;
                let place = Place { offset, length: span.length };
                self.copied.insert(span, place);
                place
            }
        };
        self.refer(tensor, place);
        Ok(())
    }

    /// Where the next tensor begins in the data file.
    fn align(&mut self) -> Result<u64> {
        let length = self.data.as_ref().map_or(0, |data| data.length);
        let offset = length.next_multiple_of(ALIGNMENT);
        self.append(&vec![0; (offset - length) as usize])?;
        Ok(offset)
    }

    /// Writes bytes into the data file, behind what is there.
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let draft = &self.draft;
        let mut write = || {
            let data = match &mut self.data {
                Some(data) => data,
                None => {
                    self.data.insert(NewData { name: draft.fresh_name()?, file: draft.data()?, length: 0 })
                }
            };
            data.file.write_all(bytes)?;
            data.length += bytes.len() as u64;
            Ok(())
        };
        write().map_err(|source| Error::Io { path: draft.path().to_owned(), source })
    }

    /// Lets a tensor refer to bytes of the data file.
    fn refer(&self, tensor: &mut TensorProto, place: Place) {
        let location = self.data.as_ref().map_or("", |data| &data.name);
        tensor.external_data = place.entries(location);
        tensor.data_location = Some(DataLocation::External.into());
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
