//! Runs callbacks of worker threads on the Python thread that waits for them.
//!
//! If each worker thread ran its own callbacks, the C library would keep freed Python objects in a
//! memory cache for each of these threads. The waiting Python thread is idle anyway.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// The interval at which the waiting thread checks signals.
const TICK: Duration = Duration::from_millis(50);

/// A callback that needs the interpreter lock.
type Errand = Box<dyn FnOnce(Python<'_>) + Send>;

/// The queue of callbacks, and the number of waiting threads.
struct Desk {
    waiting: usize,
    errands: VecDeque<Errand>,
}

static DESK: Mutex<Desk> = Mutex::new(Desk {
    waiting: 0,
    errands: VecDeque::new(),
});
/// Signals that a callback was queued, or that a piece of work has ended.
static NEWS: Condvar = Condvar::new();

fn desk() -> MutexGuard<'static, Desk> {
    DESK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a callback on a waiting Python thread, or on this thread if no Python thread waits. `None`
/// if neither is possible.
///
/// The caller must not hold the interpreter lock.
pub(super) fn fetched<T: Send + 'static>(
    fetch: impl FnOnce(Python<'_>) -> T + Send + 'static,
) -> Option<T> {
    let (reply, answer) = channel();
    // The caller waits for the reply.
    let errand: Errand = Box::new(move |py| drop(reply.send(fetch(py))));
    let mut desk = desk();
    if desk.waiting > 0 {
        desk.errands.push_back(errand);
        NEWS.notify_all();
        drop(desk);
    } else {
        drop(desk);
        Python::attach(errand);
    }
    answer.recv().ok()
}

/// Sends the result of a piece of work to the waiting thread.
pub(super) fn ended<T>(with: T, told: &Sender<T>) {
    // The receiver may have given up.
    let _ = told.send(with);
    let _desk = desk();
    NEWS.notify_all();
}

/// Waits for the result of a piece of work, and meanwhile runs its callbacks and checks signals.
///
/// `None` if the work ended without a result.
///
/// # Errors
/// The error of a signal check. The work is abandoned then.
pub(super) fn until_ended<T: Send>(
    py: Python<'_>,
    mut told: Receiver<T>,
    mut look_around: impl FnMut() -> PyResult<()>,
) -> PyResult<Option<T>> {
    desk().waiting += 1;
    let mut looked = Instant::now();
    let outcome = loop {
        // The reference moves into the closure, because threads cannot share a receiver.
        let asked = &mut told;
        let (told, errand) = py.detach(move || {
            let mut told = Err(TryRecvError::Empty);
            let nothing = |desk: &mut Desk| {
                told = asked.try_recv();
                matches!(told, Err(TryRecvError::Empty)) && desk.errands.is_empty()
            };
            let waited = NEWS.wait_timeout_while(desk(), TICK, nothing);
            let (mut desk, _) = waited.unwrap_or_else(PoisonError::into_inner);
            (told, desk.errands.pop_front())
        });
        if let Some(errand) = errand {
            errand(py);
        }
        match told {
            Err(TryRecvError::Empty) => {}
            told => break Ok(told.ok()),
        }
        if looked.elapsed() >= TICK {
            looked = Instant::now();
            if let Err(interrupt) = look_around() {
                break Err(interrupt);
            }
        }
    };
    // The last waiting thread runs the remaining callbacks.
    let left = {
        let mut desk = desk();
        desk.waiting -= 1;
        if desk.waiting == 0 {
            std::mem::take(&mut desk.errands)
        } else {
            VecDeque::new()
        }
    };
    left.into_iter().for_each(|errand| errand(py));
    outcome
}
