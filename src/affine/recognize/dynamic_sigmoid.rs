//! DyS: `γ·σ(αx) + β` with the logistic function σ.

use crate::affine::recognize::opaque::Opaque;
use crate::affine::recognize::{Normalizer, Site, View, pointwise};
use crate::ir::NodeId;

/// Dynamic Sigmoid.
pub(super) struct DynamicSigmoid;

impl Normalizer for DynamicSigmoid {
    fn recognize(&self, view: &View, node: NodeId) -> Option<Site> {
        pointwise::site(
            view,
            self,
            "DyS",
            pointwise::Bounded::operator(view, node, "Sigmoid")?,
        )
    }

    fn names(&self) -> &'static [&'static str] {
        &["dys", "dynamicsigmoid"]
    }

    fn opaque(&self) -> &'static [Opaque] {
        const {
            &[pointwise::opaque(&["dys", "dynamicsigmoid"], |node| {
                pointwise::written(node, "Sigmoid")
            })]
        }
    }
}
