//! Writes normalizations in parts as the operators that ONNX has for them.
//!
//! Before: `x/√(mean(x²) + ε)·γ`, or `(x − mean(x))/√(var(x) + ε)·γ + β`, over the last axis, in
//! float32. After: RMSNormalization, which exists since operator set 23, or LayerNormalization,
//! which exists since set 17. A normalization in a type other than float32 stays, because both
//! operators compute in float32 for every type.

use crate::affine::materialize::Edit;
use crate::affine::recognize::decomposed_norm::{Core, core};
use crate::affine::recognize::{Replacement, View};
use crate::analysis::Analysis;
use crate::ir::builder::{Maker, float, int};
use crate::ir::{NodeId, ValueId};
use crate::onnx::tensor::DataType;
use crate::recipe::Recipe;

/// The first operator set with RMSNormalization.
const RMS_NORM: i64 = 23;

/// The first operator set with LayerNormalization.
pub(crate) const LAYER_NORM: i64 = 17;

/// The edits that write RMSNormalizations.
pub(super) fn rms_norms(analysis: &Analysis) -> Vec<Edit> {
    edits(analysis, RMS_NORM, rms_norm)
}

/// The edits that write LayerNormalizations.
pub(crate) fn layer_norms(analysis: &Analysis) -> Vec<Edit> {
    edits(analysis, LAYER_NORM, layer_norm)
}

/// The edits that write the normalizations that `find` finds. Models with an operator set before
/// `since` have no such edits.
fn edits(
    analysis: &Analysis,
    since: i64,
    find: fn(&View, NodeId) -> Option<NormInParts>,
) -> Vec<Edit> {
    if analysis.graph.model().own_opset() < since {
        return vec![];
    }
    let view = View::new(analysis);
    let nodes = analysis.graph.order().iter();
    nodes
        .filter_map(|&node| find(&view, node)?.edit(&view))
        .collect()
}

/// A normalization in parts.
pub(crate) struct NormInParts {
    operator: &'static str,
    /// The value that is normalized.
    input: ValueId,
    epsilon: f32,
    /// γ, if there is one.
    scale: Option<ValueId>,
    /// β, if there is one.
    shift: Option<ValueId>,
    /// The division, and the nodes that apply γ and β.
    nodes: Vec<NodeId>,
    /// The result.
    output: ValueId,
}

impl NormInParts {
    /// The division.
    pub(crate) fn division(&self) -> NodeId {
        self.nodes[0]
    }

    /// The edit that writes the operator. `None` if γ is absent and the number of channels is
    /// unknown.
    fn edit(self, view: &View) -> Option<Edit> {
        let graph = view.graph;
        let mut maker = Maker::new(graph, self.division());
        let scale = match self.scale {
            Some(scale) => vector_name(view, &mut maker, scale)?,
            None => {
                let last = view.facts.rank(self.output)?.checked_sub(1)?;
                let ones = Recipe::filled(1.0, &[view.facts.extent(self.output, last)?]);
                maker.floats(DataType::Float, &ones)
            }
        };
        let mut inputs = vec![graph.value_name(self.input), &scale];
        let shift = match self.shift {
            Some(shift) => Some(vector_name(view, &mut maker, shift)?),
            None => None,
        };
        inputs.extend(shift.as_deref());
        let attributes = vec![int("axis", -1), float("epsilon", self.epsilon)];
        maker.op(self.operator, &inputs, attributes);
        let (made, constants) = maker.finish(graph.value_name(self.output));
        let replacement = Replacement {
            nodes: self.nodes.clone(),
            made,
            constants,
        };
        Some(Edit::replacing(graph, self.division(), replacement))
    }
}

/// The RMS normalization whose division is this node. It includes the Mul after the node. `None` if
/// there is no such Mul, or no such normalization.
fn rms_norm(view: &View, node: NodeId) -> Option<NormInParts> {
    let core = plain_core(view, node)?;
    let is_rms = !core.centred && !core.less_mean && core.squared == core.input;
    let epsilon = narrow_epsilon(&core).filter(|_| is_rms)?;
    let (scaled, scale) = vector_after(view, core.output, "Mul")?;
    Some(NormInParts {
        operator: "RMSNormalization",
        input: core.input,
        epsilon,
        scale: Some(scale),
        shift: None,
        nodes: vec![node, scaled],
        output: view.graph.only_output(scaled)?,
    })
}

