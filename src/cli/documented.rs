//! Tests that the parser accepts the commands and options in the documentation and in the help.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory, Parser};

use super::Cli;

/// Options of other programs that the documentation names.
const OF_OTHERS: [&str; 12] = [
    "--all-features",
    "--all-targets",
    "--crate-type",
    "--features",
    "--folder",
    "--lib",
    "--mark",
    "--networks",
    "--planted",
    "--release",
    "--steps",
    "--verdict",
];

#[test]
fn each_documented_command_is_taken() {
    let commands = documented();
    assert!(commands.len() > 100, "{commands:#?}");
    let mistakes: Vec<String> = commands.iter().filter_map(mistake).collect();
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
}

#[test]
fn each_documented_option_exists() {
    let known = all_options(&Cli::command());
    let mut unknown = vec![];
    for page in pages() {
        let text = without_blocks(&read(&page));
        for code in inline_codes(&text) {
            let option = code.split([' ', '=']).next().unwrap_or_default();
            let is_known = known.contains(option) || OF_OTHERS.contains(&option);
            if option.starts_with("--") && !is_known {
                unknown.push(format!("{}: {option}", page.display()));
            }
        }
    }
    assert!(unknown.is_empty(), "{unknown:#?}");
}

/// A command line in the documentation.
#[derive(Debug)]
struct DocumentedCommand {
    place: String,
    words: Vec<String>,
    /// Whether the command may be incomplete, because it is part of a sentence.
    is_partial: bool,
}

/// Collects all documented commands: in code blocks and sentences of the pages, and in the examples
/// of the help.
fn documented() -> Vec<DocumentedCommand> {
    let mut commands = vec![];
    for page in pages() {
        let (text, place) = (read(&page), page.display().to_string());
        for line in blocks(&text).lines() {
            commands.extend(command(&place, line, false));
        }
        for code in inline_codes(&without_blocks(&text)) {
            commands.extend(command(&place, &code, true));
        }
    }
    for subcommand in Cli::command().get_subcommands() {
        let place = format!("unfold {} --help", subcommand.get_name());
        let help = subcommand.get_after_help().map(ToString::to_string);
        for line in help.unwrap_or_default().lines() {
            commands.extend(command(&place, line, false));
        }
    }
    commands
}

/// Parses a line as a command of unfold, up to a pipe, a redirection or a comment. `None` for other
/// lines.
fn command(place: &str, line: &str, is_partial: bool) -> Option<DocumentedCommand> {
    let line = line.trim().trim_start_matches("$ ");
    let line = line.replace("cargo run -- ", "unfold ");
    let line = line.replace("target/fresh/bin/unfold ", "unfold ");
    let words = line.strip_prefix("unfold ")?;
    let words = [" | ", " > ", "  #"].iter().fold(words, |words, end| {
        words.split(end).next().unwrap_or_default()
    });
    let words: Vec<String> = shell_words(words);
    Some(DocumentedCommand {
        place: place.to_owned(),
        words,
        is_partial,
    })
}

/// Splits a line into words, and removes single quotes.
fn shell_words(line: &str) -> Vec<String> {
    let mut words = vec![];
    for (place, part) in line.split('\'').enumerate() {
        match place % 2 {
            0 => words.extend(part.split_whitespace().map(str::to_owned)),
            _ => words.push(part.to_owned()),
        }
    }
    words
}

/// The reason why the parser rejects a command. `None` if it accepts the command, or if a partial
/// command only lacks arguments.
fn mistake(command: &DocumentedCommand) -> Option<String> {
    let words = command.words.iter().map(|word| filled(word));
    let all = ["unfold".to_owned()].into_iter().chain(words);
    let error = Cli::try_parse_from(all).err()?;
    let is_shown = !error.use_stderr();
    let is_left_out = command.is_partial && names_only_known(&command.words);
    let line = error.to_string();
    (!is_shown && !is_left_out).then(|| format!("{}: {:?}: {line}", command.place, command.words))
}

/// Replaces a placeholder of the documentation by a number or a name.
fn filled(word: &str) -> String {
    match word {
        "[COMMAND]" => "fuse".to_owned(),
        "SHELL" => "bash".to_owned(),
        _ => word.replace("2^-K", "2^-5"),
    }
}

/// Whether the first word is a command, and each long option belongs to it.
fn names_only_known(words: &[String]) -> bool {
    let all = Cli::command();
    let Some(subcommand) = words.first().and_then(|name| all.find_subcommand(name)) else {
        return false;
    };
    let known = options(subcommand);
    let mut given = words.iter().filter(|word| word.starts_with("--"));
    given.all(|word| known.contains(word.split('=').next().unwrap_or_default()))
}

/// The long names of the options of a command.
fn options(command: &Command) -> BTreeSet<String> {
    let mut options = BTreeSet::from(["--help".to_owned(), "--version".to_owned()]);
    for argument in command.get_arguments() {
        let names = argument.get_long_and_visible_aliases();
        let names = names.into_iter().flatten();
        options.extend(names.map(|name| format!("--{name}")));
    }
    options
}

/// The options of all commands.
fn all_options(command: &Command) -> BTreeSet<String> {
    command.get_subcommands().flat_map(options).collect()
}

/// The paths of README.md and of every page in `docs`.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let entries = fs::read_dir(root.join("docs")).unwrap();
    let mut pages: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    pages.push(root.join("README.md"));
    pages.sort();
    pages
}

fn read(page: &Path) -> String {
    fs::read_to_string(page).unwrap()
}

/// The contents of the fenced code blocks of a page.
fn blocks(text: &str) -> String {
    let parts = text.split("```").skip(1).step_by(2);
    parts.collect::<Vec<_>>().join("\n")
}

/// A page without its fenced code blocks.
fn without_blocks(text: &str) -> String {
    text.split("```").step_by(2).collect()
}

/// The inline code of a page, each piece on one line.
fn inline_codes(text: &str) -> Vec<String> {
    let codes = text.split('`').skip(1).step_by(2);
    let on_one_line = |code: &str| code.split_whitespace().collect::<Vec<_>>().join(" ");
    codes.map(on_one_line).collect()
}
