//! Which step a command is at, for people who watch it.

use unfold::progress::Progress;

/// The steps of a command, shown on the standard error stream where they last.
pub struct Steps(Progress);

impl Steps {
    /// For a command; nothing is shown if `quiet`.
    pub fn new(command: &str, quiet: bool) -> Self {
        Self(Progress::new(command, quiet))
    }

    /// A step of which nothing says how much of it is done.
    pub fn begin(&self, step: &str) {
        self.0.set(step, 0.0);
    }

    /// What [`unfold::FuseOptions`] tells its steps to.
    pub fn progress(&self) -> impl Fn(&str, usize, usize) {
        |step, done, of| self.0.set(step, done as f64 / of.max(1) as f64)
    }
}
