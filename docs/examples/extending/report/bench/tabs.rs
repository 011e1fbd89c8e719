//! A report as values with tabs between.

use super::{Report, table};

/// The tables of each setting, one row a line.
pub(crate) fn tabs(report: &Report) -> String {
    let tables = report
        .settings
        .iter()
        .flat_map(|one| [table::latency(one), table::memory(one), table::shares(one)]);
    let rows = tables.flat_map(|table| table.rows);
    rows.map(|row| row.join("\t") + "\n").collect()
}
