//! RepBN: `BN(x) + αx`, one affine with `s = γ/√(σ²+ε) + α`.

use crate::affine::recognize::affine_chain::offline;
use crate::affine::recognize::{Normalizer, Site, View};
use crate::ir::NodeId;

/// Re-parameterized Batch Normalization.
pub(super) struct RepBn;

impl Normalizer for RepBn {
    fn recognize(&self, view: &View, node: NodeId) -> Option<Site> {
        let chain = view.chain(node)?;
        let is_batch_norm = chain.has_batch_norm(view.graph) || chain.mentions(self.names());
        let is_rep_bn = chain.is_per_channel() && chain.has_branches && is_batch_norm;
        is_rep_bn.then(|| chain.site(view, offline("RepBN")))
    }

    fn names(&self) -> &'static [&'static str] {
        &["repbn", "linearnorm"]
    }
}
