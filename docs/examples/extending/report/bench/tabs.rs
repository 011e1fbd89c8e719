//! Formats a report as values that are separated by tabs.

use super::{Report, table};

/// Formats the tables of each setting, with one line for each row.
pub(crate) fn tabs(report: &Report) -> String {
    let tables = report
        .settings
        .iter()
        .flat_map(|one| [table::latency(one), table::memory(one), table::shares(one)]);
    let rows = tables.flat_map(|table| table.rows);
    rows.map(|row| row.join("\t") + "\n").collect()
}
