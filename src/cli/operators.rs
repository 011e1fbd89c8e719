//! The operators of a model before and after.

use std::collections::BTreeMap;

use comfy_table::CellAlignment;
use serde::Serialize;
use unfold::onnx::Model;
use unfold::onnx::node::bodies;
use unfold::onnx::proto::GraphProto;

use super::out::{self, Paint, Tone};

/// How many nodes of each operator there are, bodies of control flow included.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Operators(BTreeMap<String, usize>);

impl Operators {
    /// Counts the nodes of a model.
    pub fn from_model(model: &Model) -> Self {
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

    /// How many nodes there are.
    pub fn total(&self) -> usize {
        self.0.values().sum()
    }
}

/// The operators whose number changed, those that did not in one line, and the sum.
pub fn table(before: &Operators, after: &Operators, paint: Paint) -> String {
    let mut table = paint.table(&["operator", "before", "after", "change"]);
    let mut add = |name: &str, before: usize, after: usize| {
        let change = after as i64 - before as i64;
        let tone = if change < 0 { Tone::Good } else { Tone::Bad };
        let change = match change {
            0 => out::cell("="),
            change => paint.cell(tone, format!("{change:+}")),
        };
        table.add_row([out::cell(name), out::cell(before), out::cell(after), change]);
    };
    let count = |operators: &Operators, name: &str| operators.0.get(name).copied().unwrap_or(0);
    let names: std::collections::BTreeSet<&String> =
        before.0.keys().chain(after.0.keys()).collect();
    let (same, changed): (Vec<&String>, Vec<_>) = names
        .into_iter()
        .partition(|name| count(before, name) == count(after, name));
    changed
        .iter()
        .for_each(|name| add(name, count(before, name), count(after, name)));
    if !same.is_empty() {
        let nodes = same.iter().map(|name| count(before, name)).sum();
        add(
            if changed.is_empty() {
                "all operators"
            } else {
                "other operators"
            },
            nodes,
            nodes,
        );
    }
    add("all", before.total(), after.total());
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    out::lines(&table)
}
