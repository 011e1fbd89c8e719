//! MABN: `γx/√(σ²+ε) + β` with a quadratic mean σ². Only its name tells it from UN and PN*.

use super::chain::offline;
use super::opaque::{BETA, GAMMA, Opaque, VARIANCE, fixed};
use super::{Normalizer, Site, View};
use crate::graph::NodeId;

/// Moving Average Batch Normalization.
pub struct Mabn;

impl Normalizer for Mabn {
    fn recognise(&self, view: &View, node: NodeId) -> Option<Site> {
        let chain = view.chain(node)?;
        let named = chain.is_per_channel() && chain.mentions(self.names());
        named.then(|| chain.site(view, offline("MABN")))
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
