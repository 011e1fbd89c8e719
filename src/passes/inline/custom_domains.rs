//! Expands nodes of custom domains whose names mark them as normalizers, by the convention in
//! `docs/opaque.md`, and the Scaler of `ai.onnx.ml`.

use crate::affine::recognize::KINDS;
use crate::affine::recognize::opaque::{FACTOR, OFFSET, Opaque, scaled, write};
use crate::analysis::Analysis;
use crate::hash::HashSet;
use crate::ir::names::Names;
use crate::onnx::Model;
use crate::onnx::node::canonical_domain;
use crate::onnx::proto::NodeProto;
use crate::onnx::tensor::DataType;
use crate::passes::inline::{Lowered, Lowering, label, plain};

/// Domains whose operators have a specification. Such an operator is not taken for a normalizer
/// only because of its name.
const FOREIGN: &[&str] = &[
    "",
    "ai.onnx.ml",
    "ai.onnx.training",
    "ai.onnx.preview.training",
    "com.microsoft",
];

/// The Scaler of `ai.onnx.ml`. scikit-learn's StandardScaler is exported as a Scaler.
const SCALER: Opaque = Opaque {
    names: &["scaler"],
    word: "Scaler",
    parameters: &[OFFSET, FACTOR],
    formula: scaled,
};

/// Expands the nodes of custom domains that are normalizers, and with [`Lowering::All`] also
/// Scalers. `None` if no node can be expanded.
pub(super) fn expand(
    model: &Model,
    lowering: Lowering,
    skip: &dyn Fn(&str, &str) -> bool,
) -> Option<Lowered> {
    let functions: HashSet<_> = model
        .proto
        .functions
        .iter()
        .map(|function| (function.domain(), function.name()))
        .collect();
    let found: Vec<Option<&Opaque>> = model
        .graph()
        .node
        .iter()
        .map(|node| {
            let is_call = functions.contains(&(node.domain(), node.op_type()));
            opaque(node, lowering).filter(|_| !is_call && !skip(label(node), node.op_type()))
        })
        .collect();
    if found.iter().all(Option::is_none) {
        return None;
    }
    let analysis = Analysis::new(model).ok()?;
    let mut names = Names::new(model);
    let (mut nodes, mut constants, mut formulas) = (vec![], vec![], vec![]);
    for (node, opaque) in model.graph().node.iter().zip(found) {
        let opaque = opaque.filter(|_| !is_scaler(node) || reads_floats(&analysis, node));
        match opaque.and_then(|opaque| write(&analysis, node, opaque, &mut names)) {
            Some(expanded) => {
                nodes.extend(expanded.nodes);
                constants.extend(expanded.constants);
                formulas.extend(expanded.formulas);
            }
            None => nodes.push(node.clone()),
        }
    }
    if constants.is_empty() && nodes.len() == model.graph().node.len() {
        return None;
    }
    Some(Lowered {
        model: model.with_nodes(nodes, constants),
        formulas,
    })
}

/// Whether a node is a Scaler.
pub(super) fn is_scaler(node: &NodeProto) -> bool {
    node.op() == ("ai.onnx.ml", "Scaler")
}

/// Whether a node is known to read floats. A Scaler that may read integers is not expanded.
fn reads_floats(analysis: &Analysis, node: &NodeProto) -> bool {
    let value = node
        .input
        .first()
        .and_then(|name| analysis.graph.value(name));
    value
        .and_then(|value| analysis.facts.data_type(value))
        .is_some_and(DataType::is_float)
}

fn opaque(node: &NodeProto, lowering: Lowering) -> Option<&'static Opaque> {
    if is_scaler(node) && lowering == Lowering::All {
        let parameters = [OFFSET, FACTOR].concat();
        let mut attributes = node.attribute.iter();
        let has_only_parameters = attributes.all(|given| parameters.contains(&given.name()));
        return (node.input.len() == 1 && has_only_parameters).then_some(&SCALER);
    }
    if FOREIGN.contains(&canonical_domain(node.domain())) {
        return None;
    }
    let name = plain(node.op_type());
    KINDS
        .iter()
        .flat_map(|kind| kind.opaque())
        .find(|opaque| opaque.names.contains(&name.as_str()))
}
