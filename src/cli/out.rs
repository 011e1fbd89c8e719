//! Prints to the terminal in a uniform style.

use std::env;
use std::io::{self, ErrorKind, IsTerminal, Write};

use comfy_table::{Attribute, Cell, Color, ContentArrangement, Table, presets};
use serde::Serialize;
use unfold::report::plain;

/// The width of a table if no terminal limits it, and the minimum width.
const WIDTH: u16 = 80;
const NARROW: u16 = 40;

/// The tone of a piece of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// A good result.
    Good,
    /// A bad result.
    Bad,
    /// A heading.
    Head,
}

/// Whether text is coloured: on a terminal, unless `NO_COLOR` is set.
#[derive(Debug, Clone, Copy)]
pub struct Paint(bool);

impl Paint {
    /// Colours the standard output if it is a terminal.
    pub fn stdout() -> Self {
        Self(io::stdout().is_terminal() && wanted())
    }

    /// Never colours, for output that is not on a terminal.
    #[cfg(any(test, feature = "python"))]
    pub fn none() -> Self {
        Self(false)
    }

    /// The text in the colour of a tone.
    pub fn text(self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Good => 32,
            Tone::Bad => 33,
            Tone::Head => 1,
        };
        if self.0 {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    /// A table cell in the colour of a tone.
    pub fn cell(self, tone: Tone, text: impl ToString) -> Cell {
        let cell = cell(text);
        match tone {
            _ if !self.0 => cell,
            Tone::Good => cell.fg(Color::DarkGreen),
            Tone::Bad => cell.fg(Color::DarkYellow),
            Tone::Head => cell.add_attribute(Attribute::Bold),
        }
    }

    /// A table without lines, as wide as the terminal.
    pub fn table(self, heads: &[&str]) -> Table {
        let mut table = Table::new();
        table
            .load_style(presets::NOTHING)
            .set_content_arrangement(ContentArrangement::Dynamic);
        if table.width().is_none_or(|width| width < NARROW) {
            table.set_width(WIDTH);
        }
        table.set_header(heads.iter().map(|head| self.cell(Tone::Head, head)));
        for (at, column) in table.column_iter_mut().enumerate() {
            column.set_padding((0, if at + 1 == heads.len() { 0 } else { 2 }));
        }
        table
    }
}

/// A table cell, in which names of the model are escaped.
pub fn cell(text: impl ToString) -> Cell {
    Cell::new(plain(&text.to_string()))
}

/// A table as text.
pub fn lines(table: &Table) -> String {
    table.trim_fmt() + "\n"
}

fn wanted() -> bool {
    let is_set = |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty());
    !is_set("NO_COLOR") && env::var_os("TERM").is_none_or(|terminal| terminal != "dumb")
}

/// Prints text. A closed pipe is not an error.
pub fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// A value as indented JSON.
pub fn json(value: &impl Serialize) -> serde_json::Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

/// Prints one line to the standard error stream, after its kind: `error` or `warning`.
pub fn complain(what: &str, text: &str) {
    // There is no other place to report a failure.
    let _ = writeln!(io::stderr(), "{what}: {}", plain(&text.replace('\n', " ")));
}
