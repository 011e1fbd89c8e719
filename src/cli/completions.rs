//! `unfold completions` and `unfold man`: print files that are installed with the command.

use anyhow::Result;
use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::cli::Cli;
use crate::cli::exit_code::End;
use crate::cli::out;
use crate::cli::usage_errors::misused;

const COMPLETIONS: &str = "\
Examples:
  unfold completions bash > ~/.local/share/bash-completion/completions/unfold
  unfold completions zsh > ~/.zfunc/_unfold
  unfold completions fish > ~/.config/fish/completions/unfold.fish";

const MAN: &str = "\
Examples:
  unfold man | man -l -
  unfold man fuse > ~/.local/share/man/man1/unfold-fuse.1";

/// Prints the completion script of a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = COMPLETIONS)]
pub(super) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// Prints the manual page of unfold, or of one of its commands.
#[derive(Debug, clap::Args)]
#[command(after_help = MAN)]
pub(super) struct ManArgs {
    /// The command, such as `fuse`
    command: Option<String>,
}

/// Prints the completion script of a shell.
pub(super) fn completions(args: &CompletionsArgs) -> Result<End> {
    let mut script = vec![];
    clap_complete::generate(args.shell, &mut Cli::command(), "unfold", &mut script);
    out::print(&String::from_utf8(script)?)?;
    Ok(End::Done)
}

/// Prints a manual page in the format of `man`.
pub(super) fn man(args: &ManArgs) -> Result<End> {
    let mut all = Cli::command();
    all.build();
    let command = match &args.command {
        None => &all,
        Some(name) => all
            .find_subcommand(name)
            .ok_or_else(|| misused(format!("there is no command {name}")))?,
    };
    let mut page = vec![];
    let version = concat!("unfold ", env!("CARGO_PKG_VERSION"));
    Man::new(command.clone())
        .source(version)
        .render(&mut page)?;
    out::print(&as_they_are(&String::from_utf8(page)?))?;
    Ok(End::Done)
}

/// Marks the examples and exit codes in a manual page, so that `man` keeps their line breaks. `man`
/// refills all other lines.
fn as_they_are(page: &str) -> String {
    const EXTRA: &str = ".SH EXTRA\n";
    match page.split_once(EXTRA) {
        Some((before, after)) => {
            let (lines, rest) =
                after.split_at(after.find("\n.SH ").map_or(after.len(), |end| end + 1));
            format!("{before}{EXTRA}.nf\n{lines}.fi\n{rest}")
        }
        None => page.to_owned(),
    }
}
