//! Counts the operators of a model before and after folding.

use std::collections::{BTreeMap, BTreeSet};

use comfy_table::{CellAlignment, Table};
use serde::Serialize;
use unfold::onnx::Model;
use unfold::onnx::node::bodies;
use unfold::onnx::proto::GraphProto;

use super::out::{self, Paint, Tone};

/// The number of nodes of each operator, including those in bodies.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(transparent)]
pub(crate) struct Operators(BTreeMap<String, usize>);

impl Operators {
    /// Counts the nodes of a model.
    pub(crate) fn from_model(model: &Model) -> Self {
        let mut operators = Self::default();
        operators.count(model.graph());
        operators
    }

    fn count(&mut self, graph: &GraphProto) {
        for node in &graph.node {
            *self.0.entry(node.operator()).or_default() += 1;
            bodies(node).for_each(|body| self.count(body));
        }
    }

    /// The number of nodes of an operator.
    fn of(&self, name: &str) -> usize {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// The total number of nodes.
    pub(crate) fn total(&self) -> usize {
        self.0.values().sum()
    }
}

/// A table of the operators whose number changed, with one line for all other operators and one for
/// the total.
pub(super) fn table(before: &Operators, after: &Operators, paint: Paint) -> String {
    let mut table = paint.table(&["operator", "before", "after", "change"]);
    let names: BTreeSet<&String> = before.0.keys().chain(after.0.keys()).collect();
    let (same, changed): (Vec<&String>, Vec<&String>) = names
        .into_iter()
        .partition(|name| before.of(name) == after.of(name));
    for name in &changed {
        add_row(&mut table, name, before.of(name), after.of(name), paint);
    }
    if !same.is_empty() {
        let nodes = same.iter().map(|name| before.of(name)).sum();
        let name = if changed.is_empty() {
            "all operators"
        } else {
            "other operators"
        };
        add_row(&mut table, name, nodes, nodes, paint);
    }
    add_row(&mut table, "all", before.total(), after.total(), paint);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    out::lines(&table)
}

fn add_row(table: &mut Table, name: &str, before: usize, after: usize, paint: Paint) {
    let change = match after as i64 - before as i64 {
        0 => out::cell("="),
        change => {
            let tone = if change < 0 { Tone::Good } else { Tone::Bad };
            paint.cell(tone, format!("{change:+}"))
        }
    };
    table.add_row([out::cell(name), out::cell(before), out::cell(after), change]);
}
