//! When freed memory goes back to the system.

use std::time::Duration;

#[cfg(feature = "python")]
use libmimalloc_sys::mi_collect;
use libmimalloc_sys::{mi_option_set, mi_option_t};

/// `mi_option_purge_delay`, for which the bindings have no name: the milliseconds until free memory goes back to the
/// system, or -1 for never.
const PURGE_DELAY: mi_option_t = 15;

/// Keeps what one step frees for the next one, which needs it at once, for so long, or for ever. Between the two the system
/// would clear every page of it: up to a third of the time that a large graph takes.
pub fn keep_freed(time: Option<Duration>) {
    // SAFETY: sets a number, which threads may read at any time.
    unsafe { mi_option_set(PURGE_DELAY, time.map_or(-1, |time| time.as_millis() as _)) };
}

/// Gives back what this thread, those that work for it, and Python have freed, for a process that needs it for other things.
#[cfg(feature = "python")]
pub fn give_back_freed() {
    // SAFETY: touches nothing but free memory.
    let collect = || unsafe { mi_collect(true) };
    rayon::broadcast(|_| collect());
    collect();
    // What the C library keeps of Python's bytes, which were read and dropped.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: as above.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_is_the_one_that_mimalloc_sets_to_ten_milliseconds() {
        // SAFETY: reads a number.
        let values =
            [PURGE_DELAY - 1, PURGE_DELAY].map(|option| unsafe { libmimalloc_sys::mi_option_get(option) });
        assert_eq!(values[1], 10);
        assert_ne!(values[0], 10);
    }
}
