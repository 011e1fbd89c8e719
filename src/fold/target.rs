//! The engine that a result is for, where one wants another form than all others.
//!
//! onnxruntime runs a product with its bias as one Gemm. On more than two axes it finds that only where all extents are
//! numbers. Before: `x·W + b` as MatMul and Add, x of any batch. After: Reshape to two axes, Gemm, and Reshape back.
//! Exact: the rows of a product do not know how they are arranged.

use serde::{Deserialize, Serialize};

use super::patch::{Change, Edit};
use crate::graph::analysis::Analysis;
use crate::graph::facts::extent;
use crate::graph::flat::way;
use crate::graph::make::Maker;
use crate::graph::{NodeId, Reader};
use crate::normalizer::Replacement;
use crate::onnx::tensor::DataType;

/// Which engine a result is for.
///
/// ```
/// use unfold::fold::target::Target;
/// assert_eq!("onnxruntime".parse(), Ok(Target::Onnxruntime));
/// assert!("another".parse::<Target>().is_err());
/// ```
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, strum::EnumString, strum::VariantNames,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Target {
    /// Any: forms that none of them runs slower.
    #[default]
    Portable,
    /// onnxruntime on a CPU.
    Onnxruntime,
}

impl Target {
    /// Whether it is what is chosen where nothing is said.
    pub(crate) fn is_portable(&self) -> bool {
        *self == Target::Portable
    }

    /// What is written in another form for its sake.
    pub fn edits(self, known: &Analysis) -> Vec<Edit> {
        match self {
            Target::Portable => vec![],
            Target::Onnxruntime => known.graph.order().iter().filter_map(|&node| gemm(known, node)).collect(),
        }
    }
}

/// A MatMul and the Add of its bias as one Gemm.
fn gemm(known: &Analysis, matmul: NodeId) -> Option<Edit> {
    let Analysis { graph, facts, constants, .. } = known;
    let ([Some(value), Some(weight)], product) = (graph.inputs(matmul), graph.only_output(matmul)?) else {
        return None;
    };
    let [Reader::Node { node: add, .. }] = *graph.readers(product) else { return None };
    if !graph.is(matmul, "MatMul") || !graph.is(add, "Add") || !way(graph.node(matmul)).is_empty() {
        return None;
    }
    let bias = graph.inputs(add).iter().flatten().find(|&&operand| operand != product)?;
    let output = graph.only_output(add)?;
    let is_plain = |value| constants.is_constant(value) && !constants.is_quantized(value);
    let is_float = facts.data_type(output) == Some(DataType::Float);
    if !is_float || !is_plain(*weight) || !is_plain(*bias) || constants.is_constant(*value) {
        return None;
    }
    let numbers = |shape: &[_]| shape.iter().map(extent).collect::<Option<Vec<usize>>>();
    let shape = facts.shape(*value)?;
    let (leading, _) = shape.split_at(shape.len().checked_sub(1)?);
    let [rows, columns] = numbers(&facts.shape(*weight)?)?[..] else { return None };
    let arranged: Vec<Option<usize>> = leading.iter().map(extent).collect();
    // One extent may be open, which is what is left of the elements.
    let is_one_open = arranged.iter().filter(|extent| extent.is_none()).count() == 1;
    let has_elements = !arranged.contains(&Some(0)) && rows > 0 && columns > 0;
    if arranged.len() < 2 || !is_one_open || !has_elements || numbers(&facts.shape(*bias)?)? != [columns] {
        return None;
    }
    let name = |value| graph.value_name(value);
    let mut maker = Maker::new(graph, matmul);
    let flat = maker.reshape(name(*value), &[-1, rows as i64]);
    let product = maker.op("Gemm", &[&flat, name(*weight), name(*bias)], vec![]);
    let back = arranged.iter().map(|extent| extent.map_or(-1, |extent| extent as i64));
    maker.reshape(&product, &back.chain([columns as i64]).collect::<Vec<_>>());
    let (made, new) = maker.finish(name(output));
    let replacement = Replacement { nodes: vec![matmul, add], made, constants: new };
    Some(Edit { sites: vec![], at: graph.name(matmul).to_owned(), change: Change::Replace(replacement) })
}
