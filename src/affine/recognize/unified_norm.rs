//! UN: `γx/√(σ²+ε) + β` (Algorithm 2 of the UN paper). Only its name distinguishes it from MABN and
//! PN*.

use crate::affine::recognize::affine_chain::offline;
use crate::affine::recognize::opaque::{BETA, GAMMA, Opaque, VARIANCE, fixed};
use crate::affine::recognize::{Normalizer, Site, View};
use crate::ir::NodeId;

/// Unified Normalization.
pub(super) struct UnifiedNorm;

impl Normalizer for UnifiedNorm {
    fn recognize(&self, view: &View, node: NodeId) -> Option<Site> {
        let chain = view.chain(node)?;
        let is_named = chain.is_per_channel()
            && (chain.mentions(self.names())
                || chain
                    .words
                    .iter()
                    .any(|word| self.short_names().contains(&word.as_str())));
        is_named.then(|| chain.site(view, offline("UN")))
    }

    fn names(&self) -> &'static [&'static str] {
        &["un1d", "un2d", "unifiednorm", "unified_norm"]
    }

    fn short_names(&self) -> &'static [&'static str] {
        &["un"]
    }

    fn opaque(&self) -> &'static [Opaque] {
        &[Opaque {
            names: &["un", "un1d", "un2d", "unifiednorm", "unifiednormalization"],
            word: "un",
            parameters: &[GAMMA, BETA, VARIANCE],
            formula: |node| fixed(node, node.x()),
        }]
    }
}
