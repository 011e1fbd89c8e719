//! Where a model comes from.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyMemoryView;

use super::errors::ExternalDataError;
use crate::error::Result;
use crate::onnx::Model;
use crate::onnx::external::Resolver;

/// A model that was not read yet.
#[pyclass(frozen, name = "Source", module = "unfold_onnx._native")]
pub struct ModelSource {
    from: ReadFrom,
}

/// What it is read from.
#[derive(Clone)]
enum ReadFrom {
    File { path: PathBuf, others: Vec<PathBuf> },
    Memory { bytes: Bytes, reach: Outside },
}

/// Where a model in memory has the data that is outside of it.
#[derive(Clone)]
enum Outside {
    Nothing,
    Folder(PathBuf),
    Asked(Arc<Callback>),
}

impl ReadFrom {
    /// Reads it, if its data is there: whoever forgot to say where should not be told that there is nothing to fold.
    fn read(self) -> Result<Model> {
        let model = match self {
            Self::File { path, others } => Model::open_reaching(path, others)?,
            Self::Memory { bytes, reach } => match reach {
                Outside::Nothing => Model::from_bytes(bytes)?,
                Outside::Folder(folder) => Model::from_bytes_in(bytes, folder)?,
                Outside::Asked(resolver) => Model::from_bytes_with(bytes, resolver)?,
            },
        };
        model.find_data()?;
        Ok(model)
    }
}

#[pymethods]
impl ModelSource {
    /// A file, whose tensors may have data below these folders too.
    #[staticmethod]
    fn file(path: PathBuf, others: Vec<PathBuf>) -> Self {
        Self { from: ReadFrom::File { path, others } }
    }

    /// Bytes, which are not copied.
    #[staticmethod]
    fn memory(data: PyBackedBytes, folder: Option<PathBuf>, resolver: Option<Py<PyAny>>) -> Self {
        Self::of(Bytes::from_owner(data), folder, resolver)
    }
}

/// A message that is written piece by piece, so that there is never all of it twice.
#[pyclass(module = "unfold_onnx._native")]
pub struct Wire {
    bytes: Vec<u8>,
}

#[pymethods]
impl Wire {
    /// One with room for so many bytes.
    #[new]
    fn new(room: usize) -> Self {
        Self { bytes: Vec::with_capacity(room) }
    }

    /// Writes what is next.
    fn put(&mut self, data: &[u8]) {
        self.bytes.extend_from_slice(data);
    }

    /// How much was written.
    fn __len__(&self) -> usize {
        self.bytes.len()
    }

    /// Ends a message that began at a place, before which its length belongs.
    fn close(&mut self, at: usize) -> PyResult<()> {
        let length = self.bytes.len().checked_sub(at).ok_or_else(|| PyValueError::new_err("past the end"))?;
        let mut prefix = vec![];
        prost::encoding::encode_varint(length as u64, &mut prefix);
        self.bytes.splice(at..at, prefix);
        Ok(())
    }

    /// What was written, as a model. Nothing is left here.
    fn source(&mut self, folder: Option<PathBuf>, resolver: Option<Py<PyAny>>) -> ModelSource {
        ModelSource::of(std::mem::take(&mut self.bytes).into(), folder, resolver)
    }
}

impl ModelSource {
    fn of(bytes: Bytes, folder: Option<PathBuf>, resolver: Option<Py<PyAny>>) -> Self {
        let reach = match (folder, resolver) {
            (_, Some(call)) => Outside::Asked(Arc::new(Callback { call, raised: Mutex::default() })),
            (Some(folder), None) => Outside::Folder(folder),
            (None, None) => Outside::Nothing,
        };
        Self { from: ReadFrom::Memory { bytes, reach } }
    }

    /// What reads it, for another thread.
    pub fn reader(&self) -> impl FnOnce() -> Result<Model> + Send + use<> {
        let from = self.from.clone();
        move || from.read()
    }

    /// What came of work with this model: an error, if its resolver raised one.
    pub fn settled<T>(&self, py: Python<'_>, result: PyResult<T>) -> PyResult<T> {
        let ReadFrom::Memory { reach: Outside::Asked(resolver), .. } = &self.from else { return result };
        let Some(cause) = resolver.raised.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return result;
        };
        let error = result.err().unwrap_or_else(|| ExternalDataError::new_err(cause.to_string()));
        error.set_cause(py, Some(cause));
        Err(error)
    }
}

/// A function of Python that is asked for data: `(location, offset, length)`.
struct Callback {
    call: Py<PyAny>,
    /// What it raised first.
    raised: Mutex<Option<PyErr>>,
}

impl fmt::Debug for Callback {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("Callback")
    }
}

impl Resolver for Callback {
    fn length(&self, _: &str) -> io::Result<u64> {
        // It is not asked: what is too short shows itself when it is read.
        Ok(i64::MAX as u64)
    }

    fn read(&self, location: &str, offset: u64, length: usize) -> io::Result<Bytes> {
        let ask = |py: Python<'_>| -> PyResult<Bytes> {
            let found = self.call.bind(py).call1((location, offset, length))?;
            if let Ok(bytes) = found.extract::<PyBackedBytes>() {
                return Ok(Bytes::from_owner(bytes));
            }
            let copy = PyMemoryView::from(&found)?.call_method0("tobytes")?;
            Ok(Bytes::from_owner(copy.extract::<PyBackedBytes>()?))
        };
        Python::attach(|py| {
            ask(py).map_err(|error| {
                let said = io::Error::other(error.to_string());
                self.raised.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                said
            })
        })
    }
}
