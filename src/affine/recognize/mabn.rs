//! MABN: `γx/√(σ²+ε) + β` with a quadratic mean σ². Only its name distinguishes it from UN and PN*.

use crate::affine::recognize::affine_chain::offline;
use crate::affine::recognize::opaque::{BETA, GAMMA, Opaque, VARIANCE, fixed};
use crate::affine::recognize::{Normalizer, Site, View};
use crate::ir::NodeId;

/// Moving Average Batch Normalization.
pub(super) struct Mabn;

impl Normalizer for Mabn {
    fn recognize(&self, view: &View, node: NodeId) -> Option<Site> {
        let chain = view.chain(node)?;
        let is_named = chain.is_per_channel() && chain.mentions(self.names());
        is_named.then(|| chain.site(view, offline("MABN")))
    }

    fn names(&self) -> &'static [&'static str] {
        &["mabn"]
    }

    fn opaque(&self) -> &'static [Opaque] {
        &[Opaque {
            names: &["mabn", "mabn1d", "mabn2d"],
            word: "mabn",
            parameters: &[GAMMA, BETA, VARIANCE],
            formula: |node| fixed(node, node.x()),
        }]
    }
}
