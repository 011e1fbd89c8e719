//! A command that is told to end while it writes.

use anyhow::{Context, Result};
use unfold::onnx::halt_saves;

use super::end::End;

/// Lets Ctrl-C, and being told to terminate or hang up, end the program with no file half written.
pub fn end_between_saves() -> Result<()> {
    ctrlc::set_handler(|| end()).context("cannot listen for interrupts")
}

/// Ends the program, with no file half written.
pub fn end() -> ! {
    let _halt = halt_saves();
    std::process::exit(End::Interrupted as i32)
}
