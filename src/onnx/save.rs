//! Writing a model: whole files or none.

use std::fs::File;
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::data::{Data, reserve};
use super::external::MEMORY;
use super::layout::{Layout, MessagePart, Storage, is_inside};
use super::load::MAX_MESSAGE;
use super::proto::TensorProto;
use super::transfer::{Transfer, transfer};
use super::walk::{self, Visited};
use super::{Model, tensor};
use crate::error::{Error, Result};
use crate::onnx::atomic_write::FileDraft;
use crate::onnx::replaced::Replaced;

/// Whether the weights of a model go into a data file beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DataPlace {
    /// External data if [`Model::external`] says so, and where the message would exceed protobuf's
    /// limit.
    #[default]
    Auto,
    /// They do.
    Beside,
    /// They are in the message.
    Inside,
}

/// How a model is saved.
#[derive(Debug, Clone)]
pub struct SaveOptions {
    /// Where its weights go.
    pub place: DataPlace,
    /// From how many bytes on an initializer goes into the data file, if the model has one. Integers of less than 1 kB
    /// never do, nor other numbers of less than 64 bytes: engines read shapes and scales before they look for data.
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
    /// The model: the path that was given, or where its links lead.
    pub path: PathBuf,
    /// The data file, if one was written.
    pub data: Option<PathBuf>,
    /// How many bytes they have, and what the model keeps referring to in the data files that it had.
    pub bytes: u64,
    /// Data files of the model that was replaced, which this one does not need, and which are left: they may not be
    /// unfold's own, or another model refers to them.
    pub left: Vec<PathBuf>,
}

impl Model {
    /// The model as a file holds it. Data in other files stays where it is.
    ///
    /// A message that was read and not changed gives the same bytes again, if its writer followed
    /// the order of the field numbers, as the protobuf libraries do.
    ///
    /// # Errors
    /// Where it is more than protobuf allows, or elements cannot be read.
    pub fn to_bytes(&self) -> Result<Bytes> {
        let mut layout = Layout::new(self, Storage::AsItIs)?;
        self.check_size(&layout, Path::new(MEMORY))?;
        let length = layout.message_bytes();
        let mut bytes = Vec::with_capacity(length);
        layout
            .fill_message(&mut bytes.spare_capacity_mut()[..length])
            .map_err(|source| self.io(source))?;
        // SAFETY: there is as much, and all of it was filled.
        unsafe { bytes.set_len(length) };
        Ok(bytes.into())
    }

    /// Writes what [`Model::to_bytes`] gives into room for [`Model::message_bytes`], which has nothing in it yet.
    ///
    /// # Errors
    /// As [`Model::to_bytes`], and where there is more room, or less.
    pub fn fill(&self, room: &mut [MaybeUninit<u8>]) -> Result<()> {
        let mut layout = Layout::new(self, Storage::AsItIs)?;
        self.check_size(&layout, Path::new(MEMORY))?;
        layout.fill_message(room).map_err(|source| self.io(source))
    }

    /// How many bytes [`Model::to_bytes`] gives.
    ///
    /// # Errors
    /// If external data are missing.
    pub fn message_bytes(&self) -> Result<usize> {
        Ok(Layout::new(self, Storage::AsItIs)?.message_bytes())
    }

    /// Writes what [`Model::to_bytes`] gives, without having all of it in memory.
    ///
    /// # Errors
    /// Where it is more than protobuf allows, elements cannot be read, or the writer fails.
    pub fn to_writer(&self, out: &mut impl Write) -> Result<()> {
        let mut layout = Layout::new(self, Storage::AsItIs)?;
        self.check_size(&layout, Path::new(MEMORY))?;
        layout.write_message(out).map_err(|source| self.io(source))
    }

    /// The model in parts, for somebody who takes it without ever having all of it as bytes.
    ///
    /// Each part is a message of about `bytes` bytes, or of one larger tensor. Merged in this order
    /// by protobuf's rules for repeated fields, the parts are the model. [`Model::to_bytes`] has
    /// the fields in another order.
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
    /// As [`Model::to_bytes`].
    pub fn to_parts(&self, room: usize) -> Result<impl Iterator<Item = MessagePart> + use<>> {
        let layout = Layout::new(self, Storage::AsItIs)?;
        self.check_size(&layout, Path::new(MEMORY))?;
        Ok(layout.parts(room))
    }

    /// Writes the model into one writer, and its weights into another, which the model refers to by a location.
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
    /// As [`Model::to_writer`].
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
    /// [`Model::external`] says so, or if they exceed the limit of one message.
    ///
    /// The data file holds everything that the model kept in other files, so that the two can be moved
    /// together. Its name is that of the model with `.data` appended, or with `.1.data` and so on: one that
    /// nothing else has, as files that are there are never overwritten. Only a model that is saved over the file that
    /// it was read from, with no new weights, keeps referring to the data files it has. Else everything is written
    /// into the model itself.
    ///
    /// Weights are read while they are written, in parts: they are never all in memory, and are written by all cores.
    ///
    /// Files are complete before they are renamed, and renaming the model is the moment of the
    /// change: before it the old model exists, whole, and after it the new one. A failure leaves
    /// the old model. The data file of a replaced model is removed afterwards, if it has the name
    /// and the layout that this function writes, and no `.onnx` file of the folder mentions it. The
    /// next process that saves into the folder removes the temporary files of a killed process. As
    /// with any copy, data that the system has not flushed when its power fails are lost.
    ///
    /// The files that the model was read from may be replaced; it can still be used afterwards. A link is
    /// followed, though it may lead to nothing yet.
    ///
    /// # Errors
    /// Where files cannot be read or written, and where the message becomes larger than protobuf allows.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<Saved> {
        self.save_as(path, &SaveOptions::default())
    }

    /// As [`Model::save`], with the weights where one wants them.
    ///
    /// # Errors
    /// As [`Model::save`].
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
        // A name that cannot be written matters where there is something to write.
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

    /// How it is written where nothing of it stays in other files; its data file is at this location, if it has one.
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

    /// As [`Model::save`], with other elements for some of the initializers.
    ///
    /// `rewrite` receives each dense initializer of each graph, and returns its new elements as
    /// [`tensor::raw`] does, or nothing if they stay. An initializer may have no elements before
    /// `rewrite` supplies them.
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
    ///
    /// # Errors
    /// As [`Model::save`]; if `rewrite` fails, or if its result does not fit the tensor.
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
    /// A model in memory, or one with external data, is saved by [`Model::save`]: references to
    /// other files do not survive a move.
    ///
    /// # Errors
    /// As [`Model::save`].
    pub fn copy(&self, path: impl AsRef<Path>) -> Result<Saved> {
        self.copy_as(path, &SaveOptions::default())
    }

    /// As [`Model::copy`], unless the weights are to be somewhere else.
    ///
    /// # Errors
    /// As [`Model::save_as`].
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

    /// Whether a path is that of the file that the model was read from.
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

    /// Writes both files of a layout, and lets them take their names.
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

    /// Moves data to their places, runs the last step, and renames the files, whose lengths are
    /// given.
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
        // Another process may have replaced the model while this one wrote.
        let replaced = Replaced::find(draft).unwrap_or_default();
        // Of what will have no name any more, this model may still have something to read.
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

    /// Refuses to have written half of one file and half of another.
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

/// Writes the messages of a layout, and reserves room for the weights beside them; the data that remain to be moved.
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
