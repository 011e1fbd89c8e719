//! Several reports in one table: a line for each model and size of its inputs.

use super::data::{Measurement, Memory, Ratio, Report, Setting};
use super::format::{bytes, escape, ratio};

/// Which variant is divided by which.
type Pair = (&'static str, &'static str);

const EXPORTED_BY_LN: Pair = ("as exported", "LN twin");
const FUSED_BY_LN: Pair = ("fused", "LN twin");
const FUSED_BY_EXPORTED: Pair = ("fused", "as exported");
const FUSED_BY_FLOOR: Pair = ("fused", "floor");

/// What fits on a line of a terminal.
const NARROW: [Pair; 3] = [EXPORTED_BY_LN, FUSED_BY_LN, FUSED_BY_FLOOR];
const WIDE: [Pair; 4] = [EXPORTED_BY_LN, FUSED_BY_LN, FUSED_BY_EXPORTED, FUSED_BY_FLOOR];

/// The heading of the lines that [`overview_lines`] gives.
pub fn overview_heading() -> String {
    let heads = NARROW.map(|(variant, by)| {
        let head = format!("{variant} ÷ {by}").replace("as exported", "exported").replace("LN twin", "LN");
        format!("{head:>19}")
    });
    format!("{:<22} {}\n", "ratio of latencies", heads.concat())
}

/// The ratios of each setting of a report, a line each, in 80 columns.
pub fn overview_lines(report: &Report) -> String {
    let line = |setting: &Setting| {
        let name = format!("{} {}", report.model, setting.label);
        let cells = NARROW.map(|pair| format!("{:>19}", cell(setting, pair)));
        format!("{name:<22} {}\n", cells.concat().trim_end())
    };
    report.settings.iter().map(line).collect()
}

/// The ratios and the memory of each setting of all reports, as Markdown.
pub fn overview_markdown(reports: &[Report]) -> String {
    let mut out = reports.first().map_or_else(String::new, made_on);
    let (heads, rows) = ratios(reports);
    out += &format!("| {} |\n| --- | --- |{}\n", heads.join(" | "), " ---: |".repeat(heads.len() - 2));
    for row in rows {
        let (names, numbers) = row.split_at(2);
        let names: Vec<String> = names.iter().map(|name| escape(name)).collect();
        out += &format!("| {} | {} |\n", names.join(" | "), numbers.join(" | "));
    }
    out += "\n| model | inputs | live peak: LN twin | as exported | fused | floor | heap peak: as exported | fused | \
            allocated: as exported | fused |\n";
    out += &format!("| --- | --- |{}\n", " ---: |".repeat(8));
    for (report, setting) in settings(reports) {
        let of = |name, what: fn(&Memory) -> Option<u64>| {
            measurement(setting, name).and_then(|m| what(&m.memory)).map_or_else(dash, bytes)
        };
        let live = ["LN twin", "as exported", "fused", "floor"].map(|name| of(name, |m| Some(m.live_peak)));
        let heap = ["as exported", "fused"].map(|name| of(name, |m| m.heap_peak));
        let allocated = ["as exported", "fused"].map(|name| of(name, |m| m.allocated));
        let cells = [live.as_slice(), &heap, &allocated].concat().join(" | ");
        out += &format!("| {} | {} | {cells} |\n", escape(&report.model), escape(&setting.label));
    }
    out
}

/// The ratios of each setting of all reports: the heads of the columns, and the rows.
pub(super) fn ratios(reports: &[Report]) -> (Vec<String>, Vec<Vec<String>>) {
    let mut heads = vec!["model".to_owned(), "inputs".to_owned()];
    heads.extend(WIDE.map(|(variant, by)| format!("{variant} ÷ {by}")));
    heads.push("samples/s, fused".to_owned());
    let row = |(report, setting): (&Report, &Setting)| {
        let mut row = vec![report.model.clone(), setting.label.clone()];
        row.extend(WIDE.map(|pair| cell(setting, pair)));
        let fused = measurement(setting, "fused");
        row.push(fused.map_or_else(dash, |m| format!("{:.1}", m.latency.throughput)));
        row
    };
    (heads, settings(reports).map(row).collect())
}

/// What the reports were made with, by the first of them.
fn made_on(report: &Report) -> String {
    let machine = &report.machine;
    let (processor, system) = (escape(&machine.processor), escape(&machine.system));
    format!("unfold {}, tract, {processor}, {} cores, {system}.\n\n", report.version, machine.cores)
}

fn settings(reports: &[Report]) -> impl Iterator<Item = (&Report, &Setting)> {
    reports.iter().flat_map(|report| report.settings.iter().map(move |setting| (report, setting)))
}

fn measurement<'s>(setting: &'s Setting, name: &str) -> Option<&'s Measurement> {
    setting.variants.iter().find(|variant| variant.name == name)?.measurement()
}

fn cell(setting: &Setting, (variant, reference): Pair) -> String {
    let find = |measured: &Measurement| -> Option<Ratio> {
        measured.ratios.iter().find(|ratio| ratio.reference == reference).cloned()
    };
    measurement(setting, variant).and_then(find).map_or_else(dash, |found| ratio(&found))
}

fn dash() -> String {
    "-".into()
}
