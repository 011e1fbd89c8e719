//! A command that is told to end while it writes.

use anyhow::{Context, Result};
use unfold::onnx::halt_saves;

use super::end::End;
use super::made::remove_empty;

/// Lets Ctrl-C, and being told to terminate or hang up, end the program with no file half written.
pub fn end_between_saves() -> Result<()> {
    ctrlc::set_handler(|| end()).context("cannot listen for interrupts")
}

/// Ends the program, with no file half written, and no folder made for nothing.
pub fn end() -> ! {
    let _halt = halt_saves();
    remove_empty();
    std::process::exit(End::Interrupted as i32)
}
