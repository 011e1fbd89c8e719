//! Reads a model. If a file is not a model, the error describes it.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::data::{Data, DataFile};
use super::decode::decode;
use super::digest::Contents;
use super::element::HELD;
use super::external_data::{Externals, MEMORY, Resolver};
use super::file_format::looks_like;
use super::node::canonical_domain;
use super::proto::{GraphProto, ModelProto, TensorProto};
use super::walk::{self, Visited};
use super::wire::{self, Flaw, FlawKind};
use super::{Model, tensor, text};
use crate::error::{Error, Result};
use crate::onnx::lazy_read::{Trouble, skim};

/// The largest message that protobuf readers accept, in bytes.
pub(super) const MAX_MESSAGE: usize = i32::MAX as usize;

/// The number of bytes of a file that suffice to recognize its format.
const HEAD: u64 = 512;

impl Model {
    /// Reads a model from a file.
    ///
    /// The elements of its large tensors stay in their files until they are needed or written.
    /// Until then, the file may be replaced or renamed. But if the file is truncated or modified in
    /// place, reading the elements fails.
    ///
    /// A field that ONNX does not define is an [`Error::UnknownField`], so that no content of the
    /// file is lost. A file `*.onnxtxt` is read in ONNX's textual syntax, like
    /// [`Model::from_text`].
    ///
    /// # Errors
    /// If the file cannot be read, or is not an ONNX model.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_reaching(path, vec![])
    }

    /// Like [`Model::open`], but the tensors of the model may also refer to files in `others` and
    /// their subfolders.
    ///
    /// # Errors
    /// The errors of [`Model::open`].
    pub fn open_reaching(path: impl AsRef<Path>, others: Vec<PathBuf>) -> Result<Self> {
        let path = path.as_ref();
        // The kind of the file is checked before it is opened, because opening a pipe would wait
        // for its writer.
        let metadata = path.metadata().map_err(|source| unreadable(path, source))?;
        if metadata.is_dir() {
            return Err(not_onnx(path, "it is a folder"));
        }
        if !metadata.is_file() {
            return Err(not_onnx(path, "it is no regular file"));
        }
        if text::is_text(path) {
            return text::open(path, others);
        }
        let name = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        let file = File::open(path)
            .and_then(|file| DataFile::open(&name, file))
            .map_err(|source| unreadable(path, source))?;
        let file = Arc::new(file);
        let externals = Externals::reaching(path, others);
        let (proto, external, message) = skimmed(path, &file, &externals)?;
        let source = Some(Contents::new(message, !external).into());
        Ok(Self {
            proto,
            external,
            source,
            pending: None,
            externals,
            path: Some(path.to_owned()),
        })
    }

    /// Checks that the external data of every tensor exists completely, without reading it.
    ///
    /// [`Model::open`] does not check this. Without the data, the constants of the graph are
    /// unknown, and little folds. If [`Model::external`] is false, nothing is checked.
    ///
    /// ```
    /// use unfold::onnx::Model;
    ///
    /// let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("model.onnx");
    /// let mut model = Model::open("models/digits/un-dynamo.onnx")?;
    /// model.external = true;
    /// let data = model.save(&path)?.data.expect("its weights are in another file");
    /// assert!(Model::open(&path)?.find_data().is_ok());
    /// std::fs::remove_file(data)?;
    /// assert!(Model::open(&path)?.find_data().is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ExternalData`] of the first tensor whose data does not exist, is truncated, or is
    /// in a place to which a model may not refer.
    pub fn find_data(&self) -> Result<()> {
        if !self.external {
            return Ok(());
        }
        walk::parts(&mut self.proto.clone(), &mut |part| match part {
            Visited::Initializer(tensor) | Visited::Tensor(tensor) if tensor.is_external() => {
                self.externals.data(tensor).map(drop)
            }
            _ => Ok(()),
        })
    }

    /// Fails with the first error of the resolver for external data, if it has failed.
    ///
    /// Without this check, a failure would look like a model without folds, because passes treat a
    /// constant that cannot be read as unknown.
    pub(crate) fn find_refused(&self) -> Result<()> {
        let Some((location, reason)) = self.externals.refused() else {
            return Ok(());
        };
        let (mut all, mut at) = (self.proto.clone(), String::new());
        walk::parts(&mut all, &mut |part| {
            if let Visited::Initializer(tensor) | Visited::Tensor(tensor) = part
                && tensor.is_external()
                && self
                    .externals
                    .span(tensor)
                    .is_ok_and(|span| span.location == location)
                && at.is_empty()
            {
                tensor.name().clone_into(&mut at);
            }
            Ok(())
        })?;
        Err(Error::ExternalData {
            file: self.file(),
            tensor: at,
            reason,
        })
    }

    /// Reads a model from memory. The model cannot refer to data in other files.
    ///
    /// # Errors
    /// If the bytes are not an ONNX model, or have a field that ONNX does not define.
    pub fn from_bytes(bytes: impl Into<Bytes>) -> Result<Self> {
        Self::from_memory(bytes.into(), Externals::none())
    }

    /// Like [`Model::from_bytes`], but a resolver provides the external data of the tensors.
    ///
    /// ```
    /// use std::io;
    /// use std::sync::Arc;
    /// use bytes::Bytes;
    /// use unfold::onnx::Model;
    /// use unfold::onnx::Resolver;
    ///
    /// #[derive(Debug)]
    /// struct Nothing;
    ///
    /// impl Resolver for Nothing {
    ///     fn length(&self, _: &str) -> io::Result<u64> {
    ///         Err(io::ErrorKind::NotFound.into())
    ///     }
    ///     fn read(&self, _: &str, _: u64, _: usize) -> io::Result<Bytes> {
    ///         Err(io::ErrorKind::NotFound.into())
    ///     }
    /// }
    ///
    /// let bytes = std::fs::read("models/digits/un-dynamo.onnx")?;
    /// let model = Model::from_bytes_with(bytes, Arc::new(Nothing))?;
    /// let mut fused = Vec::new();
    /// unfold::fuse(&model, &Default::default())?.model.to_writer(&mut fused)?;
    /// assert!(Model::from_bytes(fused)?.graph().node.len() < model.graph().node.len());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Model::from_bytes`].
    pub fn from_bytes_with(bytes: impl Into<Bytes>, resolver: Arc<dyn Resolver>) -> Result<Self> {
        Self::from_memory(bytes.into(), Externals::resolved(resolver))
    }

    /// Like [`Model::from_bytes`], but the external data of the tensors is in a folder and its
    /// subfolders.
    ///
    /// # Errors
    /// The errors of [`Model::from_bytes`].
    pub fn from_bytes_in(bytes: impl Into<Bytes>, folder: impl AsRef<Path>) -> Result<Self> {
        Self::from_memory(
            bytes.into(),
            Externals::beside(&folder.as_ref().join(MEMORY)),
        )
    }

    /// Reads a model from a resolver. The elements of its large tensors are read each time they are
    /// needed, and never all at once.
    ///
    /// `message` resolves the location `<memory>`, and `externals` resolves the external data of
    /// tensors.
    ///
    /// ```
    /// use std::io;
    /// use std::sync::Arc;
    /// use bytes::Bytes;
    /// use unfold::onnx::Model;
    /// use unfold::onnx::{Externals, Resolver};
    ///
    /// /// A message in two pieces, which are never joined.
    /// #[derive(Debug)]
    /// struct Halves([Bytes; 2]);
    ///
    /// impl Resolver for Halves {
    ///     fn length(&self, _: &str) -> io::Result<u64> {
    ///         Ok(self.0.iter().map(|half| half.len() as u64).sum())
    ///     }
    ///     fn read(&self, _: &str, offset: u64, length: usize) -> io::Result<Bytes> {
    ///         let all = self.0.iter().flatten().copied();
    ///         Ok(all.skip(offset as usize).take(length).collect())
    ///     }
    /// }
    ///
    /// let mut first = Bytes::from(std::fs::read("models/digits/un-dynamo.onnx")?);
    /// let second = first.split_off(100_000);
    /// let model = Model::from_message(Arc::new(Halves([first, second])), Externals::none())?;
    /// assert_eq!(model.to_bytes()?, Model::open("models/digits/un-dynamo.onnx")?.to_bytes()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If the message cannot be read, is not an ONNX model, or has a field that ONNX does not
    /// define.
    pub fn from_message(message: Arc<dyn Resolver>, externals: Externals) -> Result<Self> {
        let file = Arc::new(DataFile::resolved(MEMORY, message));
        let (proto, external, message) = skimmed(Path::new(MEMORY), &file, &externals)?;
        let source = Some(Contents::new(message, false).into());
        Ok(Self {
            proto,
            external,
            source,
            pending: None,
            externals,
            path: None,
        })
    }

    /// Moves the elements of the model's tensors into its message, for callers that pass
    /// [`Model::proto`] to other code. External data stays in its files.
    ///
    /// # Errors
    /// If elements cannot be read.
    pub fn into_memory(mut self) -> Result<Self> {
        let externals = &self.externals;
        walk::parts(&mut self.proto, &mut |part| {
            if let Visited::Initializer(tensor) | Visited::Tensor(tensor) = part
                && tensor::is_held(tensor)
            {
                let bytes = externals.release(tensor)?.all();
                tensor.raw_data = Some(bytes.map_err(|reason| externals.error(tensor, reason))?);
            }
            Ok(())
        })?;
        Ok(self)
    }

    fn from_memory(bytes: Bytes, externals: Externals) -> Result<Self> {
        let path = Path::new(MEMORY);
        if bytes.is_empty() {
            return Err(not_onnx(path, "it is empty"));
        }
        let counts =
            wire::check(&bytes).map_err(|flaw| explain(path, &bytes, bytes.len() as u64, flaw))?;
        let decoded = decode(bytes.clone(), &counts);
        let mut proto = decoded.map_err(|source| undecoded(path, &bytes, &source.to_string()))?;
        let external = look_through(path, &bytes, &mut proto, &mut |_| Ok(()))?;
        let source = Some(Contents::new(Data::Here(bytes), false).into());
        Ok(Self {
            proto,
            external,
            source,
            pending: None,
            externals,
            path: None,
        })
    }
}

