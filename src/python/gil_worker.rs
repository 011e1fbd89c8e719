//! Runs work without the interpreter lock while Python waits, and reacts to Ctrl-C.

use std::any::Any;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::Result;
use pyo3::prelude::*;

use crate::cli::panics::caught;
use crate::python::call_limit::CallPermit;
use crate::python::errors::{InternalError, UnfoldError, raised};
use crate::python::memory::give_back_freed;
use crate::python::{KEPT, python_callbacks};

/// The size of the worker's stack in bytes, equal to that of a main thread.
const STACK: usize = 8 << 20;

/// The channel between the waiting thread and the worker.
#[derive(Default)]
pub(super) struct Attended {
    given_up: AtomicBool,
    at: Mutex<Option<(String, usize, usize)>>,
}

/// The panic payload of a worker that was abandoned.
struct GivenUp;

impl Attended {
    /// Reports progress. Unwinds if the work was abandoned.
    pub(super) fn tell(&self, stage: &str, done: usize, of: usize) {
        self.pass_on();
        *self.at.lock().unwrap_or_else(PoisonError::into_inner) =
            Some((stage.to_owned(), done, of));
    }

    /// Unwinds if the work was abandoned. The worker holds nothing that needs cleaning up.
    pub(super) fn pass_on(&self) {
        if self.given_up.load(Ordering::Relaxed) {
            resume_unwind(Box::new(GivenUp) as Box<dyn Any + Send>);
        }
    }
}

/// Runs `work` in a new thread while this thread checks signals and reports progress.
///
/// Ctrl-C returns to the prompt immediately; the work ends at its next step.
pub(super) fn attend<T: Send + 'static>(
    py: Python<'_>,
    progress: Option<&Bound<'_, PyAny>>,
    work: impl FnOnce(&Attended) -> Result<T> + Send + 'static,
) -> PyResult<T> {
    check_process()?;
    let attended = Arc::new(Attended::default());
    let (end, ends) = channel();
    let working = attended.clone();
    let builder = thread::Builder::new()
        .name("unfold".into())
        .stack_size(STACK);
    builder.spawn(move || {
        let turn = CallPermit::take();
        let begun = Instant::now();
        let done = caught(|| work(&working));
        // A long call may have freed much memory. The memory is returned on this thread, so that
        // other calls need not wait.
        if begun.elapsed() > KEPT {
            give_back_freed();
        }
        drop(turn);
        python_callbacks::ended(done, &end);
    })?;
    match python_callbacks::until_ended(py, ends, || look_around(py, &attended, progress)) {
        Ok(Some(Ok(Ok(done)))) => Ok(done),
        Ok(Some(Ok(Err(error)))) => Err(raised(&error)),
        Ok(Some(Err(fault))) => Err(InternalError::new_err(fault)),
        Ok(None) => Err(InternalError::new_err("its thread is gone")),
        Err(interrupt) => {
            attended.given_up.store(true, Ordering::Relaxed);
            Err(interrupt)
        }
    }
}

/// Checks signals and reports progress.
fn look_around(
    py: Python<'_>,
    attended: &Attended,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    py.check_signals()?;
    let at = attended
        .at
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    if let (Some(progress), Some(at)) = (progress, at) {
        progress.call1(at)?;
    }
    Ok(())
}

/// Refuses to work in a process that was forked after threads had started. A fork copies no
/// threads, so the forked process would wait for these threads forever.
pub(super) fn check_process() -> PyResult<()> {
    static PROCESS: OnceLock<u32> = OnceLock::new();
    if *PROCESS.get_or_init(std::process::id) == std::process::id() {
        return Ok(());
    }
    let how =
        "start processes with the method `spawn` or `forkserver`, or begin with unfold in them";
    Err(UnfoldError::new_err(format!(
        "this process was forked from one whose threads it lacks: {how}"
    )))
}
