//! This program, started again: to measure a model in a process of its own.

#[cfg(feature = "python")]
use std::sync::OnceLock;

use anyhow::{Context, Result};
use unfold::bench::Child;

/// The command that starts this program, where it is a library of another.
#[cfg(feature = "python")]
static STARTED_BY: OnceLock<Child> = OnceLock::new();

/// Says what starts it, as an interpreter does.
#[cfg(feature = "python")]
pub fn started_by(child: Child) {
    // The first call wins; later ones say the same.
    let _ = STARTED_BY.set(child);
}

/// How it is started to run one model.
pub fn resident() -> Result<Child> {
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
