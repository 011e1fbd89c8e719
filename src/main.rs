//! The command `unfold`.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::panics::contained(cli::run)
}
