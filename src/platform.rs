//! The threads and the clock of the target platform.

use std::time::{Duration, Instant};

/// Whether threads can be started. WebAssembly has none, and its only thread does all work.
pub(crate) const HAS_THREADS: bool = !cfg!(target_family = "wasm");

/// Whether the time can be read. In WebAssembly without an operating system, reading it panics.
const HAS_CLOCK: bool = !cfg!(all(target_family = "wasm", target_os = "unknown"));

/// Measures time. Without a clock, no time passes.
pub(crate) struct Stopwatch(Option<Instant>);

impl Stopwatch {
    /// A stopwatch that begins now.
    pub(crate) fn start() -> Self {
        Self(HAS_CLOCK.then(Instant::now))
    }

    /// The time since the stopwatch began.
    pub(crate) fn elapsed(&self) -> Duration {
        self.0.map_or(Duration::ZERO, |begin| begin.elapsed())
    }
}
