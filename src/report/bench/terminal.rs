//! A report for a terminal of 80 columns.

use std::fmt::Write;

use super::data::{Report, Setting};
use super::table::{self, Cells, Table};
use crate::report::format::{failures, how, machine, memory_sentence, plain, time, verdicts};

/// The maximum width of a line.
const WIDTH: usize = 80;
/// The width that every column of texts may have, and the maximum width of one that is not the
/// last.
const SHORT: usize = 13;
const LONG: usize = 28;
/// The gap between columns.
const GAP: usize = 2;

/// The report as text, at most 80 columns wide unless the reason for a failure is longer.
pub fn terminal(report: &Report) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write(&mut out, report);
    out
}

fn write(out: &mut String, report: &Report) -> std::fmt::Result {
    writeln!(
        out,
        "{}\n{}",
        cut(&report.model, WIDTH),
        cut(&machine(report), WIDTH)
    )?;
    for setting in &report.settings {
        writeln!(out, "\n{}\n", cut(&how(setting), WIDTH))?;
        if setting.ran().next().is_some() {
            lines(out, &table::latency(setting))?;
            writeln!(out)?;
            verdicts(setting)
                .iter()
                .try_for_each(|verdict| writeln!(out, "{}", cut(verdict, WIDTH)))?;
            bars(out, setting)?;
            lines(out, &table::memory(setting))?;
            memory_sentence(setting).map_or(Ok(()), |sentence| wrap(out, &sentence))?;
            writeln!(out)?;
            lines(out, &table::shares(setting))?;
        }
        failures(setting).try_for_each(|failure| writeln!(out, "{}", plain(&failure)))?;
    }
    if !report.sites.is_empty() {
        writeln!(out)?;
        lines(out, &table::sites(report))?;
    }
    if !report.notes.is_empty() {
        writeln!(out)?;
    }
    report.notes.iter().try_for_each(|note| wrap(out, note))
}

/// Writes a table without its details, and without the last number columns if they do not fit. Long
/// texts are shortened.
fn lines(out: &mut String, table: &Table) -> std::fmt::Result {
    let columns = fitted(table);
    let heads: Vec<String> = table
        .columns
        .iter()
        .map(|column| column.head.clone())
        .collect();
    for row in [&heads].into_iter().chain(&table.rows) {
        let cells: Vec<String> = columns.iter().map(|column| column.cell(row)).collect();
        writeln!(out, "{}", cells.join(&" ".repeat(GAP)).trim_end())?;
    }
    Ok(())
}

/// A column of a table on a terminal.
struct FittedColumn {
    /// Its index in the table.
    index: usize,
    is_text: bool,
    /// The width of its widest cell.
    widest: usize,
    /// The assigned width.
    width: usize,
}

impl FittedColumn {
    /// A column with its minimum width.
    fn new(table: &Table, index: usize) -> Self {
        let column = &table.columns[index];
        let cells = table.rows.iter().map(|row| &row[index]);
        let lengths = cells
            .chain([&column.head])
            .map(|cell| plain(cell).chars().count());
        let widest = lengths.max().unwrap_or(0);
        let is_text = column.kind == Cells::Text;
        FittedColumn {
            index,
            is_text,
            widest,
            width: if is_text { widest.min(SHORT) } else { widest },
        }
    }

    fn cell(&self, row: &[String]) -> String {
        let (text, width) = (&row[self.index], self.width);
        match self.is_text {
            true => format!("{:<width$}", cut(text, width)),
            false => format!("{text:>width$}"),
        }
    }
}

/// The columns that fit on a line. Columns of texts share the width that the numbers leave, and a
/// last column of texts takes the remaining width.
fn fitted(table: &Table) -> Vec<FittedColumn> {
    let mut columns: Vec<FittedColumn> = (0..table.columns.len())
        .filter(|&index| table.columns[index].kind != Cells::Detail)
        .map(|index| FittedColumn::new(table, index))
        .collect();
    while spare_width(&columns).is_none()
        && let Some(last) = columns.iter().rposition(|column| !column.is_text)
    {
        columns.remove(last);
    }
    let mut spare = spare_width(&columns).unwrap_or(0);
    let count = columns.len();
    for (place, column) in columns.iter_mut().enumerate() {
        let is_last = place + 1 == count;
        let most = if is_last {
            column.widest
        } else {
            column.widest.min(LONG)
        };
        let more = most.saturating_sub(column.width).min(spare);
        spare -= more;
        column.width += more;
    }
    columns
}

