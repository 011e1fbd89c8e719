//! The sources from which models are read: files, bytes, and Python messages.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyMemoryView;

use super::errors::ExternalDataError;
use crate::error::Result;
use crate::onnx::Model;
use crate::onnx::external_data::{Externals, Resolver};
use crate::python::python_callbacks::fetched;

/// A model that has not been read yet.
#[pyclass(frozen, name = "Source", module = "unfold_onnx._native")]
pub(crate) struct ModelSource {
    from: ReadFrom,
}

/// The source of a model.
#[derive(Clone)]
enum ReadFrom {
    File {
        path: PathBuf,
        others: Vec<PathBuf>,
    },
    Memory {
        bytes: Bytes,
        reach: Outside,
    },
    Message {
        message: Arc<Referring>,
        reach: Outside,
    },
}

/// The source of a model's external data, if the model is in memory.
#[derive(Clone)]
enum Outside {
    Nothing,
    Folder(PathBuf),
    Resolver(Arc<Callback>),
}

impl Outside {
    fn new(folder: Option<PathBuf>, resolver: Option<Py<PyAny>>) -> Self {
        match (folder, resolver) {
            (_, Some(call)) => Self::Resolver(Arc::new(Callback {
                call,
                raised: Mutex::default(),
            })),
            (Some(folder), None) => Self::Folder(folder),
            (None, None) => Self::Nothing,
        }
    }
}

impl ReadFrom {
    /// Reads the model, and checks that its external data exist. Without this check, a model whose
    /// resolver is missing would look like a model without normalizers.
    fn read(self) -> Result<Model> {
        let model = match self {
            Self::File { path, others } => Model::open_reaching(path, others)?,
            Self::Memory { bytes, reach } => match reach {
                Outside::Nothing => Model::from_bytes(bytes)?,
                Outside::Folder(folder) => Model::from_bytes_in(bytes, folder)?,
                Outside::Resolver(resolver) => Model::from_bytes_with(bytes, resolver)?,
            },
            Self::Message { message, reach } => {
                let externals = match reach {
                    Outside::Nothing => Externals::none(),
                    Outside::Folder(folder) => Externals::beside(&folder.join("model")),
                    Outside::Resolver(resolver) => Externals::resolved(resolver),
                };
                Model::from_message(message, externals)?
            }
        };
        model.find_data()?;
        Ok(model)
    }
}

#[pymethods]
impl ModelSource {
    /// A file, whose tensors may also have data below the folders `others`.
    #[staticmethod]
    fn file(path: PathBuf, others: Vec<PathBuf>) -> Self {
        Self {
            from: ReadFrom::File { path, others },
        }
    }

    /// A model in bytes, which are not copied.
    #[staticmethod]
    fn memory(data: PyBackedBytes, folder: Option<PathBuf>, resolver: Option<Py<PyAny>>) -> Self {
        let reach = Outside::new(folder, resolver);
        Self {
            from: ReadFrom::Memory {
                bytes: Bytes::from_owner(data),
                reach,
            },
        }
    }
}

/// A protobuf message that Python writes piece by piece. The elements of its tensors are not
/// copied, but stay in their Python objects.
#[pyclass(module = "unfold_onnx._native")]
#[derive(Default)]
pub(crate) struct Wire {
    pieces: Vec<Piece>,
    length: u64,
}

#[pymethods]
impl Wire {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Appends bytes.
    fn put(&mut self, data: &[u8]) {
        if !matches!(self.pieces.last(), Some(Piece::Written(_))) {
            self.pieces.push(Piece::Written(vec![]));
        }
        if let Some(Piece::Written(bytes)) = self.pieces.last_mut() {
            bytes.extend_from_slice(data);
            self.length += data.len() as u64;
        }
    }

    /// Appends a reference to `length` bytes in a field of a Python message.
    fn refer(&mut self, message: Py<PyAny>, field: String, length: usize) {
        self.pieces.push(Piece::Referred {
            of: Arc::new(MessageField {
                message,
                name: field,
            }),
            length,
        });
        self.length += length as u64;
    }