/// Reads a message without the elements that stay in its file. Returns the message, whether it has
/// external data, and the data of the file.
fn skimmed(
    path: &Path,
    file: &Arc<DataFile>,
    externals: &Externals,
) -> Result<(ModelProto, bool, Data)> {
    let length = file
        .length()
        .map_err(|reason| unreadable(path, io::Error::other(reason)))?;
    if length > MAX_MESSAGE as u64 {
        return Err(match looks_like(&head(path, file, length)?) {
            Some(name) => not_onnx(path, format!("it looks like {name}")),
            None => Error::TooLarge {
                file: path.to_owned(),
                bytes: length as usize,
            },
        });
    }
    if length == 0 {
        return Err(not_onnx(path, "it is empty"));
    }
    let skimmed = match skim(file, length) {
        Ok(skimmed) => skimmed,
        Err(Trouble::Flaw(flaw)) => {
            return Err(explain(path, &head(path, file, length)?, length, flaw));
        }
        Err(Trouble::Unreadable(reason)) => {
            return Err(unreadable(path, io::Error::other(reason)));
        }
    };
    let decoded = skimmed
        .decode()
        .map_err(|source| undecoded(path, skimmed.head(), &source.to_string()));
    let mut proto = decoded?;
    let external = look_through(path, skimmed.head(), &mut proto, &mut |tensor| {
        skimmed.settle(tensor, file, externals)
    })?;
    Ok((proto, external, Data::There(file.clone(), 0..length)))
}

