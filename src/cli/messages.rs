//! Generates the page `docs/messages.md`, which lists all messages in the sources, so that they can
//! be read together.
//!
//! `UPDATE_MESSAGES=1 cargo test --lib messages` writes the page.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use clap::{Arg, Command, CommandFactory};
use unfold::refusal::Reason;

use super::Cli;

const HEAD: &str = "\
# Messages

All errors, refusals, warnings and lines of help, as the sources have them; a test keeps this page up to date. Parts in
braces are filled in. Every message is one line on the standard error stream, after `error:`, `warning:` or `note:`. A
refusal is in the report instead, since it is no error: [refusals.md](refusals.md) explains each.
";

/// The calls that have a message as an argument.
const CALLS: [&str; 8] = [
    "not_onnx(",
    "misused(",
    "bail!(",
    "anyhow!(",
    "ensure!(",
    "complain(",
    "let why =",
    "let reason =",
];

#[test]
fn messages_page_is_that_of_the_sources() {
    let path = root().join("docs/messages.md");
    let page = page();
    if std::env::var_os("UPDATE_MESSAGES").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let current = fs::read_to_string(&path).unwrap_or_default();
    let advice = "UPDATE_MESSAGES=1 cargo test --lib messages";
    assert!(current == page, "docs/messages.md is old: {advice}");
}

fn page() -> String {
    let mut page = HEAD.to_owned();
    page += &section("Errors of the library", &attributes("src/error.rs"));
    page += &section("Files", &in_folder("src/onnx"));
    page += &section("Errors and warnings of the command", &in_folder("src/cli"));
    page += "\n## Refusals\n\n| reason | message |\n|---|---|\n";
    for (reason, message) in Reason::all().zip(attributes("src/refusal.rs")) {
        let option = reason.option().map(|option| format!("; {option}"));
        let text = cell(&format!("{message}{}", option.unwrap_or_default()));
        page += &format!("| `{}` | {text} |\n", reason.name());
    }
    let cli = Cli::command();
    for command in cli
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
    {
        page += &help(command);
    }
    page
}

/// A list of messages under a heading.
fn section<'m>(title: &str, messages: impl IntoIterator<Item = &'m String>) -> String {
    let mut text = format!("\n## {title}\n\n");
    for message in messages {
        text += &format!("- {}\n", cell(message));
    }
    text
}

/// The help of a command: its first line, and a row for each option.
fn help(command: &Command) -> String {
    let about = command.get_about().map(ToString::to_string);
    let mut text = format!(
        "\n## `unfold {}`\n\n{}\n\n| option | help |\n|---|---|\n",
        command.get_name(),
        cell(&about.unwrap_or_default())
    );
    for argument in command.get_arguments() {
        let line = argument.get_help().map(ToString::to_string);
        let line = line.unwrap_or_default();
        text += &format!("| `{}` | {} |\n", name(argument), cell(&line));
    }
    text
}

/// The long name of an option with the name of its value, or the name of an operand.
fn name(argument: &Arg) -> String {
    let value = argument.get_value_names().and_then(|names| names.first());
    let value = value.filter(|_| argument.get_action().takes_values());
    match (argument.get_long(), value) {
        (Some(long), Some(value)) => format!("--{long} {}", value.replace('|', " or ")),
        (Some(long), None) => format!("--{long}"),
        (None, Some(value)) => value.to_string(),
        (None, None) => argument.get_id().to_string(),
    }
}

/// The messages of an enumeration, in the order of its variants.
fn attributes(file: &str) -> Vec<String> {
    let source = fs::read_to_string(root().join(file)).unwrap();
    let attributes = source.split("#[error(").skip(1);
    attributes
        .filter_map(|rest| literals(rest).into_iter().next())
        .collect()
}

/// The messages in the sources of a folder, sorted and without duplicates.
fn in_folder(folder: &str) -> BTreeSet<String> {
    let mut messages = BTreeSet::new();
    for path in sources(&root().join(folder)) {
        let source = fs::read_to_string(path).unwrap();
        let code = source.split("#[cfg(test)]").next().unwrap_or_default();
        let code: Vec<&str> = code.lines().filter(is_code).collect();
        let code = code.join("\n");
        for call in CALLS {
            let arguments = code.split(call).skip(1).map(literals);
            messages.extend(
                arguments.filter_map(|texts| texts.into_iter().find(|text| text.contains(' '))),
            );
        }
    }
    messages
}

fn is_code(line: &&str) -> bool {
    !line.trim_start().starts_with("//")
}

/// The quoted texts of a statement.
fn literals(rest: &str) -> Vec<String> {
    let statement = rest.split(";\n").next().unwrap_or_default();
    let mut parts = vec![];
    let mut text = String::new();
    let (mut is_inside, mut is_escaped) = (false, false);
    for letter in statement.chars() {
        match letter {
            _ if is_escaped => {
                is_escaped = false;
                text.push(letter);
            }
            '\\' if is_inside => is_escaped = true,
            '"' => {
                if is_inside {
                    parts.push(std::mem::take(&mut text));
                }
                is_inside = !is_inside;
            }
            _ if is_inside => text.push(letter),
            _ => {}
        }
    }
    let on_one_line = |text: &String| text.split_whitespace().collect::<Vec<_>>().join(" ");
    parts.iter().map(on_one_line).collect()
}

/// The Rust sources of a folder, sorted by name.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    for other in ["messages.rs", "documented.rs", "tract_quirks.rs"] {
        paths.retain(|path| !path.ends_with(other));
    }
    paths.sort();
    paths
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Escapes a text for a cell of a Markdown table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
        .replace('<', "\\<")
        .replace('*', "\\*")
        .replace('\n', " ")
}
