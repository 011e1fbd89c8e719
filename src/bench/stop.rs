//! A flag that ends a measurement early.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A request to end a measurement early and keep the samples so far. Clones share the request.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Requests that the measurement end.
    pub fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the measurement should end.
    pub fn asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
