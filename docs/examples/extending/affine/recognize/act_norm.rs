//! ActNorm: `s·(x + b)`. The first batch of training sets s and b; later batches train them.

use super::affine_chain::offline;
use super::opaque::{BETA, GAMMA, Opaque, Written};
use super::{Normalizer, Site, View};
use crate::ir::NodeId;

/// Activation normalization.
pub(crate) struct ActNorm;

impl Normalizer for ActNorm {
    fn recognize(&self, view: &View, node: NodeId) -> Option<Site> {
        let chain = view.chain(node)?;
        let named = chain.is_per_channel() && chain.mentions(self.names());
        named.then(|| chain.site(view, offline("ActNorm")))
    }

    fn names(&self) -> &'static [&'static str] {
        &["actnorm", "act_norm"]
    }

    fn opaque(&self) -> &'static [Opaque] {
        &[Opaque {
            names: &["actnorm", "actnorm1d", "actnorm2d"],
            word: "actnorm",
            parameters: &[GAMMA, BETA],
            formula: |node| {
                let (s, b) = (node.get(GAMMA)?, node.get(BETA)?);
                Some(Written {
                    value: node.x(),
                    shift: &s * &b,
                    scale: s,
                })
            },
        }]
    }
}
