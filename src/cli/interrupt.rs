//! Interruption of a command while it writes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result};
use unfold::onnx::halt_saves;

use crate::cli::exit_code::End;
use crate::cli::temporary_folders::remove_empty;

/// Whether the program is about to end.
static ENDS: AtomicBool = AtomicBool::new(false);

/// Lets Ctrl-C, and being told to terminate or hang up, end the program with no file half written.
pub fn end_between_saves() -> Result<()> {
    ctrlc::set_handler(|| end()).context("cannot listen for interrupts")
}

/// Ends the program, with no file half written, and no folder made for nothing.
pub fn end() -> ! {
    ENDS.store(true, Ordering::SeqCst);
    let _halt = halt_saves();
    remove_empty();
    std::process::exit(End::Interrupted as i32)
}

/// Waits for the end, where that is near: what failed meanwhile, since its folder was taken back, is nobody's error.
pub fn give_way() {
    while ENDS.load(Ordering::SeqCst) {
        thread::park();
    }
}
