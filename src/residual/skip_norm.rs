//! Splits each normalizer of com.microsoft that contains the residual sum into a sum and a
//! normalizer, so that the rules for these two apply. onnxruntime fuses both again.

use crate::affine::materialize::Edit;
use crate::affine::recognize::Replacement;
use crate::analysis::Analysis;
use crate::analysis::node_view::At;
use crate::ir::NodeId;
use crate::ir::builder::{Maker, float, int};
use crate::onnx::operator::LAYER_NORMALIZATION;
use crate::onnx::tensor::DataType;

use crate::residual::layer_norm_to_rms::written_out;

/// An operator that adds and then normalizes.
struct NormalizedSum {
    op: &'static str,
    /// Whether the normalizer subtracts the mean.
    centred: bool,
    /// The input that is added to the sum.
    bias: usize,
    /// The inputs that are the parameters of the normalizer: γ, and β if the normalizer subtracts
    /// the mean.
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

/// The edits that write all nodes of [`OPERATORS`] as a sum and a normalizer.
pub(crate) fn summed_apart(analysis: &Analysis) -> Vec<Edit> {
    let graph = &analysis.graph;
    // onnxruntime has LayerNormalization for all operator sets. A model with an older operator set
    // that contains one is made for onnxruntime, so more may be added to it.
    let has_layer_norm = graph.model().own_opset() >= LAYER_NORMALIZATION
        || graph
            .order()
            .iter()
            .any(|&node| graph.is(node, "LayerNormalization"));
    let mut edits = vec![];
    for &node in graph.order() {
        if let Some(replacement) = apart(analysis, node, has_layer_norm) {
            edits.push(Edit::replacing(graph, node, replacement));
        }
    }
    edits
}

/// Writes one node as a sum and a normalizer. `None` for other operators, or if a node reads the
/// statistics.
fn apart(analysis: &Analysis, node: NodeId, has_layer_norm: bool) -> Option<Replacement> {
    let (graph, at) = (&analysis.graph, analysis.at(node));
    let (domain, op) = graph.domain_op(node);
    let skip = OPERATORS
        .iter()
        .find(|skip| domain == "com.microsoft" && skip.op == op)?;
    at.only_attributes(&["epsilon"]).ok()?;
    let has_operator = !skip.centred || has_layer_norm;
    let mut statistics = (1..SUM).filter_map(|slot| graph.output(node, slot));
    let are_unread = statistics.all(|value| graph.readers(value).is_empty());
    (has_operator && are_unread).then_some(())?;
    let mut maker = Maker::new(graph, node);
    let terms = [input_name(&at, 0)?, input_name(&at, 1)?];
    let mut sum = maker.op("Add", &terms, vec![]);
    if let Some(bias) = input_name(&at, skip.bias) {
        sum = maker.op("Add", &[&sum, bias], vec![]);
    }
    skip.normalize(&at, &mut maker, &sum)?;
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

/// The name of an input, if the node has it.
fn input_name<'a>(at: &At<'a>, slot: usize) -> Option<&'a str> {
    let value = at.graph.input(at.node, slot)?;
    Some(at.graph.value_name(value))
}

impl NormalizedSum {
    /// Writes the normalizer of a sum. The last written node computes the result of the normalizer.
    fn normalize(&self, at: &At, maker: &mut Maker, sum: &str) -> Option<()> {
        let epsilon = at.attr_float("epsilon", 1e-12).ok()?;
        let parameters = self.parameters.clone();
        let parameters: Vec<&str> = parameters.map_while(|slot| input_name(at, slot)).collect();
        if self.centred {
            let inputs = [&[sum], &parameters[..]].concat();
            let attributes = vec![int("axis", -1), float("epsilon", epsilon as f32)];
            maker.op("LayerNormalization", &inputs, attributes);
            return Some(());
        }
        // ONNX has no RMS normalization before operator set 23, so several nodes compute it.
        // onnxruntime fuses these nodes into its own operator.
        let own = at
            .facts
            .data_type(at.input(0).ok()?)
            .filter(|own| own.is_float())?;
        let inside = if own == DataType::Double {
            own
        } else {
            DataType::Float
        };
        let normal = written_out(maker, sum, [own, inside], -1, epsilon);
        let [scale] = parameters[..] else {
            return None;
        };
        maker.op("Mul", &[&normal, scale], vec![]);
        Some(())
    }
}
