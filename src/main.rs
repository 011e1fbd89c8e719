//! The command `unfold`.

use std::process::ExitCode;

/// Graphs consist of millions of small strings and lists, on which most systems' allocators spend
/// half the time.
#[cfg(not(feature = "python"))]
#[global_allocator]
static ALLOCATOR: unfold::bench::CountingAllocator<mimalloc::MiMalloc> =
    unfold::bench::CountingAllocator(mimalloc::MiMalloc);

fn main() -> ExitCode {
    unfold::cli::main(std::env::args_os()).into()
}
