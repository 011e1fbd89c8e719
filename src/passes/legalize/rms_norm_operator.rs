//! Writes an RMS normalization as the operator that ONNX has for it since operator set 23.
//!
//! Before: `x/√(mean(x²) + ε)·γ`, over the last axis, in float32. After: RMSNormalization, which
//! computes the same result. A model with an older operator set is not changed. A normalization in
//! a type other than float32 stays, because RMSNormalization computes in float32 for every type.

use crate::affine::materialize::Edit;
use crate::affine::recognize::decomposed_norm::{Core, core};
use crate::affine::recognize::{Replacement, View};
use crate::analysis::Analysis;
use crate::ir::builder::{Maker, float, int};
use crate::ir::{NodeId, ValueId};
use crate::onnx::tensor::DataType;

/// The first operator set with RMSNormalization.
const OPSET: i64 = 23;

/// The edits that write RMSNormalizations.
pub(super) fn edits(analysis: &Analysis) -> Vec<Edit> {
    if analysis.graph.model().own_opset() < OPSET {
        return vec![];
    }
    let view = View::new(analysis);
    analysis
        .graph
        .order()
        .iter()
        .filter_map(|&node| edit(&view, node))
        .collect()
}

/// The edit of the normalization that ends in this node. The edit includes the Mul after the node.
/// `None` if no such normalization ends there.
fn edit(view: &View, node: NodeId) -> Option<Edit> {
    let graph = view.graph;
    if !matches!(graph.op(node), Some("Div" | "Mul")) {
        return None;
    }
    let core = core(view, node)?;
    let epsilon = plain_epsilon(view, &core)?;
    let (scaled, scale) = scaled_by(view, core.output)?;
    let mut maker = Maker::new(graph, node);
    let inputs = [core.input, scale].map(|value| graph.value_name(value));
    maker.op(
        "RMSNormalization",
        &inputs,
        vec![int("axis", -1), float("epsilon", epsilon)],
    );
    let (made, constants) = maker.finish(graph.value_name(graph.only_output(scaled)?));
    Some(Edit::replacing(
        graph,
        node,
        Replacement {
            nodes: vec![node, scaled],
            made,
            constants,
        },
    ))
}

/// The ε of a float32 normalization over the last axis that subtracts no mean. `None` for another
/// normalization, if its result has several readers, or if float32 cannot represent ε.
fn plain_epsilon(view: &View, core: &Core) -> Option<f32> {
    let is_last = core.axes.len() == 1 && core.axes.first().map(|axis| axis + 1) == Some(core.rank);
    let is_plain = is_last
        && !core.centred
        && !core.norm
        && !core.less_mean
        && core.inside.is_none()
        && core.squared == core.input
        && core.is_in_place
        && core.input_is_squared(view)
        && core.nodes.len() > 1;
    let mut types = [core.input, core.output]
        .map(|value| view.facts.data_type(value))
        .into_iter();
    let are_floats = types.all(|data_type| data_type == Some(DataType::Float));
    let epsilon = core.epsilon.filter(|_| is_plain && are_floats)?;
    let narrow = epsilon as f32;
    (f64::from(narrow) == epsilon && view.graph.only_reader(core.output).is_some())
        .then_some(narrow)
}

/// The Mul that multiplies a value by a constant with one element for each channel, and the
/// constant. `None` if the value has another reader.
fn scaled_by(view: &View, value: ValueId) -> Option<(NodeId, ValueId)> {
    let graph = view.graph;
    let (node, slot) = graph
        .only_reader(value)
        .filter(|&(node, _)| graph.is(node, "Mul"))?;
    let scale = graph.input(node, 1 - slot)?;
    let channels = view.facts.shape(value)?.last().cloned()?;
    let own = view.facts.shape(scale)?;
    let fits =
        view.constants.is_constant(scale) && own.len() == 1 && own.first() == Some(&channels);
    fits.then_some((node, scale))
}
