//! Limits the number of concurrent calls to the number of cores.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// The number of running calls.
static WORKING: Mutex<usize> = Mutex::new(0);
/// Signals that a running call has ended.
static ENDED: Condvar = Condvar::new();

/// The maximum wait. It is limited because a running call may itself wait for this one, if its
/// resolver folds a model.
const PATIENCE: Duration = Duration::from_secs(1);

/// The permit of a running call. Calls are limited because more calls than cores would take more
/// memory, and therefore more time.
pub(super) struct CallPermit(());

impl CallPermit {
    /// Waits until fewer calls run than there are cores, but at most one second.
    pub(super) fn take() -> Self {
        let cores = rayon::current_num_threads();
        let working = WORKING.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut working, _) = ENDED
            .wait_timeout_while(working, PATIENCE, |working| *working >= cores)
            .unwrap_or_else(PoisonError::into_inner);
        *working += 1;
        Self(())
    }
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        *WORKING.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        ENDED.notify_one();
    }
}
