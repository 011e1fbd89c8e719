//! The command `unfold`.

use std::process::ExitCode;

/// Graphs are millions of small strings and lists, on which the allocators of most systems spend half the time.
#[cfg(not(feature = "python"))]
#[global_allocator]
static ALLOCATOR: unfold::bench::CountingAllocator<mimalloc::MiMalloc> =
    unfold::bench::CountingAllocator(mimalloc::MiMalloc);

fn main() -> ExitCode {
    unfold::cli::main(std::env::args_os()).into()
}
