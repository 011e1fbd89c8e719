//! Starts this program again, to measure a model in its own process.

#[cfg(feature = "python")]
use std::sync::OnceLock;

use anyhow::{Context, Result};
use unfold::bench::Child;

/// The command that starts this program when it is a library in another process.
#[cfg(feature = "python")]
static STARTED_BY: OnceLock<Child> = OnceLock::new();

/// Sets the command that starts this program, such as an interpreter.
#[cfg(feature = "python")]
pub(crate) fn started_by(child: Child) {
    // The first call wins; later calls pass the same command.
    let _ = STARTED_BY.set(child);
}

/// The command that starts this program to run one model.
pub(super) fn resident() -> Result<Child> {
    #[cfg(feature = "python")]
    if let Some(child) = STARTED_BY.get() {
        return Ok(child.clone());
    }
    let program = std::env::current_exe().context("cannot find the program itself")?;
    Ok(Child {
        program,
        arguments: vec!["resident".into()],
    })
}