    /// Begins a nested message, and returns its position.
    fn begin(&mut self) -> (usize, u64) {
        self.pieces.push(Piece::Written(vec![]));
        (self.pieces.len() - 1, self.length)
    }

    /// Ends the nested message that began at this position, and inserts its length before it.
    fn close(&mut self, begun: (usize, u64)) -> PyResult<()> {
        let (piece, at) = begun;
        let (Some(Piece::Written(bytes)), Some(length)) =
            (self.pieces.get_mut(piece), self.length.checked_sub(at))
        else {
            return Err(PyValueError::new_err("no message begins there"));
        };
        let mut prefix = vec![];
        prost::encoding::encode_varint(length, &mut prefix);
        self.length += prefix.len() as u64;
        bytes.splice(..0, prefix);
        Ok(())
    }

    /// Converts the written message to a model. The buffer is empty afterwards.
    fn source(&mut self, folder: Option<PathBuf>, resolver: Option<Py<PyAny>>) -> ModelSource {
        let message = Arc::new(Referring::new(std::mem::take(self)));
        ModelSource {
            from: ReadFrom::Message {
                message,
                reach: Outside::new(folder, resolver),
            },
        }
    }
}

/// A part of a message: written bytes, or a reference to a field of a Python message.
enum Piece {
    Written(Vec<u8>),
    Referred {
        of: Arc<MessageField>,
        length: usize,
    },
}

/// A field of a Python message.
struct MessageField {
    message: Py<PyAny>,
    name: String,
}

/// A finished message. Some of its parts are bytes, and the others refer to fields of Python
/// messages, which are read on demand.
struct Referring {
    /// The parts, each with its offset.
    pieces: Vec<(u64, Piece)>,
    length: u64,
    /// The bytes of fields that are being read, as Python returned them: one entry for each thread
    /// that reads a field in parts.
    ///
    /// A thread that waits for this lock must not hold the interpreter lock, because the thread
    /// that holds this lock may wait for the interpreter lock.
    recent: Mutex<VecDeque<BeingRead>>,
}

/// A field of a message that has not been read completely.
struct BeingRead {
    /// The index of the field in `pieces`.
    number: usize,
    bytes: Bytes,
    /// The number of bytes that have not been read yet.
    left: usize,
}

impl Referring {
    fn new(wire: Wire) -> Self {
        let mut at = 0;
        let placed = wire.pieces.into_iter().map(|piece| {
            let begin = at;
            at += match &piece {
                Piece::Written(bytes) => bytes.len() as u64,
                Piece::Referred { length, .. } => *length as u64,
            };
            (begin, piece)
        });
        Self {
            pieces: placed.collect(),
            length: wire.length,
            recent: Mutex::default(),
        }
    }

    /// Reads the bytes in `range` of a field of a Python message.
    fn field(
        &self,
        number: usize,
        (field, length): (&Arc<MessageField>, usize),
        range: Range<usize>,
    ) -> io::Result<Bytes> {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let at = recent.iter().position(|taken| taken.number == number);
        let mut taken = match at.and_then(|at| recent.remove(at)) {
            Some(taken) => taken,
            None => {
                let field = field.clone();
                let read = move |py: Python<'_>| -> PyResult<PyBackedBytes> {
                    Ok(field.message.bind(py).getattr(&*field.name)?.extract()?)
                };
                let bytes =
                    fetched(read).ok_or_else(|| io::Error::other("there is nobody to read it"))?;
                let bytes = bytes.map_err(|error| io::Error::other(error.to_string()))?;
                if bytes.len() != length {
                    return Err(io::Error::other("it was changed while it was read"));
                }
                BeingRead {
                    number,
                    bytes: Bytes::from_owner(bytes),
                    left: length,
                }
            }
        };
        let part = taken.bytes.slice(range);
        taken.left = taken.left.saturating_sub(part.len());
        if taken.left > 0 {
            recent.truncate(rayon::current_num_threads().max(1) - 1);
            recent.push_front(taken);
        }
        Ok(part)
    }
}

impl fmt::Debug for Referring {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("Referring")
    }
}

impl Resolver for Referring {
    fn length(&self, _: &str) -> io::Result<u64> {
        Ok(self.length)
    }

