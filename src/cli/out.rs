//! Prints to the terminal in a uniform style.

use std::env;
use std::io::{self, ErrorKind, IsTerminal, Write};

use comfy_table::{Attribute, Cell, Color, ContentArrangement, Row, Table, presets};
use serde::Serialize;
use unfold::report::plain;

/// The width of a terminal in characters below which a table that does not fit is written with a
/// paragraph for each row.
const NARROW: u16 = 60;

/// The tone of a piece of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    /// A good result.
    Good,
    /// A bad result.
    Bad,
    /// A heading.
    Head,
}

/// Whether text is coloured: on a terminal, unless `NO_COLOR` is set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Paint(bool);

impl Paint {
    /// Colours the standard output if it is a terminal.
    pub(crate) fn stdout() -> Self {
        Self(io::stdout().is_terminal() && wanted())
    }

    /// Never colours, for output that is not on a terminal.
    #[cfg(any(test, feature = "python"))]
    pub(crate) fn none() -> Self {
        Self(false)
    }

    /// The text in the colour of a tone.
    pub(crate) fn text(self, tone: Tone, text: &str) -> String {
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
    pub(crate) fn cell(self, tone: Tone, text: impl ToString) -> Cell {
        let cell = cell(text);
        match tone {
            _ if !self.0 => cell,
            Tone::Good => cell.fg(Color::DarkGreen),
            Tone::Bad => cell.fg(Color::DarkYellow),
            Tone::Head => cell.add_attribute(Attribute::Bold),
        }
    }

    /// A table without border lines, as wide as the terminal. In a pipe, its width is unlimited,
    /// and each row is one line.
    pub(crate) fn table(self, heads: &[&str]) -> Table {
        let mut table = Table::new();
        table
            .load_style(presets::NOTHING)
            .set_content_arrangement(ContentArrangement::Dynamic);
        if let Some(width) = width_asked_for() {
            table.set_width(width);
        }
        table.set_header(heads.iter().map(|head| self.cell(Tone::Head, head)));
        for (at, column) in table.column_iter_mut().enumerate() {
            column.set_padding((0, if at + 1 == heads.len() { 0 } else { 2 }));
        }
        table
    }
}

/// A table cell, in which names of the model are escaped.
pub(crate) fn cell(text: impl ToString) -> Cell {
    Cell::new(plain(&text.to_string()))
}

/// Writes a table with a line for each row. If the terminal is too narrow for the table, each row
/// becomes a paragraph.
pub(crate) fn lines(table: &Table) -> String {
    let is_too_wide = |width: u16| width < NARROW && width < natural_width(table);
    match table.width() {
        Some(width) if is_too_wide(width) => stacked(table),
        _ => table.trim_fmt() + "\n",
    }
}

/// The width of a table if no cell wraps.
fn natural_width(table: &Table) -> u16 {
    const GAP: u16 = 2;
    let widths = table.column_max_content_widths();
    let sum = widths
        .iter()
        .fold(0, |sum: u16, &width| sum.saturating_add(width + GAP));
    sum.saturating_sub(GAP)
}

/// Writes a paragraph for each row: its first cell, and then each other cell after the heading of
/// its column. A row whose first cell is empty continues the paragraph of the previous row.
fn stacked(table: &Table) -> String {
    let heads: Vec<String> = table.header().into_iter().flat_map(cells).collect();
    let mut text = String::new();
    for row in table.row_iter() {
        for (place, (head, cell)) in heads.iter().zip(cells(row)).enumerate() {
            text += &match (place, &*cell) {
                (_, "") => String::new(),
                (0, title) => format!("{title}\n"),
                (_, value) if head.is_empty() => format!("  {value}\n"),
                (_, value) => format!("  {head}: {value}\n"),
            };
        }
    }
    text
}

/// The texts of the cells of a row.
fn cells(row: &Row) -> Vec<String> {
    row.cell_iter().map(Cell::content).collect()
}

/// The width in the environment variable `COLUMNS`, which overrides the width of the terminal.
fn width_asked_for() -> Option<u16> {
    let columns = env::var("COLUMNS").ok()?;
    columns.parse().ok().filter(|&columns| columns > 0)
}

/// The width of lines on the standard output, from `COLUMNS` or the terminal. `None` if neither
/// gives a width, as for a pipe.
pub(crate) fn width() -> Option<usize> {
    let width = Paint(false).table(&[]).width();
    width.map(usize::from)
}

fn wanted() -> bool {
    let is_set = |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty());
    !is_set("NO_COLOR") && env::var_os("TERM").is_none_or(|terminal| terminal != "dumb")
}

/// Prints text. A closed pipe is not an error.
pub(crate) fn print(text: &str) -> io::Result<()> {
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
pub(crate) fn json(value: &impl Serialize) -> serde_json::Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

/// Prints one line to the standard error stream, after its kind: `error` or `warning`.
pub(crate) fn complain(what: &str, text: &str) {
    // There is no other place to report a failure.
    let _ = writeln!(io::stderr(), "{what}: {}", plain(&text.replace('\n', " ")));
}
