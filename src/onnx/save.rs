//! Writes a model. Its files appear completely or not at all.

use std::fs::File;
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::data::{Data, reserve};
use super::external_data::MEMORY;
use super::file_layout::{Layout, MessagePart, Storage, is_inside};
use super::load::MAX_MESSAGE;
use super::proto::TensorProto;
use super::transfer::{Transfer, transfer};
use super::walk::{self, Visited};
use super::{Model, tensor};
use crate::error::{Error, Result};
use crate::onnx::atomic_write::FileDraft;
use crate::onnx::replaced::Replaced;

/// Whether the weights of a model are written into a data file next to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DataPlace {
    /// In a data file if [`Model::external`] is true, or if the message would exceed the limit of
    /// protobuf.
    #[default]
    Auto,
    /// In a data file.
    Beside,
    /// In the message.
    Inside,
}

/// Options for saving a model.
#[derive(Debug, Clone)]
pub struct SaveOptions {
    /// Where the weights are written.
    pub place: DataPlace,
    /// The minimum number of bytes of an initializer in the data file. Integers of less than 1 kB
    /// and other elements of less than 64 bytes always stay in the message, because engines read
    /// shapes and scales before they open the data file.
    pub threshold: usize,
}

impl Default for SaveOptions {
    fn default() -> Self {
        Self {
            place: DataPlace::Auto,
            threshold: 1024,
        }
    }
}

/// The result of [`Model::save`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Saved {
    /// The file of the model: the given path, or the target of its symbolic links.
    pub path: PathBuf,
    /// The data file, if one was written.
    pub data: Option<PathBuf>,
    /// The total length of these files in bytes, including the used parts of data files that were
    /// kept.
    pub bytes: u64,
    /// The data files of the replaced model that were not removed although the new model does not
    /// refer to them. Either unfold did not write them, or another model may refer to them.
    pub left: Vec<PathBuf>,
}

impl Model {
    /// Encodes the model as the contents of a file. Data in other files stays in these files.
    ///
    /// A message that was read and not changed is encoded to the same bytes, provided that its
    /// writer wrote fields in the order of their numbers, like the protobuf libraries.
    ///
    /// # Errors
    /// If the message exceeds the limit of protobuf, or if elements cannot be read.
    pub fn to_bytes(&self) -> Result<Bytes> {
        let mut layout = Layout::new(self, Storage::AsItIs)?;
        self.check_size(&layout, Path::new(MEMORY))?;
        let length = layout.message_bytes();
        let mut bytes = Vec::with_capacity(length);
        layout
            .fill_message(&mut bytes.spare_capacity_mut()[..length])
            .map_err(|source| self.io(source))?;
        // SAFETY: the buffer has room for `length` bytes, and all of them were written.
        unsafe { bytes.set_len(length) };
        Ok(bytes.into())
    }

    /// Writes the result of [`Model::to_bytes`] into an uninitialized buffer of
    /// [`Model::message_bytes`] bytes.
    ///
    /// # Errors
    /// The errors of [`Model::to_bytes`], or if the buffer has another length.
    pub fn fill(&self, room: &mut [MaybeUninit<u8>]) -> Result<()> {
        let mut layout = Layout::new(self, Storage::AsItIs)?;
        self.check_size(&layout, Path::new(MEMORY))?;
        layout.fill_message(room).map_err(|source| self.io(source))
    }

    /// The length of [`Model::to_bytes`] in bytes.
    ///
    /// # Errors
    /// If external data is missing.
    pub fn message_bytes(&self) -> Result<usize> {
        Ok(Layout::new(self, Storage::AsItIs)?.message_bytes())
    }

    /// Writes the result of [`Model::to_bytes`] without holding all of it in memory.
    ///
    /// # Errors
    /// If the message exceeds the limit of protobuf, if elements cannot be read, or if the writer
    /// fails.
    pub fn to_writer(&self, out: &mut impl Write) -> Result<()> {
        let mut layout = Layout::new(self, Storage::AsItIs)?;
        self.check_size(&layout, Path::new(MEMORY))?;
        layout.write_message(out).map_err(|source| self.io(source))
    }