/// The first bytes of a file.
fn head(path: &Path, file: &Arc<DataFile>, length: u64) -> Result<Bytes> {
    let head = file.read(0, length.min(HEAD) as usize);
    head.map_err(|reason| unreadable(path, io::Error::other(reason)))
}

fn unreadable(path: &Path, source: io::Error) -> Error {
    Error::Io {
        path: path.to_owned(),
        source,
    }
}

fn undecoded(path: &Path, head: &[u8], reason: &str) -> Error {
    match looks_like(head) {
        Some(name) => not_onnx(path, format!("it looks like {name}")),
        None => Error::Decode {
            file: path.to_owned(),
            reason: reason.to_owned(),
        },
    }
}

/// Checks the required parts of a model and the names of its constants, and calls `settle` for each
/// tensor. Returns whether a tensor has external data.
fn look_through(
    path: &Path,
    head: &[u8],
    proto: &mut ModelProto,
    settle: &mut dyn FnMut(&mut TensorProto) -> Result<()>,
) -> Result<bool> {
    require(path, head, proto)?;
    let mut external = false;
    walk::parts(proto, &mut |part| {
        match part {
            Visited::Graph(graph) => distinct_initializers(path, graph)?,
            Visited::Initializer(tensor) | Visited::Tensor(tensor) => {
                if tensor::is_held(tensor) {
                    let reason =
                        format!("its location begins with {HELD:?}, and no file has such a name");
                    let (file, tensor) = (path.to_owned(), tensor.name().to_owned());
                    return Err(Error::ExternalData {
                        file,
                        tensor,
                        reason,
                    });
                }
                external |= tensor.is_external();
                settle(tensor)?;
            }
        }
        Ok(())
    })?;
    Ok(external)
}