/// The LayerNormalization whose division is this node. It includes a Mul and an Add after the node.
/// `None` if there is no such normalization.
pub(crate) fn layer_norm(view: &View, node: NodeId) -> Option<NormInParts> {
    let core = plain_core(view, node)?;
    let epsilon = narrow_epsilon(&core).filter(|_| subtracts_mean(view, node, &core))?;
    let mut norm = NormInParts {
        operator: "LayerNormalization",
        input: core.input,
        epsilon,
        scale: None,
        shift: None,
        nodes: vec![node],
        output: core.output,
    };
    if let Some((scaled, scale)) = vector_after(view, norm.output, "Mul") {
        norm.scale = Some(scale);
        norm.nodes.push(scaled);
        norm.output = view.graph.only_output(scaled)?;
    }
    if let Some((shifted, shift)) = vector_after(view, norm.output, "Add") {
        norm.shift = Some(shift);
        norm.nodes.push(shifted);
        norm.output = view.graph.only_output(shifted)?;
    }
    Some(norm)
}

/// The core that ends in a node, if it normalizes float32 along the last axis, without a factor.
fn plain_core(view: &View, node: NodeId) -> Option<Core> {
    if !matches!(view.graph.op(node), Some("Div" | "Mul")) {
        return None;
    }
    let core = core(view, node)?;
    let is_last = core.axes.len() == 1 && core.axes.first().map(|axis| axis + 1) == Some(core.rank);
    let is_plain = is_last
        && !core.norm
        && core.inside.is_none()
        && core.is_in_place
        && core.input_is_squared(view)
        && core.nodes.len() > 1;
    let mut types = [core.input, core.output]
        .map(|value| view.facts.data_type(value))
        .into_iter();
    let are_floats = types.all(|data_type| data_type == Some(DataType::Float));
    (is_plain && are_floats).then_some(core)
}

/// The ε of a core. `None` if float32 cannot represent it.
fn narrow_epsilon(core: &Core) -> Option<f32> {
    let epsilon = core.epsilon?;
    let narrow = epsilon as f32;
    (f64::from(narrow) == epsilon).then_some(narrow)
}

/// Whether the division `node` divides the difference of the input and its mean, and the variance
/// is computed from this difference, or from the input. No Cast may lie between them.
fn subtracts_mean(view: &View, node: NodeId, core: &Core) -> bool {
    let graph = view.graph;
    let mut inputs = graph.inputs(node).iter().flatten().copied();
    let difference = inputs.find(|&value| {
        let sub = view.made_by(value, &["Sub"]);
        sub.is_some_and(|sub| graph.input(sub, 0) == Some(core.input))
    });
    let squared = if core.less_mean {
        Some(core.input)
    } else {
        difference
    };
    let has_cast = core.nodes.iter().any(|&node| graph.is(node, "Cast"));
    core.centred && difference.is_some() && squared == Some(core.squared) && !has_cast
}

/// The node with this operator that is the only reader of a value, and its other operand, if that
/// is a constant that varies only along the last axis, with one element for each channel.
fn vector_after(view: &View, value: ValueId, op: &str) -> Option<(NodeId, ValueId)> {
    let graph = view.graph;
    let (node, slot) = graph
        .only_reader(value)
        .filter(|&(node, _)| graph.is(node, op))?;
    let vector = graph.input(node, 1 - slot)?;
    let rank = view.facts.rank(value)?;
    let channels = view.facts.extent(value, rank.checked_sub(1)?)?;
    let own = view.facts.rank(vector)?;
    let places = own.checked_sub(1).filter(|_| own <= rank)?;
    let is_vector = view.facts.extent(vector, places)? == channels
        && (0..places).all(|axis| view.facts.extent(vector, axis) == Some(1));
    (view.constants.is_constant(vector) && is_vector).then_some((node, vector))
}

/// The name of a constant as a vector. A constant of a higher rank gets a copy of rank 1.
fn vector_name(view: &View, maker: &mut Maker, constant: ValueId) -> Option<String> {
    let name = view.graph.value_name(constant);
    let rank = view.facts.rank(constant)?;
    if rank == 1 {
        return Some(name.to_owned());
    }
    let shape: Option<Vec<usize>> = (0..rank)
        .map(|axis| view.facts.extent(constant, axis))
        .collect();
    let shape = shape?;
    let vector = Recipe::constant(name, &shape).reshape(&[*shape.last()?])?;
    Some(maker.floats(DataType::Float, &vector))
}
