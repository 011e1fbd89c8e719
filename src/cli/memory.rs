//! How memory is taken from the system, and when it goes back.

use std::time::Duration;

use libmimalloc_sys::{mi_option_eager_commit_delay, mi_option_set, mi_option_t};

/// `mi_option_purge_delay`, for which the bindings have no name: the milliseconds until free memory goes back to the
/// system, or -1 for never.
const PURGE_DELAY: mi_option_t = 15;

/// Keeps what one step frees for the next one, which needs it at once, for so long, or for ever. Between the two the system
/// would clear every page of it: up to a third of the time that a large graph takes.
pub fn keep_freed(time: Option<Duration>) {
    // SAFETY: sets a number, which threads may read at any time.
    unsafe { mi_option_set(PURGE_DELAY, time.map_or(-1, |time| time.as_millis() as _)) };
}

/// Takes memory in large pages where the system has them for those that ask. mimalloc does not ask where a thread begins: a
/// gigabyte that a new thread is the first to want stays in small ones, which costs a graph of a million nodes a few percent
/// of its time.
pub fn take_large_pages() {
    // SAFETY: sets a number, which threads may read at any time.
    unsafe { mi_option_set(mi_option_eager_commit_delay, 0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purge_delay_has_the_option_number_of_mimalloc() {
        // SAFETY: reads a number.
        let values = [PURGE_DELAY - 1, PURGE_DELAY]
            .map(|option| unsafe { libmimalloc_sys::mi_option_get(option) });
        assert_eq!(values[1], 10);
        assert_ne!(values[0], 10);
    }
}
