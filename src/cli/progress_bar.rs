//! Shows the progress of a command on a terminal.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use unfold::report::plain;

/// The time after which progress is shown.
const PATIENCE: Duration = Duration::from_secs(1);

/// The progress of a command, as a bar on the standard error stream. It appears only on a terminal
/// and after a second, and disappears at the end.
pub(super) struct StepProgress {
    bar: ProgressBar,
    done: Arc<AtomicBool>,
}

impl StepProgress {
    /// The progress of a command; hidden if `quiet`.
    pub(super) fn new(command: &str, quiet: bool) -> Self {
        let bar = ProgressBar::with_draw_target(Some(1), ProgressDrawTarget::hidden());
        // The template is a constant that indicatif can parse. If it could not, its default style
        // would be used.
        if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix} {wide_bar} {msg}") {
            bar.set_style(style);
        }
        bar.set_prefix(plain(command));
        let done = Arc::new(AtomicBool::new(false));
        if !quiet {
            let (weak, done) = (bar.downgrade(), done.clone());
            thread::spawn(move || {
                thread::sleep(PATIENCE);
                if let Some(bar) = weak.upgrade().filter(|_| !done.load(Ordering::Relaxed)) {
                    bar.set_draw_target(ProgressDrawTarget::stderr());
                    bar.enable_steady_tick(Duration::from_millis(100));
                }
            });
        }
        Self { bar, done }
    }

    /// Begins a step whose progress is unknown.
    pub(super) fn begin(&self, step: &str) {
        self.progress()(step, 0, 1);
    }

    /// The progress callback for the library.
    pub(super) fn progress(&self) -> impl Fn(&str, usize, usize) {
        |step, done, of| {
            self.bar.set_message(plain(step));
            self.bar.set_length(of.max(1) as u64);
            self.bar.set_position(done as u64);
        }
    }
}

impl Drop for StepProgress {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        self.bar.finish_and_clear();
    }
}
