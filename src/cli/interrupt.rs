//! Ends a command safely when it is interrupted while it writes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result};
use unfold::onnx::halt_saves;

use crate::cli::exit_code::End;
use crate::cli::temporary_folders::remove_empty;

/// Whether the program is about to end.
static ENDS: AtomicBool = AtomicBool::new(false);

/// Installs a handler for Ctrl-C, termination and hang-up that ends the program without leaving
/// partial files.
pub(super) fn end_between_saves() -> Result<()> {
    ctrlc::set_handler(|| end()).context("cannot listen for interrupts")
}

/// Ends the program without leaving partial files or empty new folders.
pub(super) fn end() -> ! {
    ENDS.store(true, Ordering::SeqCst);
    let _halt = halt_saves();
    remove_empty();
    std::process::exit(End::Interrupted as i32)
}

/// Waits forever if the program is about to end, so that errors caused by the removal of temporary
/// folders are not reported.
pub(super) fn give_way() {
    while ENDS.load(Ordering::SeqCst) {
        thread::park();
    }
}