    fn read(&self, _: &str, offset: u64, length: usize) -> io::Result<Bytes> {
        let first = self
            .pieces
            .partition_point(|(begin, _)| *begin <= offset)
            .saturating_sub(1);
        let mut read = BytesMut::new();
        for (number, (begin, piece)) in self.pieces.iter().enumerate().skip(first) {
            let (at, left) = (
                (offset + read.len() as u64 - begin) as usize,
                length - read.len(),
            );
            let range = |there: usize| at.min(there)..there.min(at + left);
            let there = match piece {
                Piece::Written(bytes) => Bytes::copy_from_slice(&bytes[range(bytes.len())]),
                Piece::Referred { of, length } => {
                    self.field(number, (of, *length), range(*length))?
                }
            };
            if there.len() == length {
                return Ok(there);
            }
            read.extend_from_slice(&there);
            if read.len() == length {
                break;
            }
        }
        Ok(read.freeze())
    }

    /// The number of bytes from `offset` to the next field of a Python message, at most `length`.
    fn ahead(&self, _: &str, offset: u64, length: usize) -> usize {
        let next = self.pieces.partition_point(|(begin, _)| *begin <= offset);
        let mut later = self.pieces[next..].iter();
        let field = later.find(|(_, piece)| matches!(piece, Piece::Referred { .. }));
        field.map_or(length, |(begin, _)| length.min((begin - offset) as usize))
    }
}

impl ModelSource {
    /// Returns a function that can read the model in another thread.
    pub(crate) fn reader(&self) -> impl FnOnce() -> Result<Model> + Send + use<> {
        let from = self.from.clone();
        move || from.read()
    }

    /// The number of bytes of the model without external data.
    pub(crate) fn bytes(&self) -> u64 {
        match &self.from {
            ReadFrom::File { path, .. } => path.metadata().map_or(0, |file| file.len()),
            ReadFrom::Memory { bytes, .. } => bytes.len() as u64,
            ReadFrom::Message { message, .. } => message.length,
        }
    }

    /// Returns `result`, or an error whose cause is the exception of the model's resolver, if the
    /// resolver raised one.
    pub(crate) fn settled<T>(&self, py: Python<'_>, result: PyResult<T>) -> PyResult<T> {
        let (ReadFrom::Memory {
            reach: Outside::Resolver(resolver),
            ..
        }
        | ReadFrom::Message {
            reach: Outside::Resolver(resolver),
            ..
        }) = &self.from
        else {
            return result;
        };
        let Some(cause) = resolver
            .raised
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
        else {
            return result;
        };
        let error = result
            .err()
            .unwrap_or_else(|| ExternalDataError::new_err(cause.to_string()));
        error.set_cause(py, Some(cause));
        Err(error)
    }
}

/// A Python function `(location, offset, length)` that returns data.
struct Callback {
    call: Py<PyAny>,
    /// The first exception that the function raised.
    raised: Mutex<Option<PyErr>>,
}

impl Callback {
    /// Calls the function of the resolver, and returns the bytes that it returns.
    fn ask(&self, py: Python<'_>, arguments: (&str, u64, usize)) -> PyResult<Bytes> {
        let found = self.call.bind(py).call1(arguments)?;
        if let Ok(bytes) = found.extract::<PyBackedBytes>() {
            return Ok(Bytes::from_owner(bytes));
        }
        let copy = PyMemoryView::from(&found)?.call_method0("tobytes")?;
        Ok(Bytes::from_owner(copy.extract::<PyBackedBytes>()?))
    }
}

impl fmt::Debug for Callback {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("Callback")
    }
}

impl Resolver for Callback {
    fn length(&self, _: &str) -> io::Result<u64> {
        // The length is unknown, so any length is accepted here. Missing data cause an error when
        // they are read.
        Ok(i64::MAX as u64)
    }

    fn read(&self, location: &str, offset: u64, length: usize) -> io::Result<Bytes> {
        Python::attach(|py| {
            let arguments = (location, offset, length);
            self.ask(py, arguments).map_err(|error| {
                let said = io::Error::other(error.to_string());
                self.raised
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .get_or_insert(error);
                said
            })
        })
    }
}
