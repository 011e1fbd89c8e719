//! A report for files and pages that read Markdown.

use std::fmt::Write;

use super::data::{Report, Setting};
use super::lead::lead;
use super::overview;
use super::sentences::{failures, how, machine, memory_sentence, verdicts};
use super::table::{self, Cells, Column, Table};
use crate::report::format::plain;

/// The report as Markdown tables.
pub(crate) fn markdown(report: &Report) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write(&mut out, report);
    out
}

/// The ratios and the memory of each setting of all reports, as Markdown.
pub(crate) fn overview_markdown(reports: &[Report]) -> String {
    let made_with = reports
        .first()
        .map(|report| format!("{}.\n\n", escape(&machine(report))));
    let tables = [overview::ratios(reports), overview::memory(reports)];
    made_with.unwrap_or_default() + &tables.map(|table| lines(&table)).join("\n")
}

fn write(out: &mut String, report: &Report) -> std::fmt::Result {
    writeln!(
        out,
        "# {}\n\n{}.",
        escape(&report.model),
        escape(&machine(report))
    )?;
    report
        .settings
        .iter()
        .try_for_each(|one| setting(out, one))?;
    if !report.sites.is_empty() {
        let sites = table::sites(report);
        write!(out, "\n## {}\n\n{}", sites.title, lines(&sites))?;
    }
    report
        .notes
        .iter()
        .try_for_each(|note| writeln!(out, "\n{}", escape(note)))
}

fn setting(out: &mut String, setting: &Setting) -> std::fmt::Result {
    writeln!(out, "\n## {}", escape(&how(setting)))?;
    if setting.ran().next().is_some() {
        if let Some(sentence) = lead(setting) {
            writeln!(out, "\n**{}**", escape(&sentence))?;
        }
        writeln!(out, "\n{}", lines(&table::latency(setting)))?;
        verdicts(setting)
            .iter()
            .try_for_each(|verdict| writeln!(out, "- {}", escape(verdict)))?;
        write!(out, "\n{}", lines(&table::memory(setting)))?;
        if let Some(sentence) = memory_sentence(setting) {
            writeln!(out, "\n{}", escape(&sentence))?;
        }
        write!(out, "\n{}", lines(&table::shares(setting)))?;
    }
    failures(setting)
        .try_for_each(|failure| writeln!(out, "\n**Not measured.** {}", escape(&failure)))
}

/// A table with all its columns.
fn lines(table: &Table) -> String {
    let mut text = line(table.columns.iter().map(|column| escape(&column.head)));
    text += &line(
        table
            .columns
            .iter()
            .map(|column| rule(column.kind).to_owned()),
    );
    for row in &table.rows {
        let columns = table.columns.iter().zip(row);
        text += &line(columns.map(|(column, text)| cell(column, text)));
    }
    text
}

fn line(cells: impl Iterator<Item = String>) -> String {
    format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
}

/// The rule below a heading, which sets the alignment of the column.
fn rule(kind: Cells) -> &'static str {
    match kind {
        Cells::Text => "---",
        Cells::Number | Cells::Detail => "---:",
    }
}

fn cell(column: &Column, text: &str) -> String {
    match column.kind {
        Cells::Text => escape(text),
        Cells::Number | Cells::Detail => text.to_owned(),
    }
}

/// The characters of Markdown markup.
const MARKUP: [char; 10] = ['|', '<', '>', '*', '_', '`', '[', ']', '\\', '#'];

/// The text, with markup characters escaped.
fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for character in plain(text).chars() {
        if MARKUP.contains(&character) {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::bench::testing::report;

    #[test]
    fn markdown_tables_have_equal_rows() {
        let text = markdown(&report());
        let tables = text
            .split("\n\n")
            .filter(|block| block.trim_start().starts_with('|'));
        for table in tables {
            let lines = table.lines().filter(|line| line.starts_with('|'));
            let counts: Vec<usize> = lines
                .map(|line| line.replace("\\|", "").matches('|').count())
                .collect();
            assert!(counts.iter().all(|&count| count == counts[0]), "{table}");
        }
    }

    #[test]
    fn markdown_escapes_markup_in_names() {
        assert!(markdown(&report()).starts_with("# vit \\<small\\>.onnx\n"));
    }
}
