//! Reading a model, and saying what is wrong with a file that holds none.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::path::Path;

use bytes::Bytes;
use prost::Message;

use super::digest::Contents;
use super::external::{Externals, read};
use super::identify::looks_like;
use super::proto::{GraphProto, ModelProto};
use super::walk::{self, Visited};
use super::wire::{self, Flaw, FlawKind};
use super::{Model, tensor};
use crate::error::{Error, Result};

/// The size that protobuf readers refuse to exceed.
pub(super) const MAX_MESSAGE: usize = i32::MAX as usize;

/// How much of a file tells what it looks like.
const HEAD: u64 = 512;

impl Model {
    /// Reads a model from a file.
    ///
    /// The file is read once and for all: whatever becomes of it, the model stays what it was. Weights in
    /// other files are read when they are asked for, or written; where such a file was cut short or taken
    /// away meanwhile, that is an error. That nobody writes into them meanwhile is for the caller to see to.
    ///
    /// Nothing that the file holds is lost: a field that ONNX does not define is an
    /// [`Error::UnknownField`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let io = |source| Error::Io { path: path.to_owned(), source };
        // Asked before it is opened: opening a pipe would wait for its writer.
        if !path.metadata().map_err(io)?.is_file() {
            return Err(not_onnx(path, "it is no regular file"));
        }
        let mut file = File::open(path).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        if length > MAX_MESSAGE as u64 {
            let head = read(&mut file, HEAD).map_err(io)?;
            return Err(match looks_like(&head) {
                Some(name) => not_onnx(path, format!("it looks like {name}")),
                None => Error::TooLarge { file: path.to_owned(), bytes: length as usize },
            });
        }
        let bytes = Bytes::from(read(&mut file, length).map_err(io)?);
        if bytes.len() as u64 != length {
            return Err(io(io::Error::other("it was cut short while it was read")));
        }
        let (proto, external) = decode(path, bytes.clone())?;
        let source = Some(Contents::new(bytes, !external).into());
        Ok(Self { proto, external, source, externals: Externals::beside(path), path: Some(path.to_owned()) })
    }

    /// Reads a model from memory. Data in other files is out of its reach.
    pub fn from_bytes(bytes: impl Into<Bytes>) -> Result<Self> {
        let bytes = bytes.into();
        let (proto, external) = decode(Path::new("<memory>"), bytes.clone())?;
        let source = Some(Contents::new(bytes, false).into());
        Ok(Self { external, source, ..Self::from_proto(proto) })
    }
}

/// The message, and whether any of its tensors is in another file.
fn decode(path: &Path, bytes: Bytes) -> Result<(ModelProto, bool)> {
    if bytes.is_empty() {
        return Err(not_onnx(path, "it is empty"));
    }
    wire::check(&bytes).map_err(|flaw| explain(path, &bytes, flaw))?;
    let mut proto = ModelProto::decode(bytes.clone()).map_err(|source| match looks_like(&bytes) {
        Some(name) => not_onnx(path, format!("it looks like {name}")),
        None => Error::Decode { file: path.to_owned(), reason: source.to_string() },
    })?;
    require(path, &bytes, &proto)?;
    let mut external = false;
    walk::parts(&mut proto, &mut |part| {
        match part {
            Visited::Graph(graph) => distinct_initializers(path, graph)?,
            Visited::Initializer(tensor) | Visited::Tensor(tensor) => external |= tensor::is_external(tensor),
        }
        Ok(())
    })?;
    Ok((proto, external))
}

/// Refuses a model without the parts that every model has.
fn require(path: &Path, bytes: &[u8], proto: &ModelProto) -> Result<()> {
    let lacking = if proto.graph.is_none() {
        "graph"
    } else if proto.ir_version.is_none() {
        "ir_version"
    } else if proto.opset_import.is_empty() {
        "opset_import, so that nothing defines its operators"
    } else {
        return Ok(());
    };
    Err(not_onnx(
        path,
        looks_like(bytes).map_or(format!("it has no {lacking}"), |name| format!("it looks like {name}")),
    ))
}

/// Refuses a graph in which one name stands for two constants.
fn distinct_initializers(path: &Path, graph: &GraphProto) -> Result<()> {
    let sparse = graph.sparse_initializer.iter().filter_map(|sparse| sparse.values.as_ref());
    let mut seen = HashSet::new();
    let mut names = graph.initializer.iter().chain(sparse).map(|tensor| tensor.name());
    match names.find(|name| !seen.insert(*name)) {
        Some(name) => Err(Error::Graph {
            file: path.to_owned(),
            node: name.to_owned(),
            reason: "two initializers of one graph have this name".to_owned(),
        }),
        None => Ok(()),
    }
}

fn explain(path: &Path, bytes: &[u8], flaw: Flaw) -> Error {
    if let Some(name) = looks_like(bytes) {
        return not_onnx(path, format!("it looks like {name}"));
    }
    let file = path.to_owned();
    let message = if flaw.path.is_empty() { "the model".to_owned() } else { flaw.path };
    match flaw.kind {
        FlawKind::Truncated => Error::Truncated { file, message, length: bytes.len() },
        FlawKind::UnknownField(field) => Error::UnknownField { file, message, field },
        FlawKind::TooDeep => Error::Decode { file, reason: "its messages are nested too deeply".to_owned() },
        FlawKind::Malformed(reason) => Error::Decode { file, reason: format!("in {message}: {reason}") },
    }
}

fn not_onnx(path: &Path, reason: impl Into<String>) -> Error {
    Error::NotOnnx { path: path.to_owned(), reason: reason.into() }
}