/// Refuses a model that lacks a required part.
fn require(path: &Path, bytes: &[u8], proto: &ModelProto) -> Result<()> {
    let lacking = if proto.graph.is_none() {
        "graph"
    } else if proto.ir_version.is_none() {
        "ir_version"
    } else if proto.opset_import.is_empty() {
        "opset_import, so that nothing defines its operators"
    } else {
        return one_version_each(path, proto);
    };
    Err(not_onnx(
        path,
        looks_like(bytes).map_or(format!("it has no {lacking}"), |name| {
            format!("it looks like {name}")
        }),
    ))
}

/// Refuses a model that imports two versions of an operator set, because engines differ in the
/// version that they use.
fn one_version_each(path: &Path, proto: &ModelProto) -> Result<()> {
    let mut seen = HashMap::new();
    for set in &proto.opset_import {
        let domain = canonical_domain(set.domain());
        let version = *seen.entry(domain).or_insert(set.version());
        if version != set.version() {
            let of = if domain.is_empty() { "ai.onnx" } else { domain };
            let reason = format!(
                "it imports two versions of `{of}`, {version} and {}",
                set.version()
            );
            return Err(not_onnx(path, reason));
        }
    }
    Ok(())
}

/// Refuses a graph in which two constants have the same name.
fn distinct_initializers(path: &Path, graph: &GraphProto) -> Result<()> {
    let sparse = graph
        .sparse_initializer
        .iter()
        .filter_map(|sparse| sparse.values.as_ref());
    let mut seen = HashSet::new();
    let mut names = graph
        .initializer
        .iter()
        .chain(sparse)
        .map(|tensor| tensor.name());
    match names.find(|name| !seen.insert(*name)) {
        Some(name) => Err(Error::Graph {
            file: path.to_owned(),
            node: name.to_owned(),
            reason: "two initializers of one graph have this name".to_owned(),
        }),
        None => Ok(()),
    }
}

fn explain(path: &Path, head: &[u8], length: u64, flaw: Flaw) -> Error {
    if let Some(name) = looks_like(head) {
        return not_onnx(path, format!("it looks like {name}"));
    }
    let file = path.to_owned();
    let message = if flaw.path.is_empty() {
        "the model".to_owned()
    } else {
        flaw.path
    };
    match flaw.kind {
        FlawKind::Truncated => Error::Truncated {
            file,
            message,
            length: length as usize,
        },
        FlawKind::UnknownField(field) => Error::UnknownField {
            file,
            message,
            field,
        },
        FlawKind::TooDeep => Error::Decode {
            file,
            reason: "its messages are nested too deeply".to_owned(),
        },
        FlawKind::Malformed(reason) => Error::Decode {
            file,
            reason: format!("in {message}: {reason}"),
        },
    }
}

fn not_onnx(path: &Path, reason: impl Into<String>) -> Error {
    Error::NotOnnx {
        path: path.to_owned(),
        reason: reason.into(),
    }
}
