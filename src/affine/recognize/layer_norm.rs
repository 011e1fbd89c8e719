//! LN: `γ(x − μ)/√(σ²+ε) + β` with the statistics of each token, as one operator or written out.

use crate::affine::recognize::parameters::{Along, Operator, site};
use crate::affine::recognize::{Normalizer, Site, View, decomposed_norm, fusible};
use crate::ir::NodeId;

/// The name of the kind.
pub(crate) const NAME: &str = "LN";

/// Layer Normalization.
pub(crate) struct LayerNorm;

impl Normalizer for LayerNorm {
    fn recognize(&self, view: &View, node: NodeId) -> Option<Site> {
        let (scale, bias) = match view.graph.domain_op(node) {
            ("", "LayerNormalization") => (1, 2),
            ("com.microsoft", "LayerNormalization") => (1, 2),
            ("com.microsoft", "SkipLayerNormalization") => (2, 3),
            _ => {
                let core = decomposed_norm::core(view, node)?;
                let last = core.axes == [core.rank.checked_sub(1)?];
                let is_ln = core.centred && !core.norm && last && core.input_is_squared(view);
                return is_ln.then(|| fusible::site(view, NAME, &core));
            }
        };
        site(
            view,
            node,
            &Operator {
                kind: NAME,
                scale,
                bias: Some(bias),
                along: Along::Trailing,
            },
        )
    }

    fn short_names(&self) -> &'static [&'static str] {
        &["ln"]
    }
}
