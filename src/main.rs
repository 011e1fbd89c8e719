//! The command `unfold`.

use std::process::ExitCode;

/// A graph consists of millions of small strings and lists. With the allocators of most systems,
/// half of the time is spent on allocation, so the command uses mimalloc.
#[cfg(not(feature = "python"))]
#[global_allocator]
static ALLOCATOR: unfold::bench::CountingAllocator<mimalloc::MiMalloc> =
    unfold::bench::CountingAllocator(mimalloc::MiMalloc);

fn main() -> ExitCode {
    unfold::cli::main(std::env::args_os()).into()
}
