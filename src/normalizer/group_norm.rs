//! GN: statistics over the places of groups of channels.

use super::parameters::{Along, Operator, site};
use super::{Normalizer, Site, View};
use crate::graph::NodeId;

/// Group Normalization.
pub struct GroupNorm;

impl Normalizer for GroupNorm {
    fn recognise(&self, view: &View, node: NodeId) -> Option<Site> {
        let axis = match view.graph.domain_op(node) {
            ("", "GroupNormalization") => 1,
            ("com.microsoft", "GroupNorm") => {
                let at = view.at(node);
                // With an activation behind it the parameters are in the middle of the operator.
                if at.attr("activation", 0).ok()? != 0 {
                    return None;
                }
                let last = view.facts.rank(view.graph.output(node, 0)?)?.checked_sub(1)?;
                if at.attr("channels_last", 1).ok()? != 0 { last } else { 1 }
            }
            _ => return None,
        };
        site(view, node, &Operator { kind: "GN", scale: 1, bias: Some(2), along: Along::Axis(axis) })
    }
}