    /// Splits the model into parts, for callers that never hold all of its bytes.
    ///
    /// Each part is a message of about `room` bytes, or a larger message with a single tensor.
    /// Merging the parts in order by the rules of protobuf gives the model. The order of fields
    /// differs from that of [`Model::to_bytes`].
    ///
    /// ```
    /// use prost::Message;
    /// use unfold::onnx::Model;
    /// use unfold::onnx::proto::ModelProto;
    ///
    /// let model = Model::open("models/digits/un-dynamo.onnx")?;
    /// let mut merged = ModelProto::default();
    /// for part in model.to_parts(1 << 16)? {
    ///     let mut bytes = vec![];
    ///     part.to_writer(&mut bytes)?;
    ///     merged.merge(&bytes[..])?;
    /// }
    /// assert_eq!(merged.encode_to_vec(), model.to_bytes()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Model::to_bytes`].
    pub fn to_parts(&self, room: usize) -> Result<impl Iterator<Item = MessagePart> + use<>> {
        let layout = Layout::new(self, Storage::AsItIs)?;
        self.check_size(&layout, Path::new(MEMORY))?;
        Ok(layout.parts(room))
    }

    /// Writes the model into one writer and its weights into another. The model refers to the
    /// weights by `location`.
    ///
    /// ```
    /// use unfold::onnx::Model;
    ///
    /// let model = Model::open("models/digits/un-dynamo.onnx")?;
    /// let (mut message, mut weights) = (vec![], vec![]);
    /// model.to_writers(&mut message, "digits.data", &mut weights)?;
    /// let inside = model.to_bytes()?.len();
    /// assert!(message.len() < inside && message.len() + weights.len() >= inside);
    /// # Ok::<(), unfold::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Model::to_writer`].
    pub fn to_writers(
        &self,
        out: &mut impl Write,
        location: &str,
        weights: &mut impl Write,
    ) -> Result<()> {
        let storage = Storage::Beside {
            location,
            threshold: SaveOptions::default().threshold,
        };
        let mut layout = Layout::new(self, storage)?;
        self.check_size(&layout, Path::new(MEMORY))?;
        let write = layout
            .write_message(out)
            .and_then(|()| layout.write_weights(weights));
        write.map_err(|source| self.io(source))
    }

