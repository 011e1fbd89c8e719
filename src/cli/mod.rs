//! The command line: parse, call the library, print, exit code.

mod bench;
mod bench_zoo;
mod end;
mod fuse;
mod fuse_many;
mod fused;
mod inputs;
mod inspect;
mod interrupt;
mod judged;
mod measure;
mod operators;
mod out;
pub mod panics;
mod prove;
mod resident;
mod room;
mod scaling;
mod sites;
mod steps;
mod storage;
mod streams;
mod target;
mod variants;
mod zoo;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use end::{EXIT_CODES, End};

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
    Prove(prove::ProveArgs),
    Bench(bench::BenchArgs),
    Zoo(zoo::ZooArgs),
    #[command(hide = true)]
    Resident(resident::ResidentArgs),
}

/// Runs the command that the process was started with.
pub fn run() -> ExitCode {
    dispatch(&Cli::parse().command).map_or_else(
        |error| {
            out::complain("error", &causes(&error));
            ExitCode::FAILURE
        },
        ExitCode::from,
    )
}

/// An error and what caused it, each said once: many errors of the library tell their causes themselves.
pub fn causes(error: &anyhow::Error) -> String {
    let mut line = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !line.contains(&cause) {
            line = format!("{line}: {cause}");
        }
    }
    line
}

fn dispatch(command: &Command) -> Result<End> {
    match command {
        Command::Inspect(args) => inspect::run(args),
        Command::Fuse(args) => fuse_many::run(args),
        Command::Prove(args) => prove::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Zoo(args) => zoo::run(args),
        Command::Resident(args) => resident::run(args),
    }
}
