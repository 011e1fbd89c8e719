//! Progress of what lasts, for people who watch a terminal.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How long something may last before it is shown.
const PATIENCE: Duration = Duration::from_secs(1);

/// A bar on the standard error stream, which appears only if it is a terminal and the work lasts more than
/// a second, and is gone when the work is done.
///
/// ```
/// use unfold::progress::Progress;
///
/// let progress = Progress::new("loading", false);
/// for part in 0..10 {
///     progress.set("weights", part as f64 / 10.0);
/// }
/// drop(progress);
/// ```
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    done: Arc<AtomicBool>,
}

impl Progress {
    /// How finely a bar is divided.
    const STEPS: u64 = 1000;

    /// A bar for some work; one that never appears if `quiet`.
    pub fn new(work: &str, quiet: bool) -> Self {
        let bar = ProgressBar::with_draw_target(Some(Self::STEPS), ProgressDrawTarget::hidden());
        // The template is a constant that indicatif can read; its default is as good where it cannot.
        if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix} {wide_bar} {msg}") {
            bar.set_style(style);
        }
        bar.set_prefix(work.to_owned());
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

    /// What is being done now, and how much of the whole is done, from 0 to 1.
    pub fn set(&self, what: &str, part: f64) {
        self.bar.set_message(what.to_owned());
        self.bar.set_position((part.clamp(0.0, 1.0) * Self::STEPS as f64) as u64);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        self.bar.finish_and_clear();
    }
}
