//! What work in other threads has the thread fetch that waits for it in Python.
//!
//! Each thread has memory of its own for what it copies out of Python's objects, and the C library keeps that. The one that
//! waits has nothing else to do.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// How often the one who waits looks around.
const TICK: Duration = Duration::from_millis(50);

/// What is to be done by one who has hold of the interpreter.
type Errand = Box<dyn FnOnce(Python<'_>) + Send>;

/// What is to be done, and how many wait who can.
struct Desk {
    waiting: usize,
    errands: VecDeque<Errand>,
}

static DESK: Mutex<Desk> = Mutex::new(Desk { waiting: 0, errands: VecDeque::new() });
/// That there is something to be done, or that some work has ended.
static NEWS: Condvar = Condvar::new();

fn desk() -> MutexGuard<'static, Desk> {
    DESK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has something fetched from Python, or fetches it where nobody waits. `None` where nobody could.
///
/// Nobody calls this who has hold of the interpreter.
pub fn fetched<T: Send + 'static>(fetch: impl FnOnce(Python<'_>) -> T + Send + 'static) -> Option<T> {
    let (reply, answer) = channel();
    // The one who asks waits for it.
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

/// Tells those who wait how some work has ended.
pub fn ended<T>(with: T, told: &Sender<T>) {
    // Nobody may be there to take it.
    let _ = told.send(with);
    let _desk = desk();
    NEWS.notify_all();
}

/// Waits until some work has [`ended`], and fetches what it asks for meanwhile. Looks around now and then.
///
/// `None` where nobody is left to tell.
///
/// # Errors
/// What looking around ends with. The work is not waited for then.
pub fn until_ended<T: Send>(
    py: Python<'_>,
    mut told: Receiver<T>,
    mut look_around: impl FnMut() -> PyResult<()>,
) -> PyResult<Option<T>> {
    desk().waiting += 1;
    let mut looked = Instant::now();
    let outcome = loop {
        // Not shared, as no receiver can be.
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
    // The last one leaves nothing undone.
    let left = {
        let mut desk = desk();
        desk.waiting -= 1;
        if desk.waiting == 0 { std::mem::take(&mut desk.errands) } else { VecDeque::new() }
    };
    left.into_iter().for_each(|errand| errand(py));
    outcome
}
