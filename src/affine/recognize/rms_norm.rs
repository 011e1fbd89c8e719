//! RMSNorm: `γx/√(mean(x²)+ε)`, as one operator or written out. γ may be written as `1 + γ`.

use crate::affine::recognize::parameters::{Along, Operator, site};
use crate::affine::recognize::{Normalizer, Site, View, decomposed_norm, fusible};
use crate::ir::NodeId;

/// Root Mean Square Layer Normalization.
pub(super) struct RmsNorm;

impl Normalizer for RmsNorm {
    fn recognize(&self, view: &View, node: NodeId) -> Option<Site> {
        let scale = match view.graph.domain_op(node) {
            ("", "RMSNormalization") => 1,
            // Runtimes register this operator in the domain of ONNX.
            ("" | "com.microsoft", "SimplifiedLayerNormalization") => 1,
            ("com.microsoft", "SkipSimplifiedLayerNormalization") => 2,
            _ => {
                let core = decomposed_norm::core(view, node)?;
                let last = core.axes == [core.rank.checked_sub(1)?];
                let is_rms = !core.centred && !core.norm && last && core.input_is_squared(view);
                return is_rms.then(|| fusible::site(view, "RMSNorm", &core));
            }
        };
        site(
            view,
            node,
            &Operator {
                kind: "RMSNorm",
                scale,
                bias: None,
                along: Along::Trailing,
            },
        )
    }
}