/// The unused width of a line; `None` if the columns do not fit.
fn spare_width(columns: &[FittedColumn]) -> Option<usize> {
    let width: usize = columns.iter().map(|column| column.width + GAP).sum();
    (WIDTH + GAP).checked_sub(width)
}

fn bars(out: &mut String, setting: &Setting) -> std::fmt::Result {
    const LONGEST: usize = 50;
    let medians: Vec<(&str, f64)> = setting
        .ran()
        .map(|(_, name, measurement)| (name, measurement.latency.median.value))
        .collect();
    let slowest = medians
        .iter()
        .map(|&(_, median)| median)
        .fold(f64::MIN_POSITIVE, f64::max);
    writeln!(out)?;
    for (name, median) in medians {
        // The length in eighths of a block character.
        let eighths = (median / slowest * (LONGEST * 8) as f64).round() as usize;
        let tip = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8];
        writeln!(
            out,
            "{:<SHORT$} {}{tip} {}",
            cut(name, SHORT),
            "█".repeat(eighths / 8),
            time(median)
        )?;
    }
    writeln!(out)
}

/// Writes words, with line breaks before they exceed the width.
fn wrap(out: &mut String, text: &str) -> std::fmt::Result {
    let mut column = 0;
    for word in text.split_whitespace().map(plain) {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > WIDTH {
            out.push('\n');
            column = 0;
        }
        if column > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(&word);
        column += length;
    }
    writeln!(out)
}

/// The text, with its middle left out if it is too long, because names differ at both ends.
fn cut(text: &str, width: usize) -> String {
    let text = plain(text);
    let characters: Vec<char> = text.chars().collect();
    if characters.len() <= width {
        return text;
    }
    let (head, tail) = (width / 2, width - width / 2 - 1);
    characters[..head]
        .iter()
        .chain(&['…'])
        .chain(&characters[characters.len() - tail..])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::bench::testing::report;

    #[test]
    fn report_fits_80_columns() {
        let text = terminal(&report());
        for line in text.lines() {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
    }

    #[test]
    fn report_states_verdicts_failures_and_the_peak() {
        let text = terminal(&report());
        assert!(
            text.contains("fused against LN twin: 20.0 % faster"),
            "{text}"
        );
        assert!(
            text.contains("as exported against LN twin: no measurable difference"),
            "{text}"
        );
        assert!(
            text.contains("floor: tract cannot prepare Slice `q`: Invalid axis"),
            "{text}"
        );
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            words.contains("the same in every variant, 24.6 MB: MatMul fc1 holds it"),
            "{text}"
        );
    }

    #[test]
    fn columns_that_do_not_fit_are_dropped() {
        let (fits, does_not) = ("a".repeat(40), "b".repeat(40));
        let columns = vec![
            Cells::Text.under("name"),
            Cells::Detail.under("detail"),
            Cells::Number.under(&fits),
            Cells::Number.under(does_not),
        ];
        let rows = vec![["n".repeat(30), "1".into(), "2".into(), "3".into()].into()];
        let mut out = String::new();
        lines(
            &mut out,
            &Table {
                title: "",
                columns,
                rows,
            },
        )
        .unwrap();
        let name = cut(&"n".repeat(30), LONG);
        assert_eq!(
            out,
            format!("{:<LONG$}  {fits}\n{name}  {:>40}\n", "name", "2")
        );
    }

    #[test]
    fn control_characters_in_names_are_escaped() {
        let mut report = report();
        report.model = "m\u{1b}]0;x\u{7}.onnx".into();
        report.notes = vec!["at `n\u{202e}`".into()];
        let text = terminal(&report);
        assert!(text.starts_with("m\\u{1b}]0;x\\u{7}.onnx\n"), "{text}");
        assert!(text.ends_with("at `n\\u{202e}`\n"), "{text}");
    }

    #[test]
    fn long_names_keep_both_ends() {
        assert_eq!(cut("blocks.0.norm1.very.long.name", 11), "block….name");
    }
}
