//! Sets when memory is taken from the operating system and returned to it.

use std::time::Duration;

use libmimalloc_sys::{mi_option_eager_commit_delay, mi_option_set, mi_option_t};

/// `mi_option_purge_delay`, which the bindings do not name: the milliseconds until free memory is
/// returned to the operating system, or -1 for never.
const PURGE_DELAY: mi_option_t = 15;

/// Keeps freed memory in the process for `time`, or forever, so that the next step can use it. If
/// it were returned to the operating system, every page would have to be cleared again. This takes
/// up to a third of the time for a large graph.
pub(crate) fn keep_freed(time: Option<Duration>) {
    // SAFETY: sets an integer, which threads may read at any time.
    unsafe { mi_option_set(PURGE_DELAY, time.map_or(-1, |time| time.as_millis() as _)) };
}

/// Lets the allocator use large pages if the operating system provides them on request. By default,
/// mimalloc requests no large pages for the first gigabyte of a new thread. Small pages there would
/// cost a few percent of the time for a graph of a million nodes.
pub(crate) fn take_large_pages() {
    // SAFETY: sets an integer, which threads may read at any time.
    unsafe { mi_option_set(mi_option_eager_commit_delay, 0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purge_delay_has_the_option_number_of_mimalloc() {
        // SAFETY: reads an integer.
        let values = [PURGE_DELAY - 1, PURGE_DELAY]
            .map(|option| unsafe { libmimalloc_sys::mi_option_get(option) });
        assert_eq!(values[1], 10);
        assert_ne!(values[0], 10);
    }
}
