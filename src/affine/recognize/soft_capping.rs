//! Soft capping, `c·tanh(x/c)`, of the scores of attention or of the logits.

use crate::affine::recognize::pointwise::{Bounded, numbers};
use crate::affine::recognize::{Family, Kind, Normalizer, Site, View};
use crate::ir::NodeId;

/// A Tanh between two scalar factors, of which the second has a magnitude above 1.
pub(super) struct SoftCapping;

impl Normalizer for SoftCapping {
    fn recognize(&self, view: &View, node: NodeId) -> Option<Site> {
        let Bounded { input, output, .. } = Bounded::operator(view, node, "Tanh")?;
        let (before, behind) = (numbers(view, input)?, view.chain_from(output)?);
        let cap = behind.affine.scale.first()?;
        let caps = behind.affine.scale.len() == 1 && cap.is_finite() && cap.abs() > 1.0;
        if !caps
            || behind.factor_axis.is_some()
            || ![before, behind].iter().all(|c| c.affine.has_no_shift())
        {
            return None;
        }
        let axis = view.facts.rank(output)?.max(1) - 1;
        Some(Site {
            channels: view.facts.extent(output, axis).unwrap_or(1),
            axis,
            pre: Some(before.part()),
            post: Some(behind.part()),
            ..Site::new(
                Kind::new("soft capping", Family::Scale),
                view.site_name(node),
                [&before.nodes[..], &[node], &behind.nodes].concat(),
            )
        })
    }
}
