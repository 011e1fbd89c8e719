//! A report for files and pages that read Markdown.

use std::fmt::Write;

use super::data::{Class, Measurement, Report, Setting};
use super::format::{
    bytes, escape, failures, how, maybe_bytes, memory_sentence, ratio, references, time, verdicts,
};

/// The report as Markdown tables.
pub fn markdown(report: &Report) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write(&mut out, report);
    out
}

fn write(out: &mut String, report: &Report) -> std::fmt::Result {
    let machine = &report.machine;
    writeln!(out, "# {}\n", escape(&report.model))?;
    let (processor, cores, system) = (&machine.processor, machine.cores, &machine.system);
    writeln!(
        out,
        "unfold {}, tract, {}, {cores} cores, {}.",
        report.version,
        escape(processor),
        escape(system)
    )?;
    report.settings.iter().try_for_each(|one| setting(out, one))?;
    if !report.sites.is_empty() {
        writeln!(
            out,
            "\n## Normalizers\n\n| site | kind | channels | outcome |\n| --- | --- | ---: | --- |"
        )?;
    }
    for site in &report.sites {
        let (name, kind, outcome) = (escape(&site.name), escape(&site.kind), escape(&site.outcome));
        writeln!(out, "| {name} | {kind} | {} | {outcome} |", site.channels)?;
    }
    report.notes.iter().try_for_each(|note| writeln!(out, "\n{}", escape(note)))
}

fn setting(out: &mut String, setting: &Setting) -> std::fmt::Result {
    writeln!(out, "\n## {}\n", escape(&how(setting)))?;
    let ran: Vec<(String, &Measurement)> =
        setting.variants.iter().filter_map(|v| Some((escape(&v.name), v.measurement()?))).collect();
    if !ran.is_empty() {
        let references = references(setting);
        let heads: String = references.iter().map(|name| format!(" ÷ {} |", escape(name))).collect();
        let rules = " ---: |".repeat(references.len());
        writeln!(out, "| variant | median | 95 % interval | p95 | samples/s |{heads}")?;
        writeln!(out, "| --- | ---: | ---: | ---: | ---: |{rules}")?;
        for (name, measurement) in &ran {
            let Measurement { latency, ratios, .. } = measurement;
            let (low, high) = (time(latency.median.low), time(latency.median.high));
            let ratios: String = ratios.iter().map(|compared| format!(" {} |", ratio(compared))).collect();
            let (median, p95, rate) = (time(latency.median.value), time(latency.p95), latency.throughput);
            writeln!(out, "| {name} | {median} | {low} to {high} | {p95} | {rate:.1} |{ratios}")?;
        }
        writeln!(out)?;
        for verdict in verdicts(setting) {
            writeln!(out, "- {}", escape(&verdict))?;
        }
        memory(out, &ran)?;
        if let Some(sentence) = memory_sentence(setting) {
            writeln!(out, "\n{}", escape(&sentence))?;
        }
        shares(out, &ran)?;
    }
    failures(setting).try_for_each(|failure| writeln!(out, "\n**Not measured.** {}", escape(&failure)))
}

fn memory(out: &mut String, ran: &[(String, &Measurement)]) -> std::fmt::Result {
    writeln!(out, "\n| variant | live peak | heap peak | allocated | resident peak | file | weights |")?;
    writeln!(out, "| --- | ---: | ---: | ---: | ---: | ---: | ---: |")?;
    for (name, measurement) in ran {
        let memory = &measurement.memory;
        let [heap, allocated, resident] =
            [memory.heap_peak, memory.allocated, memory.resident_peak].map(maybe_bytes);
        let [live, file, weights] =
            [memory.live_peak, measurement.file_bytes, measurement.weight_bytes].map(bytes);
        writeln!(out, "| {name} | {live} | {heap} | {allocated} | {resident} | {file} | {weights} |")?;
    }
    Ok(())
}

fn shares(out: &mut String, ran: &[(String, &Measurement)]) -> std::fmt::Result {
    let heads: String = Class::ALL.iter().map(|class| format!(" {} |", class.name())).collect();
    writeln!(out, "\n| time in |{heads}\n| --- |{}", " ---: |".repeat(Class::ALL.len()))?;
    for (name, measurement) in ran {
        let total: f64 = measurement.time.iter().map(|share| share.seconds).sum();
        let percent = |seconds: f64| 100.0 * seconds / total.max(f64::MIN_POSITIVE);
        let cells = measurement
            .time
            .iter()
            .map(|share| format!(" {} ({:.0} %) |", time(share.seconds), percent(share.seconds)));
        writeln!(out, "| {name} |{}", cells.collect::<String>())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::testing::report;

    #[test]
    fn every_table_has_as_many_cells_in_each_row() {
        let text = markdown(&report());
        let tables = text.split("\n\n").filter(|block| block.trim_start().starts_with('|'));
        let cells = |line: &str| line.replace("\\|", "").matches('|').count();
        for table in tables {
            let mut lines = table.lines().filter(|line| line.starts_with('|'));
            let head = cells(lines.next().unwrap());
            assert!(lines.all(|line| cells(line) == head), "{table}");
        }
    }

    #[test]
    fn markup_in_names_is_text() {
        assert!(markdown(&report()).starts_with("# vit \\<small\\>.onnx\n"));
    }
}
