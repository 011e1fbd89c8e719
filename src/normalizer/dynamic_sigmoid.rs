//! DyS: `γ·σ(αx) + β` with the logistic function σ.

use super::{Normalizer, Site, View, pointwise};
use crate::graph::NodeId;

/// Dynamic Sigmoid.
pub struct DynamicSigmoid;

impl Normalizer for DynamicSigmoid {
    fn recognise(&self, view: &View, node: NodeId) -> Option<Site> {
        pointwise::site(view, "DyS", pointwise::Bounded::operator(view, node, "Sigmoid")?)
    }
}
