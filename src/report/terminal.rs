//! A report for a terminal of 80 columns.

use std::fmt::Write;

use super::data::{Class, Measurement, Report, Setting};
use super::format::{bytes, failures, how, maybe_bytes, memory_sentence, ratio, references, time, verdicts};

/// How wide a line is at most.
const WIDTH: usize = 80;
/// How wide the column of names is.
const NAME: usize = 13;

/// The report as text, at most 80 columns wide unless a reason for a failure is longer.
pub fn terminal(report: &Report) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write(&mut out, report);
    out
}

fn write(out: &mut String, report: &Report) -> std::fmt::Result {
    writeln!(out, "{}", cut(&report.model, WIDTH))?;
    let machine = &report.machine;
    writeln!(
        out,
        "{}",
        cut(&format!("{}, {} cores, {}", machine.processor, machine.cores, machine.system), WIDTH)
    )?;
    for setting in &report.settings {
        writeln!(out, "\n{}\n", cut(&how(setting), WIDTH))?;
        let ran: Vec<(&str, &Measurement)> =
            setting.variants.iter().filter_map(|v| Some((v.name.as_str(), v.measurement()?))).collect();
        if !ran.is_empty() {
            latency(out, setting, &ran)?;
            bars(out, &ran)?;
            memory(out, &ran)?;
            if let Some(sentence) = memory_sentence(setting) {
                wrap(out, &sentence)?;
            }
            shares(out, &ran)?;
        }
        failures(setting).try_for_each(|failure| writeln!(out, "{failure}"))?;
    }
    if !report.sites.is_empty() {
        writeln!(out)?;
    }
    for site in &report.sites {
        let line = format!(
            "{:<28} {:<12} {:>5}  {}",
            cut(&site.name, 28),
            cut(&site.kind, 12),
            site.channels,
            site.outcome
        );
        writeln!(out, "{}", cut(&line, WIDTH))?;
    }
    if !report.notes.is_empty() {
        writeln!(out)?;
    }
    report.notes.iter().try_for_each(|note| wrap(out, note))
}

fn latency(out: &mut String, setting: &Setting, ran: &[(&str, &Measurement)]) -> std::fmt::Result {
    let references = references(setting);
    write!(out, "{:<NAME$} {:>8} {:>8} {:>9}", "", "median", "p95", "samples/s")?;
    // Two references fit; more are in the other reports.
    let shown = references.len().min(2);
    for reference in &references[..shown] {
        write!(out, " {:>18}", cut(&format!("/ {reference}"), 18))?;
    }
    writeln!(out)?;
    for (name, measurement) in ran {
        let latency = &measurement.latency;
        let (median, p95) = (time(latency.median.value), time(latency.p95));
        write!(out, "{:<NAME$} {median:>8} {p95:>8} {:>9.1}", cut(name, NAME), latency.throughput)?;
        for compared in &measurement.ratios[..shown] {
            let text = if compared.reference == *name { "1".into() } else { ratio(compared) };
            write!(out, " {text:>18}")?;
        }
        writeln!(out)?;
    }
    writeln!(out)?;
    for verdict in verdicts(setting) {
        writeln!(out, "{}", cut(&verdict, WIDTH))?;
    }
    Ok(())
}

fn bars(out: &mut String, ran: &[(&str, &Measurement)]) -> std::fmt::Result {
    const LONGEST: usize = 50;
    let slowest =
        ran.iter().map(|(_, measurement)| measurement.latency.median.value).fold(f64::MIN_POSITIVE, f64::max);
    writeln!(out)?;
    for (name, measurement) in ran {
        let median = measurement.latency.median.value;
        // Eighths of a block.
        let eighths = (median / slowest * (LONGEST * 8) as f64).round() as usize;
        let tip = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8];
        writeln!(out, "{:<NAME$} {}{tip} {}", cut(name, NAME), "█".repeat(eighths / 8), time(median))?;
    }
    writeln!(out)
}

fn memory(out: &mut String, ran: &[(&str, &Measurement)]) -> std::fmt::Result {
    let heads = ["live peak", "heap peak", "allocated", "resident", "file", "weights"];
    write!(out, "{:<NAME$}", "")?;
    heads.iter().try_for_each(|head| write!(out, " {head:>10}"))?;
    writeln!(out)?;
    for (name, measurement) in ran {
        let memory = &measurement.memory;
        let cells = [
            bytes(memory.live_peak),
            maybe_bytes(memory.heap_peak),
            maybe_bytes(memory.allocated),
            maybe_bytes(memory.resident_peak),
            bytes(measurement.file_bytes),
            bytes(measurement.weight_bytes),
        ];
        write!(out, "{:<NAME$}", cut(name, NAME))?;
        cells.iter().try_for_each(|cell| write!(out, " {cell:>10}"))?;
        writeln!(out)?;
    }
    Ok(())
}

fn shares(out: &mut String, ran: &[(&str, &Measurement)]) -> std::fmt::Result {
    write!(out, "\n{:<NAME$}", "")?;
    Class::ALL.iter().try_for_each(|class| write!(out, " {:>15}", class.name()))?;
    writeln!(out)?;
    for (name, measurement) in ran {
        let total: f64 = measurement.time.iter().map(|share| share.seconds).sum();
        write!(out, "{:<NAME$}", cut(name, NAME))?;
        for share in &measurement.time {
            let cell = format!(
                "{} {:3.0} %",
                time(share.seconds),
                100.0 * share.seconds / total.max(f64::MIN_POSITIVE)
            );
            write!(out, " {cell:>15}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// Writes words on lines that are not too long.
fn wrap(out: &mut String, text: &str) -> std::fmt::Result {
    let mut column = 0;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > WIDTH {
            out.push('\n');
            column = 0;
        }
        if column > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += length;
    }
    writeln!(out)
}

/// The text, with its middle left out where it is too long: names differ at both ends.
fn cut(text: &str, width: usize) -> String {
    let characters: Vec<char> = text.chars().collect();
    if characters.len() <= width {
        return text.to_owned();
    }
    let (head, tail) = (width / 2, width - width / 2 - 1);
    characters[..head].iter().chain(&['…']).chain(&characters[characters.len() - tail..]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::testing::report;

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        let text = terminal(&report());
        for line in text.lines() {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
    }

    #[test]
    fn says_what_the_numbers_mean() {
        let text = terminal(&report());
        assert!(text.contains("fused against LN twin: 20.0 % faster"), "{text}");
        assert!(text.contains("as exported against LN twin: no measurable difference"), "{text}");
        assert!(text.contains("floor: tract cannot prepare Slice `q`: Invalid axis"), "{text}");
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("the same in every variant, 24.6 MB: MatMul fc1 holds it"), "{text}");
    }

    #[test]
    fn long_names_keep_both_ends() {
        assert_eq!(cut("blocks.0.norm1.very.long.name", 11), "block….name");
    }
}
