//! A limit of concurrent calls: as many as there are cores.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// How many work.
static WORKING: Mutex<usize> = Mutex::new(0);
/// That one of them has ended.
static ENDED: Condvar = Condvar::new();

/// The longest wait: a running call may itself wait for this one, when a resolver folds a model.
const PATIENCE: Duration = Duration::from_secs(1);

/// The turn of one who works. More of them at once than there are cores take more memory, and with it more time.
pub struct CallPermit(());

impl CallPermit {
    /// Waits for it.
    pub fn take() -> Self {
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
