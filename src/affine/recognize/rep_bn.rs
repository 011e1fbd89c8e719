//! RepBN: `BN(x) + αx`, one affine with `s = γ/√(σ²+ε) + α`.

use crate::affine::recognize::affine_chain::offline;
use crate::affine::recognize::{Normalizer, Site, View};
use crate::ir::NodeId;

/// Re-parameterized Batch Normalization.
pub struct RepBn;

impl Normalizer for RepBn {
    fn recognise(&self, view: &View, node: NodeId) -> Option<Site> {
        let chain = view.chain(node)?;
        let named = chain.is_per_channel()
            && (chain.branches
                && (chain.has_batch_norm(view.graph) || chain.mentions(self.names())));
        named.then(|| chain.site(view, offline("RepBN")))
    }

    fn names(&self) -> &'static [&'static str] {
        &["repbn", "linearnorm"]
    }
}
