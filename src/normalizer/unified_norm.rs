//! UN: `γx/√(σ²+ε) + β` (Algorithm 2 of the UN paper). Only its name tells it from MABN and PN*.

use super::chain::offline;
use super::{Normalizer, Site, View};
use crate::graph::NodeId;

/// Unified Normalization.
pub struct UnifiedNorm;

impl Normalizer for UnifiedNorm {
    fn recognise(&self, view: &View, node: NodeId) -> Option<Site> {
        let chain = view.chain(node)?;
        let named = chain.is_per_channel()
            && (chain.mentions(&["un1d", "un2d", "unifiednorm", "unified_norm"])
                || chain.words.iter().any(|word| word == "un"));
        named.then(|| chain.site(view.graph, view.facts, offline("UN")))
    }
}
