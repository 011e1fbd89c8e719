//! Standardisation of the input, `(x − mean)/std`, and its inverse on an output.

use crate::affine::recognize::{Family, Kind, Normalizer, Site, View};
use crate::ir::NodeId;

/// A per-channel affine right after a graph input or right before a graph output.
pub(super) struct Standardisation;

impl Normalizer for Standardisation {
    fn recognize(&self, view: &View, node: NodeId) -> Option<Site> {
        let chain = view.chain(node)?;
        let name = if view.graph.is_input(chain.input) {
            "standardisation"
        } else if view.graph.is_output(chain.output) {
            "de-normalisation"
        } else {
            return None;
        };
        let scales = !chain.affine.has_no_scale();
        scales.then(|| chain.site(view, Kind::new(name, Family::Scale)))
    }
}
