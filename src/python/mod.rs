//! The extension module of the Python package `unfold_onnx`. Models are passed as bytes or paths.
//! Results are passed as the JSON of the command, from which the package builds its objects.

mod call_limit;
mod calls;
mod errors;
mod gil_worker;
mod memory;
mod python_callbacks;
mod source;
mod tuning;

use std::time::Duration;

use mimalloc::MiMalloc;
use pyo3::prelude::*;

use crate::bench::{Child, CountingAllocator};
use crate::cli;

/// The allocator, which the command line program uses too.
#[global_allocator]
static ALLOCATOR: CountingAllocator<MiMalloc> = CountingAllocator(MiMalloc);

/// The time for which a call keeps freed memory for the next one. Threads that fold many small
/// models would otherwise all wait for the operating system.
const KEPT: Duration = Duration::from_secs(1);

/// Runs the command line, and returns its exit code.
#[pyfunction]
fn main(py: Python<'_>, arguments: Vec<std::ffi::OsString>) -> u8 {
    py.detach(|| cli::main(arguments))
}

#[pymodule]
mod _native {
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::calls::{Chosen, Folded, Parts, bench, fuse, inspect, judge, plan, prove, verify};
    #[pymodule_export]
    use super::errors::{
        CertificateError, DiffersError, ExternalDataError, InternalError, InvalidModelError,
        TooLargeError, UnfoldError, UnverifiedError,
    };
    #[pymodule_export]
    use super::main;
    #[pymodule_export]
    use super::source::{ModelSource, Wire};
    #[pymodule_export]
    use super::tuning::Candidates;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        super::init(module.py())
    }
}

/// Makes process-wide settings at import.
fn init(py: Python<'_>) -> PyResult<()> {
    cli::panics::kept();
    cli::memory::keep_freed(Some(KEPT));
    let program: Option<std::path::PathBuf> = py.import("sys")?.getattr("executable")?.extract()?;
    if let Some(program) = program {
        let arguments = ["-m", "unfold_onnx", "resident"].map(Into::into).into();
        cli::started_by(Child { program, arguments });
    }
    Ok(())
}
