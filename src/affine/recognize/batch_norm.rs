//! BN: `γ(x − μ)/√(σ²+ε) + β`, as one operator or written out.

use crate::affine::recognize::affine_chain::{batch_norm, offline};
use crate::affine::recognize::opaque::{BETA, GAMMA, MEAN, Opaque, VARIANCE, fixed};
use crate::affine::recognize::{Normalizer, Site, View};
use crate::ir::NodeId;
use crate::refusal::Refusal;

/// Batch Normalization.
pub(super) struct BatchNorm;

impl Normalizer for BatchNorm {
    fn recognize(&self, view: &View, node: NodeId) -> Option<Site> {
        let kind = offline("BN");
        if let Some(chain) = view.chain(node) {
            let is_bn = chain.has_batch_norm(view.graph)
                || (chain.is_per_channel()
                    && (chain.mentions(self.names()) || chain.mentions(&["running_mean"])));
            return is_bn.then(|| chain.site(view, kind));
        }
        // A BatchNormalization that is not an affine with constants is listed with the reason.
        if !view.graph.is(node, "BatchNormalization") {
            return None;
        }
        let at = view.at(node);
        let reason = batch_norm(&at).err()?;
        Some(Site {
            channels: at
                .input(1)
                .ok()
                .and_then(|gamma| view.facts.extent(gamma, 0))
                .unwrap_or(0),
            axis: 1,
            refusal: Some(Refusal::new(reason, view.graph.name(node))),
            ..Site::new(kind, view.site_name(node), vec![node])
        })
    }

    fn names(&self) -> &'static [&'static str] {
        &["batchnorm"]
    }

    fn short_names(&self) -> &'static [&'static str] {
        &["bn"]
    }

    fn opaque(&self) -> &'static [Opaque] {
        &[Opaque {
            names: &[
                "bn",
                "batchnorm",
                "batchnorm1d",
                "batchnorm2d",
                "batchnormalization",
            ],
            word: "batchnorm",
            parameters: &[GAMMA, BETA, MEAN, VARIANCE],
            formula: |node| fixed(node, node.x()),
        }]
    }
}
