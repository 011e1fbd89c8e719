//! Lets a proof compare all rows of the tables that indices select from, such as embeddings.
//!
//! A proof draws few indices, so it may never read a row that differs. Here each table `T` with `n`
//! rows becomes `M·T`, where the matrix `M` with two rows is a new input. Indices are reduced modulo
//! the number of rows. Each row of `M` adds up to 1, so that a shift of all rows commutes with the
//! product. If the changed models are the same function of `M` too, then the tables are equal in all
//! rows, since `M` may select any two of them.

use std::collections::BTreeSet;

use ndarray::ArrayD;

use crate::analysis::Analysis;
use crate::ir::NodeId;
use crate::ir::builder::{int, node};
use crate::ir::names::Names;
use crate::onnx::Model;
use crate::onnx::proto::{
    Dim, Dimension, GraphProto, NodeProto, TensorShapeProto, TensorType, TypeProto, ValueInfoProto,
};
use crate::onnx::tensor::{self, DataType};
use crate::shape::facts::extent;

/// The number of rows of a mixed table.
const ROWS: i64 = 2;

/// The end of the name of a mixed table.
pub(super) const MIXED: &str = "_mixed";

/// Both models with mixed tables. `None` if one of them has no table that an index selects from.
pub(super) fn with_mixed_rows(models: [&Model; 2]) -> Option<[Model; 2]> {
    let [first, second] = models.map(mixed);
    Some([first?, second?])
}

fn mixed(model: &Model) -> Option<Model> {
    let analysis = Analysis::new(model).ok()?;
    let mut proto = analysis.graph.proto().clone();
    let mut names = Names::beside(&analysis.graph);
    let mut tables = BTreeSet::new();
    let mut nodes = vec![];
    for (id, mut reader) in std::mem::take(&mut proto.node).into_iter().enumerate() {
        if let Some(table) = LookupTable::read_by(&analysis, id) {
            let name = reader.input[0].clone();
            let rows = names.fresh(&format!("{name}{MIXED}"));
            nodes.push(made("MatMul", &[&table.mixer(), &name], &rows));
            reader.input[0] = rows;
            tables.insert(table);
        }
        nodes.push(reader);
    }
    for table in &tables {
        table.add_mixer(&mut proto, &mut names)?;
    }
    proto.node.append(&mut nodes);
    (!tables.is_empty()).then(|| model.with_graph(proto))
}

/// A constant from which computed indices select rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct LookupTable {
    /// The number of rows.
    rows: i64,
    /// The code of the element type.
    code: i32,
}

impl LookupTable {
    /// The table that a node reads rows of. `None` for other nodes, and for tables of rank 3 and
    /// more.
    fn read_by(analysis: &Analysis, node: NodeId) -> Option<Self> {
        let Analysis { graph, facts, .. } = analysis;
        let [table, indices] = [0, 1].map(|slot| graph.input(node, slot));
        let (table, indices) = (table?, indices?);
        let data_type = facts.data_type(table)?;
        let is_lookup = graph.is(node, "Gather")
            && graph.node(node).attr_i("axis").ok()?.unwrap_or(0) == 0
            && data_type.is_float()
            && analysis.constants.is_constant(table)
            && !analysis.constants.is_constant(indices);
        let shape = facts.shape(table)?;
        let rows = extent(shape.first()?)? as i64;
        let is_mixable = is_lookup && shape.len() <= 2 && rows > 1;
        is_mixable.then_some(Self {
            rows,
            code: data_type.code(),
        })
    }

    /// The name of the matrix that mixes the rows. It is the same in both models.
    fn mixer(self) -> String {
        format!("mixer of {} rows of type {}", self.rows, self.code)
    }

    /// Adds the matrix: an input of all columns but the last, and the last column, which makes each
    /// row add up to 1.
    fn add_mixer(self, graph: &mut GraphProto, names: &mut Names) -> Option<()> {
        let first = format!("{} but the last", self.mixer());
        let [ones, one, sum, last] =
            ["ones", "one", "sum", "last"].map(|part| names.fresh(&format!("{first} {part}")));
        let columns = self.rows - 1;
        graph
            .input
            .push(declared(&first, self.code, [ROWS, columns]));
        let data_type = DataType::from_code(self.code)?;
        for (name, rows) in [(&ones, columns as usize), (&one, 1)] {
            let filled = ArrayD::from_elem(vec![rows, 1], 1.0);
            let tensor = tensor::make(name, data_type, &filled.view()).ok()?;
            graph.initializer.push(tensor);
        }
        let mut concat = made("Concat", &[&first, &last], &self.mixer());
        concat.attribute.push(int("axis", 1));
        graph.node.extend([
            made("MatMul", &[&first, &ones], &sum),
            made("Sub", &[&one, &sum], &last),
            concat,
        ]);
        Some(())
    }
}

fn made(op: &str, inputs: &[&str], output: &str) -> NodeProto {
    node(&NodeProto::default(), op, output, inputs, output)
}

fn declared(name: &str, code: i32, shape: [i64; 2]) -> ValueInfoProto {
    let dim = shape.map(|extent| Dimension {
        value: Some(Dim::DimValue(extent)),
        denotation: None,
    });
    let shape = TensorShapeProto { dim: dim.to_vec() };
    let tensor_type = TensorType {
        elem_type: Some(code),
        shape: Some(shape),
    };
    ValueInfoProto {
        name: Some(name.to_owned()),
        r#type: Some(TypeProto {
            tensor_type: Some(tensor_type),
            ..TypeProto::default()
        }),
        ..ValueInfoProto::default()
    }
}
