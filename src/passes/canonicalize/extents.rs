//! Computes extents in int64 that a model computes in int32 and casts back. Paddle exports shapes
//! in this way.
//!
//! An extent is assumed to be below 2³¹, as in shape inference, so both Casts keep its value.

use crate::analysis::Analysis;
use crate::ir::builder::Maker;
use crate::ir::regions::region_path;
use crate::ir::{Graph, NodeId, ValueId};
use crate::onnx::tensor::DataType;

/// The longest chain of operators between a Shape and a Cast, or between two Casts.
const DEPTH: usize = 8;

/// Repeats the operators between a Cast of extents to int32 and a Cast back to int64 on the extents
/// in int64. `None` unless `node` is the Cast to int64.
pub(crate) fn without_narrowing<'m>(analysis: &'m Analysis, node: NodeId) -> Option<Maker<'m>> {
    let graph = &analysis.graph;
    let narrow = cast_operand(analysis, node, [DataType::Int32, DataType::Int64])?;
    let (selections, narrowed) = selections_before(graph, narrow)?;
    let (cast, _) = graph.producer(narrowed)?;
    let extents = cast_operand(analysis, cast, [DataType::Int64, DataType::Int32])?;
    let (_, shape) = selections_before(graph, extents)?;
    let region = region_path(graph.node(node));
    let is_in_region = |&selection: &NodeId| region_path(graph.node(selection)) == region;
    if !graph.is(graph.producer(shape)?.0, "Shape") || !selections.iter().all(is_in_region) {
        return None;
    }
    let mut maker = Maker::new(graph, node);
    let mut value = graph.value_name(extents).to_owned();
    if selections.is_empty() {
        maker.op("Identity", &[&value], vec![]);
    }
    for selection in selections.into_iter().rev() {
        let mut inputs = graph.node(selection).input.clone();
        inputs[0] = value;
        value = maker.repeat(selection, &inputs).swap_remove(0);
    }
    Some(maker)
}

/// The operand of a Cast between two types. `None` for other nodes.
fn cast_operand(analysis: &Analysis, node: NodeId, types: [DataType; 2]) -> Option<ValueId> {
    let Analysis { graph, facts, .. } = analysis;
    let (operand, result) = (graph.input(node, 0)?, graph.only_output(node)?);
    let found = [operand, result].map(|value| facts.data_type(value));
    (graph.is(node, "Cast") && found == types.map(Some)).then_some(operand)
}

/// The operators before a value that select or rearrange elements, last first, with the value that
/// the first of them reads. `None` if there are too many.
fn selections_before(graph: &Graph, mut value: ValueId) -> Option<(Vec<NodeId>, ValueId)> {
    let mut selections = vec![];
    while let Some((node, _)) = graph
        .producer(value)
        .filter(|&(node, _)| selects(graph, node))
    {
        selections.push(node);
        value = graph.input(node, 0)?;
        (selections.len() <= DEPTH).then_some(())?;
    }
    Some((selections, value))
}

/// Whether an operator selects or rearranges elements of its first input.
fn selects(graph: &Graph, node: NodeId) -> bool {
    let (domain, op) = graph.domain_op(node);
    let selects = [
        "Gather",
        "Identity",
        "Reshape",
        "Slice",
        "Squeeze",
        "Unsqueeze",
    ];
    domain.is_empty() && selects.contains(&op)
}
