//! The scalar that scales a residual branch, learned as in ReZero, or fixed as ½.

use crate::affine::recognize::layer_scale::ends_branch;
use crate::affine::recognize::{Family, Kind, Normalizer, Site, View};
use crate::ir::NodeId;

/// A scalar scale after a linear operator, before the residual stream.
pub(super) struct ResidualScale;

impl Normalizer for ResidualScale {
    fn recognize(&self, view: &View, node: NodeId) -> Option<Site> {
        let chain = view.chain(node)?;
        let is_number = chain.affine.scale.len() == 1 && !chain.affine.has_no_scale();
        let turns = chain.nodes.iter().all(|&node| view.graph.is(node, "Neg"));
        let kind = Kind::new("residual scale", Family::Scale);
        let scales = is_number && !turns && ends_branch(view, chain);
        scales.then(|| Site {
            axis: view.facts.rank(chain.output).unwrap_or(1).max(1) - 1,
            ..chain.site(view, kind)
        })
    }
}
