//! The tables of a report, without their layout.

use super::data::{Measurement, Memory, Report, Setting};
use super::sentences::{maybe_bytes, ratio, references};
use crate::report::class::Class;
use crate::report::format::time;

/// A table: its columns, and the cells of each row.
pub(crate) struct Table {
    /// The title.
    pub title: &'static str,
    /// The columns.
    pub columns: Vec<Column>,
    /// The rows; each has one cell per column.
    pub rows: Vec<Vec<String>>,
}

/// A column of a table.
pub(crate) struct Column {
    /// The heading.
    pub head: String,
    /// The layout of its cells.
    pub kind: Cells,
}

/// The layout of the cells of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cells {
    /// Left-aligned text of any length. The text may be a name in the model, and may contain
    /// characters of markup.
    Text,
    /// Right-aligned.
    Number,
    /// Right-aligned, and left out in a terminal, whose width is limited.
    Detail,
}

impl Cells {
    /// A column of such cells, with a heading.
    pub(crate) fn under(self, head: impl Into<String>) -> Column {
        Column {
            head: head.into(),
            kind: self,
        }
    }
}

/// A table of the latency of each variant and its ratios to the references.
pub(crate) fn latency(setting: &Setting) -> Table {
    let mut columns = vec![
        Cells::Text.under("variant"),
        Cells::Number.under("median"),
        Cells::Detail.under("95 % interval"),
        Cells::Number.under("p95"),
        Cells::Number.under("samples/s"),
    ];
    columns.extend(
        references(setting)
            .iter()
            .map(|name| Cells::Number.under(format!("÷ {name}"))),
    );
    let rows = setting.ran().map(
        |(
            _,
            name,
            Measurement {
                latency, ratios, ..
            },
        )| {
            let median = latency.median;
            let mut row = vec![
                name.to_owned(),
                time(median.value),
                format!("{} to {}", time(median.low), time(median.high)),
                time(latency.p95),
                format!("{:.1}", latency.throughput),
            ];
            row.extend(ratios.iter().map(|of| {
                if of.reference == name {
                    "1".into()
                } else {
                    ratio(of)
                }
            }));
            row
        },
    );
    Table {
        title: "Latency",
        columns,
        rows: rows.collect(),
    }
}

/// A table of the memory of each variant.
pub(crate) fn memory(setting: &Setting) -> Table {
    let columns = vec![
        Cells::Text.under("variant"),
        Cells::Number.under("live peak"),
        Cells::Detail.under("at normalizers"),
        Cells::Number.under("heap peak"),
        Cells::Number.under("allocated"),
        Cells::Number.under("resident peak"),
        Cells::Number.under("file"),
        Cells::Number.under("weights"),
    ];
    let rows = setting.ran().map(|(_, name, measurement)| {
        let Memory {
            live_peak,
            live_at_normalizers,
            heap_peak,
            allocated,
            resident_peak,
            ..
        } = measurement.memory;
        let run = [
            Some(live_peak),
            live_at_normalizers,
            heap_peak,
            allocated,
            resident_peak,
        ];
        let stored = [measurement.file_bytes, measurement.weight_bytes].map(Some);
        [name.to_owned()]
            .into_iter()
            .chain(run.into_iter().chain(stored).map(maybe_bytes))
            .collect()
    });
    Table {
        title: "Memory",
        columns,
        rows: rows.collect(),
    }
}

/// A table of the time in each class of operators.
pub(crate) fn shares(setting: &Setting) -> Table {
    let mut columns = vec![Cells::Text.under("time in")];
    columns.extend(Class::ALL.map(|class| Cells::Number.under(class.name())));
    let mut rows = vec![];
    for (_, name, measurement) in setting.ran() {
        let seconds = measurement.time.iter().map(|share| share.seconds);
        let total: f64 = seconds.clone().sum();
        let cells = seconds.map(|seconds| {
            let percent = 100.0 * seconds / total.max(f64::MIN_POSITIVE);
            format!("{} ({percent:.0} %)", time(seconds))
        });
        rows.push([name.to_owned()].into_iter().chain(cells).collect());
    }
    Table {
        title: "Time by class of operators",
        columns,
        rows,
    }
}

/// A table of the normalizers and their outcomes.
pub(crate) fn sites(report: &Report) -> Table {
    let columns = vec![
        Cells::Text.under("site"),
        Cells::Text.under("kind"),
        Cells::Number.under("channels"),
        Cells::Text.under("what happened"),
    ];
    let rows = report.sites.iter().map(|site| {
        vec![
            site.name.clone(),
            site.kind.clone(),
            site.channels.to_string(),
            site.outcome.clone(),
        ]
    });
    Table {
        title: "Normalizers",
        columns,
        rows: rows.collect(),
    }
}
