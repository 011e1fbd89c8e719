//! Writes several reports as one table, with a line for each model and each size of its inputs.

use super::data::{Measurement, Memory, Ratio, Report, Setting};
use super::sentences::{maybe_bytes, ratio};
use super::table::{Cells, Table};
use crate::report::format::plain;

/// Two variants whose times are divided: the numerator and the denominator.
type Pair = (&'static str, &'static str);

const EXPORTED_BY_LN: Pair = ("as exported", "LN twin");
const FUSED_BY_LN: Pair = ("fused", "LN twin");
const FUSED_BY_EXPORTED: Pair = ("fused", "as exported");
const FUSED_BY_FLOOR: Pair = ("fused", "floor");
const PORTABLE_BY_LN: Pair = ("portable", "LN twin");

/// The ratios that fit on a line of a terminal.
const NARROW: [Pair; 3] = [EXPORTED_BY_LN, FUSED_BY_LN, FUSED_BY_FLOOR];
const WIDE: [Pair; 5] = [
    EXPORTED_BY_LN,
    FUSED_BY_LN,
    FUSED_BY_EXPORTED,
    FUSED_BY_FLOOR,
    PORTABLE_BY_LN,
];

/// The heading of the ratio of peaks of memory.
const PEAK: &str = "peak";

/// The heading above [`overview_lines`].
pub(crate) fn overview_heading() -> String {
    let heads = NARROW.map(|(variant, by)| {
        let head = format!("{variant} ÷ {by}")
            .replace("as exported", "exported")
            .replace("LN twin", "LN");
        format!("{head:>18}")
    });
    format!("{:<21}{} {PEAK}\n", "ratio of latencies", heads.concat())
}

/// Writes a line for each setting of a report, 80 characters wide: the ratios, and the peak of
/// memory of the fused model relative to that of the exported one.
pub(crate) fn overview_lines(report: &Report) -> String {
    let mut lines = String::new();
    for setting in &report.settings {
        let name = plain(&format!("{} {}", report.model, setting.label));
        let cells = NARROW.map(|pair| format!("{:>18}", cell(setting, pair)));
        let peak = peak_ratio(setting).map_or_else(dash, |ratio| format!("{ratio:.2}"));
        lines += &format!("{name:<21}{} {peak:>4}\n", cells.concat());
    }
    lines
}

/// The peak of memory of the fused model, divided by that of the exported one. `None` unless both
/// were measured.
fn peak_ratio(setting: &Setting) -> Option<f64> {
    let fused = measurement(setting, "fused")?.memory.peak();
    let exported = measurement(setting, "as exported")?.memory.peak();
    Some(fused as f64 / exported.max(1) as f64)
}

/// A table with a row for each setting of all reports, and a column for each ratio that any report
/// has.
pub(super) fn ratios(reports: &[Report]) -> Table {
    let pairs: Vec<Pair> = WIDE
        .into_iter()
        .filter(|&pair| settings(reports).any(|(_, setting)| found(setting, pair).is_some()))
        .collect();
    let mut columns = vec![Cells::Text.under("model"), Cells::Text.under("inputs")];
    columns.extend(
        pairs
            .iter()
            .map(|(variant, by)| Cells::Number.under(format!("{variant} ÷ {by}"))),
    );
    columns.push(Cells::Number.under("samples/s, fused"));
    let mut rows = vec![];
    for (report, setting) in settings(reports) {
        let mut row = vec![report.model.clone(), setting.label.clone()];
        row.extend(pairs.iter().map(|pair| cell(setting, *pair)));
        let fused = measurement(setting, "fused");
        row.push(fused.map_or_else(dash, |m| format!("{:.1}", m.latency.throughput)));
        rows.push(row);
    }
    Table {
        title: "Ratios of latencies, with their 95 % intervals",
        columns,
        rows,
    }
}

/// A table of memory, with a row for each setting of all reports.
pub(super) fn memory(reports: &[Report]) -> Table {
    type Bytes = fn(&Memory) -> Option<u64>;
    const COLUMNS: [(&str, &str, Bytes); 8] = [
        ("live peak: LN twin", "LN twin", |memory| {
            Some(memory.live_peak)
        }),
        ("as exported", "as exported", |memory| {
            Some(memory.live_peak)
        }),
        ("fused", "fused", |memory| Some(memory.live_peak)),
        ("floor", "floor", |memory| Some(memory.live_peak)),
        ("heap peak: as exported", "as exported", |memory| {
            memory.heap_peak
        }),
        ("fused", "fused", |memory| memory.heap_peak),
        ("allocated: as exported", "as exported", |memory| {
            memory.allocated
        }),
        ("fused", "fused", |memory| memory.allocated),
    ];
    let mut columns = vec![Cells::Text.under("model"), Cells::Text.under("inputs")];
    columns.extend(COLUMNS.map(|(head, ..)| Cells::Number.under(head)));
    let mut rows = vec![];
    for (report, setting) in settings(reports) {
        let mut row = vec![report.model.clone(), setting.label.clone()];
        for (_, variant, bytes) in COLUMNS {
            let measured = measurement(setting, variant);
            row.push(maybe_bytes(measured.and_then(|it| bytes(&it.memory))));
        }
        rows.push(row);
    }
    Table {
        title: "Memory",
        columns,
        rows,
    }
}

fn settings(reports: &[Report]) -> impl Iterator<Item = (&Report, &Setting)> {
    reports
        .iter()
        .flat_map(|report| report.settings.iter().map(move |setting| (report, setting)))
}

fn measurement<'s>(setting: &'s Setting, name: &str) -> Option<&'s Measurement> {
    setting
        .ran()
        .find(|(_, variant, _)| *variant == name)
        .map(|(.., measurement)| measurement)
}

fn found(setting: &Setting, (variant, reference): Pair) -> Option<&Ratio> {
    measurement(setting, variant)?
        .ratios
        .iter()
        .find(|ratio| ratio.reference == reference)
}

fn cell(setting: &Setting, pair: Pair) -> String {
    found(setting, pair).map_or_else(dash, ratio)
}

fn dash() -> String {
    "-".into()
}
