//! Nodes of custom domains that are normalizers by name, by the convention in `docs/opaque.md`.

use super::{Lowered, label, plain};
use crate::graph::analysis::Analysis;
use crate::graph::names::Names;
use crate::hash::HashSet;
use crate::normalizer::KINDS;
use crate::normalizer::opaque::{Opaque, write};
use crate::onnx::Model;
use crate::onnx::node::canonical_domain;
use crate::onnx::proto::NodeProto;

/// Domains whose operators mean what their own specification says.
const FOREIGN: &[&str] = &["", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training", "com.microsoft"];

/// Writes such nodes out; `None` where there are none that are understood.
pub fn expand(model: &Model, skip: &dyn Fn(&str, &str) -> bool) -> Option<Lowered> {
    let local: HashSet<_> = model.proto.functions.iter().map(|f| (f.domain(), f.name())).collect();
    let candidate = |node: &NodeProto| {
        let own = !local.contains(&(node.domain(), node.op_type()));
        opaque(node).filter(|_| own && !skip(label(node), node.op_type()))
    };
    if !model.graph().node.iter().any(|node| candidate(node).is_some()) {
        return None;
    }
    let known = Analysis::new(model).ok()?;
    let mut names = Names::of(model);
    let mut result = model.clone();
    let (mut nodes, mut constants, mut formulas) = (vec![], vec![], vec![]);
    for node in &model.graph().node {
        match candidate(node).and_then(|opaque| write(&known, node, opaque, &mut names)) {
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
    result.graph_mut().node = nodes;
    result.graph_mut().initializer.extend(constants);
    Some(Lowered { model: result, formulas })
}

fn opaque(node: &NodeProto) -> Option<&'static Opaque> {
    if FOREIGN.contains(&canonical_domain(node.domain())) {
        return None;
    }
    let name = plain(node.op_type());
    KINDS.iter().flat_map(|kind| kind.opaque()).find(|opaque| opaque.names.contains(&name.as_str()))
}
