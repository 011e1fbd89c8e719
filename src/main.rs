//! The command `unfold`.

mod cli;

use std::process::ExitCode;

use mimalloc::MiMalloc;
use unfold::bench::CountingAllocator;

/// Graphs are millions of small strings and lists, on which the allocators of most systems spend half the time.
#[global_allocator]
static ALLOCATOR: CountingAllocator<MiMalloc> = CountingAllocator(MiMalloc);

fn main() -> ExitCode {
    cli::panics::contained(cli::run)
}
