//! A per-channel affine that no name tells the kind of.

use super::chain::offline;
use super::{Normalizer, Site, View};
use crate::graph::NodeId;

/// Any other chain that scales channel by channel.
pub struct PerChannel;

impl Normalizer for PerChannel {
    fn recognise(&self, view: &View, node: NodeId) -> Option<Site> {
        let chain = view.chain(node)?;
        // A bare shift is a bias; one scale for all channels is no normalizer.
        chain.is_per_channel().then(|| chain.site(view.graph, view.facts, offline("per-channel affine")))
    }
}
