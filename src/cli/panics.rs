//! Reports panics in one line.

use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::sync::{Mutex, PoisonError};

/// The message of the last panic.
static LAST: Mutex<String> = Mutex::new(String::new());

/// Stores the message of each panic instead of printing it.
///
/// tract, which infers shapes, panics on some models. These panics are caught where they occur, and
/// are not reported. Any other panic is a defect of unfold, and is reported in one line.
pub(crate) fn kept() {
    panic::set_hook(Box::new(|info| {
        *LAST.lock().unwrap_or_else(PoisonError::into_inner) = describe(info)
    }));
}

/// Runs a command, or the work on one of several models, and catches a panic.
///
/// # Errors
/// The message of a panic.
pub(crate) fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    panic::catch_unwind(AssertUnwindSafe(work)).map_err(|_| {
        let last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        format!("this is a fault of unfold itself: {last}")
    })
}

fn describe(info: &PanicHookInfo) -> String {
    let place = info
        .location()
        .map(|location| format!(" ({}:{})", location.file(), location.line()));
    let message = info.payload_as_str().unwrap_or("it panicked");
    let line = message
        .lines()
        .find(|line| !line.trim().is_empty())
        .unwrap_or_default();
    format!("{line}{}", place.unwrap_or_default())
}