    /// Writes the model. The weights are written into one data file next to it if
    /// [`Model::external`] is true, or if the message would exceed the limit of protobuf.
    ///
    /// The data file also receives the data that the model kept in other files, so that the model
    /// and the data file can be moved together. Its name is that of the model with `.data`
    /// appended, or with `.1.data` and so on if this name is taken, because existing files are
    /// never overwritten. There is one exception: a model with external data and without new
    /// weights that is saved over its own file keeps its data files.
    ///
    /// Weights are read in parts and written on all cores, so that they are never all in memory.
    ///
    /// All files are complete before they are renamed. Renaming the new model replaces the old one.
    /// Until then the old model exists completely, and after a failure it remains. The data file of
    /// the replaced model is removed afterwards, if it has the name and the layout that this
    /// function writes, and if no `.onnx` file in the folder mentions it. The temporary files of a
    /// killed process are removed by the next process that saves into the folder. As with any copy,
    /// a power failure loses data that the operating system has not flushed.
    ///
    /// If files that the model was read from are replaced, the model can still be used afterwards.
    /// A symbolic link is followed, even if its target does not exist.
    ///
    /// # Errors
    /// If files cannot be read or written, or if the message exceeds the limit of protobuf.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<Saved> {
        self.save_as(path, &SaveOptions::default())
    }

    /// Like [`Model::save`], with options for the place of the weights.
    ///
    /// # Errors
    /// The errors of [`Model::save`].
    pub fn save_as(&self, path: impl AsRef<Path>, options: &SaveOptions) -> Result<Saved> {
        let path = path.as_ref();
        let mut settled = self.external && options.place != DataPlace::Inside && self.is_at(path);
        if settled {
            walk::parts(&mut self.proto.clone(), &mut |part| {
                settled &= !matches!(part, Visited::Initializer(tensor) if is_inside(tensor, options.threshold));
                Ok(())
            })?;
        }
        let mut draft = FileDraft::new(path).map_err(|source| failed(path, source))?;
        if settled {
            let layout = Layout::new(self, Storage::AsItIs)?;
            self.check_size(&layout, draft.path())?;
            let saved = self.finish(&mut draft, layout, None)?;
            return Ok(Saved {
                bytes: saved.bytes + self.outside_bytes(),
                ..saved
            });
        }
        let name = draft.reserve_name();
        // A failed reservation of a name is an error only if there are weights to write.
        let layout = self.laid_out(options, name.as_deref().unwrap_or_default())?;
        self.check_size(&layout, draft.path())?;
        let name = if layout.has_weights() {
            Some(name)
        } else {
            None
        };
        let name = name
            .transpose()
            .map_err(|source| failed(draft.path(), source))?;
        self.finish(&mut draft, layout, name)
    }

    /// Computes the layout of a model for a save. `location` is the name of the data file, if one
    /// is needed.
    pub(super) fn laid_out(&self, options: &SaveOptions, location: &str) -> Result<Layout> {
        if options.place == DataPlace::Inside || options.place == DataPlace::Auto && !self.external
        {
            let layout = Layout::new(self, Storage::Inside)?;
            if options.place == DataPlace::Inside || layout.message_bytes() <= MAX_MESSAGE {
                return Ok(layout);
            }
        }
        Layout::new(
            self,
            Storage::Beside {
                location,
                threshold: options.threshold,
            },
        )
    }

    /// Like [`Model::save`], but replaces the elements of some initializers.
    ///
    /// `rewrite` receives each dense initializer of each graph. It returns the new elements in the
    /// format of [`tensor::raw`], or `None` to keep the elements. An initializer may lack elements
    /// if `rewrite` supplies them.
    ///
    /// ```
    /// use unfold::onnx::{Model, tensor};
    /// # use unfold::onnx::DataType;
    /// # use unfold::onnx::proto::{GraphProto, ModelProto, OperatorSetIdProto};
    /// # let weight = ndarray::array![1.0, 2.0].into_dyn();
    /// # let mut model = Model::from_proto(ModelProto {
    /// #     ir_version: Some(10),
    /// #     opset_import: vec![OperatorSetIdProto { domain: None, version: Some(21) }],
    /// #     graph: Some(GraphProto {
    /// #         initializer: vec![tensor::make("weight", DataType::Float, &weight.view())?],
    /// #         ..Default::default()
    /// #     }),
    /// #     ..Default::default()
    /// # });
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("model.onnx");
    /// model.save_with(&path, |initializer| {
    ///     let doubled = tensor::read_f64(initializer, model.externals())? * 2.0;
    ///     let data_type = tensor::data_type(initializer)?;
    ///     Ok(tensor::make("", data_type, &doubled.view())?.raw_data)
    /// })?;
    /// # let again = Model::open(&path)?;
    /// # let read = tensor::read_f64(&again.graph().initializer[0], again.externals())?;
    /// # assert_eq!(read, ndarray::array![2.0, 4.0].into_dyn());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Model::save`]. Also if `rewrite` fails, or if its result does not fit the
    /// tensor.
    pub fn save_with(
        &self,
        path: impl AsRef<Path>,
        mut rewrite: impl FnMut(&TensorProto) -> Result<Option<Bytes>>,
    ) -> Result<Saved> {
        let mut changed = self.clone();
        walk::parts(&mut changed.proto, &mut |part| {
            if let Visited::Initializer(tensor) = part
                && let Some(bytes) = rewrite(tensor)?
            {
                tensor::replace(tensor, bytes)?;
            }
            Ok(())
        })?;
        changed.save(path)
    }

    /// Copies the file of the model under another name, byte for byte.
    ///
    /// A model in memory or with external data is saved by [`Model::save`] instead. A copied
    /// message with external data would refer to files that are not at its new place.
    ///
    /// # Errors
    /// The errors of [`Model::save`].
    pub fn copy(&self, path: impl AsRef<Path>) -> Result<Saved> {
        self.copy_as(path, &SaveOptions::default())
    }

    /// Like [`Model::copy`], with options for the place of the weights. With [`DataPlace::Beside`],
    /// the model is saved instead of copied.
    ///
    /// # Errors
    /// The errors of [`Model::save_as`].
    pub fn copy_as(&self, path: impl AsRef<Path>, options: &SaveOptions) -> Result<Saved> {
        let path = path.as_ref();
        let source = self
            .source
            .as_ref()
            .filter(|source| source.whole && options.place != DataPlace::Beside);
        let Some(source) = source else {
            return self.save_as(path, options);
        };
        let mut draft = FileDraft::new(path).map_err(|source| failed(path, source))?;
        let file = draft.model().map_err(|source| failed(path, source))?;
        let whole = Transfer {
            file: &file,
            offset: 0,
            data: source.data.clone(),
        };
        self.commit(
            &mut draft,
            vec![whole],
            None,
            source.data.len() as u64,
            || Ok(()),
        )
    }

    /// Whether `path` is the file that the model was read from.
    fn is_at(&self, path: &Path) -> bool {
        let origin = self.path().and_then(|origin| origin.canonicalize().ok());
        origin.is_some_and(|origin| path.canonicalize().is_ok_and(|path| path == origin))
    }

    fn check_size(&self, layout: &Layout, file: &Path) -> Result<()> {
        match layout.message_bytes() {
            bytes if bytes > MAX_MESSAGE => Err(Error::TooLarge {
                file: file.to_owned(),
                bytes,
            }),
            _ => Ok(()),
        }
    }

    pub(super) fn io(&self, source: io::Error) -> Error {
        failed(&self.file(), source)
    }

    /// Writes both files of a layout, and renames them.
    fn finish(&self, draft: &mut FileDraft, layout: Layout, data: Option<String>) -> Result<Saved> {
        let model = draft
            .model()
            .map_err(|source| failed(draft.path(), source))?;
        let beside = match data {
            Some(_) => Some(
                draft
                    .data()
                    .map_err(|source| failed(draft.path(), source))?,
            ),
            None => None,
        };
        let work = work(&layout, &model, beside.as_ref());
        let work = work.map_err(|source| failed(draft.path(), source))?;
        let bytes = layout.message_bytes() as u64 + layout.weight_bytes();
        self.commit(draft, work, data, bytes, || {
            layout
                .write_digest(&model)
                .map_err(|source| self.io(source))
        })
    }

    /// Moves data into the files, calls `last`, and renames the files. `bytes` is the total length
    /// that the result reports.
    fn commit(
        &self,
        draft: &mut FileDraft,
        work: Vec<Transfer>,
        data: Option<String>,
        bytes: u64,
        last: impl FnOnce() -> Result<()>,
    ) -> Result<Saved> {
        let path = draft.path().to_owned();
        transfer(work).map_err(|source| failed(&path, source))?;
        last()?;
        self.check_unchanged()?;
        let lock = draft.lock_folder();
        // The replaced model is read only now, because another process may have replaced it while
        // this one wrote.
        let replaced = Replaced::find(draft).unwrap_or_default();
        // The model that is being saved may still read the data file that is about to be removed,
        // so the file is opened now.
        replaced
            .own
            .iter()
            .for_each(|name| self.externals.keep(name));
        let committed = draft.commit(lock, data.as_deref(), replaced.own.as_deref());
        committed.map_err(|source| failed(&path, source))?;
        let left = replaced.used.iter().filter(|name| draft.is_left(name));
        Ok(Saved {
            left: left.map(|name| path.with_file_name(name)).collect(),
            data: data.map(|name| path.with_file_name(name)),
            bytes,
            path,
        })
    }

    /// Fails if a file has changed since it was opened, because the written model may then mix old
    /// and new data.
    fn check_unchanged(&self) -> Result<()> {
        let own = self
            .source
            .as_ref()
            .is_some_and(|source| match &source.data {
                Data::There(file, _) => file.has_changed(),
                _ => false,
            });
        let changed = if own {
            Some(self.file())
        } else {
            self.externals.changed().map(PathBuf::from)
        };
        match changed {
            Some(path) => Err(failed(
                &path,
                io::Error::other("it was written into while it was read"),
            )),
            None => Ok(()),
        }
    }
}

/// Writes the message of a layout, and allocates the data file. Returns the transfers that remain.
fn work<'l>(
    layout: &'l Layout,
    model: &'l File,
    beside: Option<&'l File>,
) -> io::Result<Vec<Transfer<'l>>> {
    let mut work = layout.write_file(model)?;
    if let Some(file) = beside {
        reserve(file, layout.weight_bytes())?;
        let weights = layout.weights();
        work.extend(weights.map(|(offset, data)| Transfer { file, offset, data }));
    }
    Ok(work)
}

fn failed(path: &Path, source: io::Error) -> Error {
    Error::Io {
        path: path.to_owned(),
        source,
    }
}
