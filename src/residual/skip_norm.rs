//! Normalizers of com.microsoft with the residual sum inside, written as the sum and a normalizer,
//! so that the rules for those apply. onnxruntime fuses both again.

use crate::affine::materialize::Edit;
use crate::affine::recognize::Replacement;
use crate::analysis::Analysis;
use crate::ir::NodeId;
use crate::ir::builder::{Maker, float, int};
use crate::onnx::operator::LAYER_NORMALIZATION;
use crate::onnx::tensor::DataType;

use crate::residual::rms_norm::written_out;

/// An operator with both, and its name without the sum.
struct NormalizedSum {
    op: &'static str,
    /// Whether the normalizer takes the mean off.
    centred: bool,
    /// The input that is added to the sum.
    bias: usize,
    /// The inputs that the normalizer has behind its first.
    parameters: std::ops::Range<usize>,
}

const OPERATORS: [NormalizedSum; 2] = [
    NormalizedSum {
        op: "SkipLayerNormalization",
        centred: true,
        bias: 4,
        parameters: 2..4,
    },
    NormalizedSum {
        op: "SkipSimplifiedLayerNormalization",
        centred: false,
        bias: 3,
        parameters: 2..3,
    },
];

/// The output that is the sum.
const SUM: usize = 3;

/// The edits that write all of them out.
pub fn summed_apart(analysis: &Analysis) -> Vec<Edit> {
    let graph = &analysis.graph;
    // The runtime has it in all versions, and a model that does shows that it is for that one.
    let has_layer_norm = graph.model().own_opset() >= LAYER_NORMALIZATION
        || graph
            .order()
            .iter()
            .any(|&node| graph.is(node, "LayerNormalization"));
    let edit = |&node: &NodeId| {
        Some(Edit::replacing(
            graph,
            node,
            apart(analysis, node, has_layer_norm)?,
        ))
    };
    graph.order().iter().filter_map(edit).collect()
}

/// The sum and the normalizer of one node; `None` where it is another, or its statistics are read.
fn apart(analysis: &Analysis, node: NodeId, has_layer_norm: bool) -> Option<Replacement> {
    let (graph, at) = (&analysis.graph, analysis.at(node));
    let (domain, op) = graph.domain_op(node);
    let skip = OPERATORS
        .iter()
        .find(|skip| domain == "com.microsoft" && skip.op == op)?;
    at.only_attributes(&["epsilon"]).ok()?;
    let is_there = !skip.centred || has_layer_norm;
    let is_read = |slot: usize| {
        graph
            .output(node, slot)
            .is_some_and(|made| !graph.readers(made).is_empty())
    };
    (is_there && !(1..SUM).any(is_read)).then_some(())?;
    let epsilon = at.attr_float("epsilon", 1e-12).ok()?;
    let name = |slot: usize| graph.input(node, slot).map(|value| graph.value_name(value));
    let mut maker = Maker::new(graph, node);
    let mut sum = maker.op("Add", &[name(0)?, name(1)?], vec![]);
    if let Some(bias) = name(skip.bias) {
        sum = maker.op("Add", &[&sum, bias], vec![]);
    }
    let parameters = skip.parameters.clone().map_while(name);
    if skip.centred {
        let inputs: Vec<&str> = [&*sum].into_iter().chain(parameters).collect();
        maker.op(
            "LayerNormalization",
            &inputs,
            vec![int("axis", -1), float("epsilon", epsilon as f32)],
        );
    } else {
        // No operator that ONNX had before version 23; the runtime makes its own of these.
        let own = analysis
            .facts
            .data_type(graph.input(node, 0)?)
            .filter(|own| own.is_float())?;
        let inside = if own == DataType::Double {
            own
        } else {
            DataType::Float
        };
        let normal = written_out(&mut maker, &sum, [own, inside], -1, epsilon);
        let [scale] = parameters.collect::<Vec<_>>()[..] else {
            return None;
        };
        maker.op("Mul", &[&normal, scale], vec![]);
    }
    let (mut made, constants) = maker.finish(graph.value_name(graph.output(node, 0)?));
    if let Some(whole) = graph.output(node, SUM) {
        let names = made
            .iter_mut()
            .flat_map(|node| node.input.iter_mut().chain(&mut node.output));
        names
            .filter(|name| **name == sum)
            .for_each(|name| graph.value_name(whole).clone_into(name));
    }
    Some(Replacement {
        nodes: vec![node],
        made,
        constants,
    })
}
