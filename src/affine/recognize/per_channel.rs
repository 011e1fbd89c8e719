//! A per-channel affine that is of no other kind.

use crate::affine::recognize::affine_chain::offline;
use crate::affine::recognize::region::divisor;
use crate::affine::recognize::{Family, Kind, Normalizer, Site, View};
use crate::ir::NodeId;

/// An affine after a quotient of varying values, whose magnitude is unknown.
const QUOTIENT: Kind = Kind {
    is_bounded: false,
    ..Kind::new("affine of a quotient", Family::Online)
};

/// An affine is of this kind no matter whether its constants are stored or computed.
const AFFINE: Kind = Kind {
    is_told_by_constants: false,
    ..offline("per-channel affine")
};

/// Any other chain that scales channel by channel.
pub(super) struct PerChannel;

impl Normalizer for PerChannel {
    fn recognize(&self, view: &View, node: NodeId) -> Option<Site> {
        let chain = view.chain(node)?;
        // The chain may be before or after the division, so both neighbours of the chain are
        // examined.
        let is_by_quotient = [view.maker(chain.input), view.only_reader(chain.output)]
            .into_iter()
            .flatten()
            .any(|node| is_quotient(view, node));
        let kind = if is_by_quotient { QUOTIENT } else { AFFINE };
        // A chain without a scale is not of this kind, but a bias. A chain that scales all channels
        // by one scalar is not a normalizer.
        chain.is_per_channel().then(|| chain.site(view, kind))
    }
}

/// Whether a node divides a varying value by another varying value. If so, the statistics of the
/// site are computed from the input.
fn is_quotient(view: &View, node: NodeId) -> bool {
    match view.graph.op(node) {
        Some("Div") => view.both_vary(node),
        Some("Mul") => view.both_vary(node) && divisor(view, node).is_some(),
        _ => false,
    }
}
