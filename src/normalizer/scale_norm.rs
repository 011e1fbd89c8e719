//! ScaleNorm: `g·x/‖x‖`, the norm taken of each token.

use super::{Normalizer, Site, View, statistics};
use crate::graph::NodeId;

/// Scale Normalization.
pub struct ScaleNorm;

impl Normalizer for ScaleNorm {
    fn recognise(&self, view: &View, node: NodeId) -> Option<Site> {
        let core = statistics::core(view, node)?;
        let is_scale_norm = !core.centred && core.norm && core.input_is_squared(view);
        is_scale_norm.then(|| statistics::site(view, "ScaleNorm", &core))
    }
}
