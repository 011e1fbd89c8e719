//! The command line: parse, call the library, print, exit code.

mod bench;
mod bench_zoo;
mod fuse;
mod fused;
mod inspect;
mod interrupt;
mod operators;
pub mod out;
pub mod panics;
mod sites;
mod steps;
mod target;
mod variants;
mod zoo;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Folds the normalizers of transformers in ONNX files into the linear layers around them.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Inspect(inspect::InspectArgs),
    Fuse(fuse::FuseArgs),
    Bench(bench::BenchArgs),
    Zoo(zoo::ZooArgs),
}

const EXIT_CODES: &str = "\
Exit codes:
  0  done; also where there was nothing to fold
  1  a file could not be read, is no valid model, or could not be written
  2  the command line was not understood
  3  the folded model computes something else; nothing was written
  4  the folded model could not be verified, and --verify require was given; nothing was written
  130  interrupted; what was there is left, or the result is complete";

/// How a command can end without having failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Done,
    Differs,
    Unverified,
}

impl From<End> for ExitCode {
    fn from(end: End) -> Self {
        match end {
            End::Done => ExitCode::SUCCESS,
            End::Differs => ExitCode::from(3),
            End::Unverified => ExitCode::from(4),
        }
    }
}

/// Runs the command that the process was started with.
pub fn run() -> ExitCode {
    dispatch(&Cli::parse().command).unwrap_or_else(|error| {
        out::complain("error", &causes(&error));
        ExitCode::FAILURE
    })
}

/// An error and what caused it, each said once: many errors of the library tell their causes themselves.
fn causes(error: &anyhow::Error) -> String {
    let mut line = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !line.contains(&cause) {
            line = format!("{line}: {cause}");
        }
    }
    line
}

fn dispatch(command: &Command) -> Result<ExitCode> {
    match command {
        Command::Inspect(args) => inspect::run(args).map(ExitCode::from),
        Command::Fuse(args) => fuse::run(args).map(ExitCode::from),
        Command::Bench(args) => bench::run(args, &variants::of),
        Command::Zoo(args) => zoo::run(args),
    }
}
