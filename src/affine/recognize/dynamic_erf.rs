//! Derf: `γ·erf(αx + s) + β`.

use crate::affine::recognize::opaque::{ALPHA, BETA, Expansion, GAMMA, Opaque, Parameter, Written};
use crate::affine::recognize::{Normalizer, Site, View, pointwise};
use crate::ir::NodeId;

/// Dynamic erf.
pub(super) struct DynamicErf;

impl Normalizer for DynamicErf {
    fn recognize(&self, view: &View, node: NodeId) -> Option<Site> {
        pointwise::site(
            view,
            self,
            "Derf",
            pointwise::Bounded::operator(view, node, "Erf")?,
        )
    }

    fn names(&self) -> &'static [&'static str] {
        &["derf", "dynamicerf", "dynamic_erf"]
    }

    fn opaque(&self) -> &'static [Opaque] {
        const {
            &[Opaque {
                names: &["derf", "dynamicerf"],
                word: "derf",
                parameters: &[ALPHA, SHIFT, GAMMA, BETA],
                formula: written,
            }]
        }
    }
}

/// The summand of `αx`; 0 by default.
const SHIFT: Parameter = &["shift", "s"];

/// The first operator set with an Erf.
const SINCE: i64 = 9;

fn written(node: &mut Expansion) -> Option<Written> {
    (node.opset() >= SINCE).then_some(())?;
    let alpha = node.get(ALPHA).filter(|alpha| alpha.len() == 1)?;
    let mut value = node.with("Mul", &node.x(), &alpha)?;
    if let Some(shift) = node.get(SHIFT) {
        value = node.with(
            "Add",
            &value,
            Some(&shift).filter(|shift| shift.len() == 1)?,
        )?;
    }
    Some(pointwise::bounded(node, "Erf", &value))
}
