//! The command line: parses arguments, calls the library, prints results, and returns an exit code.

mod bench;
pub(crate) mod bench_variants;
mod bench_zoo;
pub(crate) mod candidates;
mod command_line;
mod completions;
mod constant_norms;
pub(crate) mod diff;
#[cfg(test)]
mod documented;
pub(crate) mod exit_code;
pub(crate) mod fuse;
mod fuse_many;
pub(crate) mod fuse_report;
mod half;
pub(crate) mod inputs;
pub(crate) mod inspect;
mod interrupt;
mod junit;
pub(crate) mod measure;
pub(crate) mod memory;
mod memory_admission;
mod merged_norms;
#[cfg(test)]
mod messages;
mod model_pair;
mod next_steps;
mod observers;
mod operators;
mod option_values;
pub(crate) mod out;
pub(crate) mod output_path;
pub(crate) mod panics;
mod passes;
mod path;
mod placement;
mod print;
mod progress_bar;
pub(crate) mod prove;
mod reduce;
mod reexecute;
mod resident;
pub(crate) mod rounds;
mod scale_stream;
#[cfg(test)]
mod schema;
pub(crate) mod sites;
mod size_change;
mod slicing;
mod stats;
pub(crate) mod storage;
mod streams;
mod summary;
mod tasks;
mod temporary_folders;
pub(crate) mod tune;
pub(crate) mod tune_report;
pub(crate) mod unused_options;
pub(crate) mod usage_errors;
pub(crate) mod verdicts;
pub(crate) mod verification;
mod zoo;

use std::ffi::OsString;

use anyhow::Result;
use clap::error::{ContextKind, ContextValue};
use clap::{Parser, Subcommand};

use crate::cli::exit_code::{EXIT_CODES, End};
#[cfg(feature = "python")]
pub(crate) use crate::cli::reexecute::started_by;

/// Folds the normalizers of transformers in ONNX files into the linear layers around them.
#[derive(Debug, Parser)]
#[command(name = "unfold", version, max_term_width = 80, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Inspect(inspect::InspectArgs),
    Fuse(fuse::FuseArgs),
    Tune(tune::TuneArgs),
    Prove(prove::ProveArgs),
    Diff(diff::DiffArgs),
    Reduce(reduce::ReduceArgs),
    Print(print::PrintArgs),
    Bench(bench::BenchArgs),
    Passes(passes::PassesArgs),
    Zoo(zoo::ZooArgs),
    Completions(crate::cli::completions::CompletionsArgs),
    Man(crate::cli::completions::ManArgs),
    #[command(hide = true)]
    Resident(resident::ResidentArgs),
}

/// Runs a command line, whose first word is the name of the program, and returns the exit code.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    memory::keep_freed(None);
    memory::take_large_pages();
    panics::kept();
    panics::caught(|| run(arguments)).unwrap_or_else(|fault| {
        out::complain("error", &fault);
        End::Failed as u8
    })
}

fn run(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let command = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli.command,
        Err(error) => return misunderstood(&error),
    };
    let ended = dispatch(&command);
    interrupt::give_way();
    match ended {
        Ok(end) => end as u8,
        Err(error) => {
            out::complain("error", &causes(&error));
            if crate::cli::usage_errors::is_misuse(&error) {
                crate::cli::usage_errors::CODE
            } else {
                End::Failed as u8
            }
        }
    }
}

/// Prints the help, or the usage error that the parser found, and returns the exit code.
fn misunderstood(error: &clap::Error) -> u8 {
    // If printing fails, the failure cannot be reported elsewhere.
    let _ = error.print();
    if let Some(model) = model_as_command(error) {
        let advice = format!("`unfold fuse {model} -o OUT` folds this model");
        out::complain("note", &advice);
    }
    error.exit_code() as u8
}

/// The name of a model that was given in place of a command. `None` for any other error.
fn model_as_command(error: &clap::Error) -> Option<&str> {
    match error.get(ContextKind::InvalidSubcommand)? {
        ContextValue::String(word) if word.ends_with(".onnx") => Some(word),
        _ => None,
    }
}

/// An error with its causes in one line. A cause that the line already contains is left out.
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
    // Only measurements handle an interruption themselves, because they report the results so far.
    if !matches!(command, Command::Bench(_) | Command::Resident(_)) {
        interrupt::end_between_saves()?;
    }
    match command {
        Command::Inspect(args) => inspect::run(args),
        Command::Fuse(args) => fuse_many::run(args),
        Command::Tune(args) => tune::run(args),
        Command::Prove(args) => prove::run(args),
        Command::Diff(args) => diff::run(args),
        Command::Reduce(args) => reduce::run(args),
        Command::Print(args) => print::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Passes(args) => passes::run(args),
        Command::Zoo(args) => zoo::run(args),
        Command::Completions(args) => crate::cli::completions::completions(args),
        Command::Man(args) => crate::cli::completions::man(args),
        Command::Resident(args) => resident::run(args),
    }
}
