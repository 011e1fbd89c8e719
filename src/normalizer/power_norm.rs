//! PN*: `γx/√(φ+ε) + β`, PowerNorm without its group scaling.

use super::chain::offline;
use super::{Normalizer, Site, View};
use crate::graph::NodeId;

/// PowerNorm without group scaling.
pub struct PowerNorm;

impl Normalizer for PowerNorm {
    fn recognise(&self, view: &View, node: NodeId) -> Option<Site> {
        let chain = view.chain(node)?;
        let named = chain.mentions(&["running_phi", "powernorm", "maskpowernorm"]);
        named.then(|| chain.site(view.graph, view.facts, offline("PN*")))
    }
}
