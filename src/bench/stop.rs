//! Ending a measurement early.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Asks a measurement to end early with what it has. Clones ask the same one.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Asks.
    pub fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether somebody asked.
    pub fn asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
