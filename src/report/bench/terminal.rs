//! A report for a terminal.

use std::fmt::Write;

use super::data::{Report, Setting};
use super::lead::lead;
use super::sentences::{failures, how, machine, memory_sentence, verdicts};
use super::table::{self, Cells, Table};
use crate::report::format::{plain, time};

/// The maximum width of a sentence in characters. On a wider terminal, texts in a table may be
/// wider than `LONG`.
const WIDTH: usize = 80;
/// The width that each column of text gets in any case if its cells need it (`SHORT`), and the
/// maximum width of a column of text that is not the last (`LONG`).
const SHORT: usize = 13;
const LONG: usize = 28;
/// The gap between columns.
const GAP: usize = 2;
/// The width of a terminal in characters below which each row of a table becomes a paragraph.
const NARROW: usize = 60;

/// Writes the report as text. Tables are at most `width` characters wide, and sentences at most 80.
pub(crate) fn terminal_of(report: &Report, width: usize) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write(&mut out, report, width);
    out
}

fn write(out: &mut String, report: &Report, width: usize) -> std::fmt::Result {
    writeln!(
        out,
        "{}\n{}",
        cut(&report.model, width),
        cut(&machine(report), width)
    )?;
    for one in &report.settings {
        writeln!(out, "\n{}", cut(&how(one), width))?;
        setting(out, one, width)?;
        failures(one).try_for_each(|failure| writeln!(out, "{}", plain(&failure)))?;
    }
    if !report.sites.is_empty() {
        writeln!(out)?;
        lines(out, &table::sites(report), width)?;
    }
    if !report.notes.is_empty() {
        writeln!(out)?;
    }
    let mut notes = report.notes.iter();
    notes.try_for_each(|note| wrap(out, note, width))
}

/// Writes the measurements of one setting: the gain in a sentence, then the tables.
fn setting(out: &mut String, setting: &Setting, width: usize) -> std::fmt::Result {
    lead(setting).map_or(Ok(()), |sentence| wrap(out, &sentence, width))?;
    writeln!(out)?;
    if setting.ran().next().is_none() {
        return Ok(());
    }
    lines(out, &table::latency(setting), width)?;
    writeln!(out)?;
    verdicts(setting)
        .iter()
        .try_for_each(|verdict| writeln!(out, "{}", cut(verdict, width)))?;
    bars(out, setting)?;
    lines(out, &table::memory(setting), width)?;
    memory_sentence(setting).map_or(Ok(()), |sentence| wrap(out, &sentence, width))?;
    writeln!(out)?;
    lines(out, &table::shares(setting), width)
}

/// Writes a table without its columns of kind [`Cells::Detail`]. If the table is too wide, its last
/// columns of numbers are left out, and texts are cut. On a narrow terminal, each row is a
/// paragraph.
fn lines(out: &mut String, table: &Table, width: usize) -> std::fmt::Result {
    if width < NARROW {
        return stacked(out, table, width);
    }
    let columns = fitted(table, width);
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

/// Writes a paragraph for each row: its name, and then each number after the heading of its column.
fn stacked(out: &mut String, table: &Table, width: usize) -> std::fmt::Result {
    for row in &table.rows {
        for (place, (column, text)) in table.columns.iter().zip(row).enumerate() {
            match place {
                0 => writeln!(out, "{}", cut(text, width))?,
                _ => writeln!(out, "  {}: {}", plain(&column.head), plain(text))?,
            }
        }
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

/// The columns of a table that fit on a line. Columns of text share the width that the columns of
/// numbers leave, from left to right.
fn fitted(table: &Table, width: usize) -> Vec<FittedColumn> {
    let mut columns: Vec<FittedColumn> = (0..table.columns.len())
        .filter(|&index| table.columns[index].kind != Cells::Detail)
        .map(|index| FittedColumn::new(table, index))
        .collect();
    while spare_width(&columns, width).is_none()
        && let Some(last) = columns.iter().rposition(|column| !column.is_text)
    {
        columns.remove(last);
    }
    let mut spare = spare_width(&columns, width).unwrap_or(0);
    let long = if width > WIDTH { usize::MAX } else { LONG };
    let count = columns.len();
    for (place, column) in columns.iter_mut().enumerate() {
        let is_last = place + 1 == count;
        let most = if is_last {
            column.widest
        } else {
            column.widest.min(long)
        };
        let more = most.saturating_sub(column.width).min(spare);
        spare -= more;
        column.width += more;
    }
    columns
}

/// The width that is left after these columns. `None` if the columns do not fit.
fn spare_width(columns: &[FittedColumn], width: usize) -> Option<usize> {
    let taken: usize = columns.iter().map(|column| column.width + GAP).sum();
    width.saturating_add(GAP).checked_sub(taken)
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

/// Breaks a text into lines of at most `width` characters.
fn wrap(out: &mut String, text: &str, width: usize) -> std::fmt::Result {
    let width = width.min(WIDTH);
    let mut column = 0;
    for word in text.split_whitespace().map(plain) {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > width {
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

/// Shortens a text to `width` by leaving out its middle, because names differ at both ends.
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
        let text = terminal_of(&report(), WIDTH);
        for line in text.lines() {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
    }

    #[test]
    fn a_pipe_has_whole_names_and_all_numbers() {
        let mut report = report();
        report.settings[0].variants[2].name = "a".repeat(60);
        let text = terminal_of(&report, usize::MAX);
        assert!(
            text.contains(&format!("{}  80.0 ms", "a".repeat(60))),
            "{text}"
        );
    }

    #[test]
    fn a_narrow_terminal_has_a_paragraph_for_each_row() {
        let text = terminal_of(&report(), 40);
        assert!(text.contains("fused\n  median: 80.0 ms\n"), "{text}");
    }

    #[test]
    fn the_gain_comes_before_the_tables() {
        let text = terminal_of(&report(), WIDTH);
        let lead = text.find("fused is 20 % faster than LN twin; peak memory");
        let table = text.find("variant  ");
        assert!(lead.is_some() && lead < table, "{text}");
    }

    #[test]
    fn says_what_the_numbers_mean() {
        let text = terminal_of(&report(), WIDTH);
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
            WIDTH,
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
        let text = terminal_of(&report, WIDTH);
        assert!(text.starts_with("m\\u{1b}]0;x\\u{7}.onnx\n"), "{text}");
        assert!(text.ends_with("at `n\\u{202e}`\n"), "{text}");
    }

    #[test]
    fn long_names_keep_both_ends() {
        assert_eq!(cut("blocks.0.norm1.very.long.name", 11), "block….name");
    }
}
