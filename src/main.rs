//! The command `unfold`.

mod cli;

use std::process::ExitCode;

use unfold::bench::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn main() -> ExitCode {
    cli::panics::contained(cli::run)
}
