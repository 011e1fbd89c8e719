//! Nodes of custom domains that are normalizers by name, by the convention in `docs/opaque.md`, and the Scaler of
//! `ai.onnx.ml`.

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

/// Domains whose operators mean what their own specification says.
const FOREIGN: &[&str] = &[
    "",
    "ai.onnx.ml",
    "ai.onnx.training",
    "ai.onnx.preview.training",
    "com.microsoft",
];

/// The Scaler of `ai.onnx.ml`, as scikit-learn's StandardScaler is exported.
const SCALER: Opaque = Opaque {
    names: &["scaler"],
    word: "Scaler",
    parameters: &[OFFSET, FACTOR],
    formula: scaled,
};

/// Expands nodes of custom domains; `None` if none is understood.
pub fn expand(
    model: &Model,
    lowering: Lowering,
    skip: &dyn Fn(&str, &str) -> bool,
) -> Option<Lowered> {
    let local: HashSet<_> = model
        .proto
        .functions
        .iter()
        .map(|f| (f.domain(), f.name()))
        .collect();
    let candidate = |node: &NodeProto| {
        let own = !local.contains(&(node.domain(), node.op_type()));
        opaque(node, lowering).filter(|_| own && !skip(label(node), node.op_type()))
    };
    if !model
        .graph()
        .node
        .iter()
        .any(|node| candidate(node).is_some())
    {
        return None;
    }
    let analysis = Analysis::new(model).ok()?;
    let mut names = Names::new(model);
    let (mut nodes, mut constants, mut formulas) = (vec![], vec![], vec![]);
    for node in &model.graph().node {
        let meant = candidate(node).filter(|_| !is_scaler(node) || reads_floats(&analysis, node));
        match meant.and_then(|opaque| write(&analysis, node, opaque, &mut names)) {
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
pub fn is_scaler(node: &NodeProto) -> bool {
    node.op() == ("ai.onnx.ml", "Scaler")
}

/// Whether it is known to read floats: a Scaler reads integers as well.
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
        let is_own = |name: &str| [OFFSET, FACTOR].concat().contains(&name);
        let is_plain =
            node.input.len() == 1 && node.attribute.iter().all(|given| is_own(given.name()));
        return is_plain.then_some(&SCALER);
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
