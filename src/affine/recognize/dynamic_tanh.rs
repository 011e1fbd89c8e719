//! DyT: `γ·tanh(αx) + β`.

use crate::affine::recognize::opaque::Opaque;
use crate::affine::recognize::{Normalizer, Site, View, pointwise};
use crate::ir::NodeId;

/// Dynamic Tanh.
pub(super) struct DynamicTanh;

impl Normalizer for DynamicTanh {
    fn recognize(&self, view: &View, node: NodeId) -> Option<Site> {
        pointwise::site(
            view,
            self,
            "DyT",
            pointwise::Bounded::operator(view, node, "Tanh")?,
        )
    }

    fn names(&self) -> &'static [&'static str] {
        &["dyt", "dynamictanh"]
    }

    fn opaque(&self) -> &'static [Opaque] {
        const {
            &[pointwise::opaque(&["dyt", "dynamictanh"], |node| {
                pointwise::written(node, "Tanh")
            })]
        }
    }
}
