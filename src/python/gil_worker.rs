//! Work that Python waits for: without the interpreter's lock, with an ear for Ctrl-C.

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

/// Bytes of stack of the thread that works, as a main thread has them.
const STACK: usize = 8 << 20;

/// The channel between the waiting thread and the worker.
#[derive(Default)]
pub struct Attended {
    given_up: AtomicBool,
    at: Mutex<Option<(String, usize, usize)>>,
}

/// The panic payload of a worker that was given up.
struct GivenUp;

impl Attended {
    /// Reports progress; ends the work if it was given up.
    pub fn tell(&self, stage: &str, done: usize, of: usize) {
        self.pass_on();
        *self.at.lock().unwrap_or_else(PoisonError::into_inner) =
            Some((stage.to_owned(), done, of));
    }

    /// Ends the work by unwinding if it was given up: it holds nothing that needs cleaning up.
    pub fn pass_on(&self) {
        if self.given_up.load(Ordering::Relaxed) {
            resume_unwind(Box::new(GivenUp) as Box<dyn Any + Send>);
        }
    }
}

/// Works in a thread of its own while this one looks after signals and progress.
///
/// Ctrl-C returns to the prompt at once; the work ends at its next step.
pub fn attend<T: Send + 'static>(
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
        // A call that outlasts the cache of freed memory has a lot of it, which other calls should
        // not wait for.
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

/// Checks signals, and reports progress.
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

/// Refuses to work in a process that was forked after there were threads, which did not follow: it would wait for them.
pub fn check_process() -> PyResult<()> {
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
