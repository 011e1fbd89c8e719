//! The command `unfold`.

use std::process::ExitCode;

use libmimalloc_sys::{mi_option_set, mi_option_t};

/// Graphs are millions of small strings and lists, on which the allocators of most systems spend half the time.
#[cfg(not(feature = "python"))]
#[global_allocator]
static ALLOCATOR: unfold::bench::CountingAllocator<mimalloc::MiMalloc> =
    unfold::bench::CountingAllocator(mimalloc::MiMalloc);

/// `mi_option_purge_delay`, for which the bindings have no name: the milliseconds until free memory goes back to the
/// system, or -1 for never.
const PURGE_DELAY: mi_option_t = 15;

fn main() -> ExitCode {
    // What one step frees the next one needs at once. Between the two the system would clear every page of it: up to a
    // third of the time that a large graph takes.
    // SAFETY: sets a number, and nothing else runs yet.
    unsafe { mi_option_set(PURGE_DELAY, -1) };
    unfold::cli::main(std::env::args_os()).into()
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
