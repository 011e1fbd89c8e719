//! IN: each channel of each sample has its own statistics over the places.

use crate::affine::recognize::parameters::{Along, Operator, site};
use crate::affine::recognize::{Normalizer, Site, View, decomposed_norm};
use crate::ir::NodeId;

/// Instance Normalization.
pub(super) struct InstanceNorm;

impl Normalizer for InstanceNorm {
    fn recognize(&self, view: &View, node: NodeId) -> Option<Site> {
        if view.graph.domain_op(node) == ("", "InstanceNormalization") {
            let operator = Operator {
                kind: "IN",
                scale: 1,
                bias: Some(2),
                along: Along::Axis(1),
            };
            return site(view, node, &operator);
        }
        let core = decomposed_norm::core(view, node)?;
        let places =
            !core.axes.is_empty() && core.axes.iter().all(|&axis| axis > 0 && axis < core.rank);
        let last = core.rank.checked_sub(1)?;
        // If the statistics are over only the last axis, the normalizer is an LN of tokens with
        // channels last.
        let is_in = core.centred
            && !core.norm
            && places
            && core.axes != [last]
            && core.input_is_squared(view);
        is_in.then(|| decomposed_norm::site(view, "IN", &core))
    }
}
