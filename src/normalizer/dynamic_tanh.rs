//! DyT: `γ·tanh(αx) + β`.

use super::{Normalizer, Site, View, pointwise};
use crate::graph::NodeId;

/// Dynamic Tanh.
pub struct DynamicTanh;

impl Normalizer for DynamicTanh {
    fn recognise(&self, view: &View, node: NodeId) -> Option<Site> {
        pointwise::site(view, "DyT", pointwise::Bounded::operator(view, node, "Tanh")?)
    }
}
