//! Measures the peak of the resident set of a process that runs only one variant.

use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child as Process, Command, Stdio};
use std::thread;
use std::time::Duration;

use super::memory;
use super::stop::Stop;
use crate::onnx::Model;
use crate::run::{Dims, Engine, Failure, random};

/// The command of a process that runs a model and prints the peak of its resident memory in bytes.
#[derive(Debug, Clone)]
pub struct Child {
    /// The program.
    pub program: PathBuf,
    /// The first arguments. After them come the path of the model, the number of threads, and each
    /// size as `name=size`.
    pub arguments: Vec<OsString>,
}

impl Child {
    /// Returns the peak that the process reports; `None` if the process cannot be started, fails,
    /// or is stopped.
    pub(super) fn resident_peak(
        &self,
        model: &Model,
        dims: &Dims,
        threads: usize,
        stop: &Stop,
    ) -> Option<u64> {
        let folder = tempfile::tempdir().ok()?;
        let path = folder.path().join("variant.onnx");
        model.save(&path).ok()?;
        let mut process = Running(self.command(&path, dims, threads).spawn().ok()?);
        while process.0.try_wait().ok()?.is_none() {
            if stop.asked() {
                return None;
            }
            thread::sleep(Duration::from_millis(5));
        }
        let mut printed = String::new();
        process.0.stdout.take()?.read_to_string(&mut printed).ok()?;
        printed.trim().parse().ok()
    }

    fn command(&self, model: &Path, dims: &Dims, threads: usize) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .arg(model)
            .arg(threads.to_string());
        command.args(dims.iter().map(|(name, size)| format!("{name}={size}")));
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        command
    }
}

/// A process that is killed when this value is dropped.
struct Running(Process);

impl Drop for Running {
    fn drop(&mut self) {
        // Both calls fail only if the process has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a model with random inputs, and returns the peak of the resident set of this process during
/// the runs, in bytes.
///
/// The peak is reset before the runs, so that memory for loading and preparing the model counts
/// only if it is still allocated. If the operating system cannot reset the peak, the peak since the
/// start of the process is returned. `None` if the operating system does not report the peak.
///
/// # Errors
/// If tract cannot run the model.
pub(crate) fn measure_here(
    model: &Model,
    dims: &Dims,
    threads: usize,
) -> Result<Option<u64>, Failure> {
    let engine = Engine::load_with(model, dims, threads)?;
    let inputs: Vec<_> = random(engine.inputs(), 0)
        .into_iter()
        .map(Into::into)
        .collect();
    let mut session = engine.session()?;
    session.run(&inputs)?;
    let _ = memory::forget_resident_peak();
    session.run(&inputs)?;
    Ok(memory::resident_peak())
}
