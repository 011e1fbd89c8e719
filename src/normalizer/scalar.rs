//! One number for all channels: a residual or an embedding multiplier, the halves of a macaron block, a learnable
//! affine block of two numbers, a product with 1, a sum with 0.

use super::{Family, Kind, Normalizer, Site, View};
use crate::graph::NodeId;
use crate::onnx::tensor::DataType;

/// Any other chain that scales by one number, or does nothing at all.
pub struct Scalar;

impl Normalizer for Scalar {
    fn recognise(&self, view: &View, node: NodeId) -> Option<Site> {
        let chain = view.chain(node)?;
        let is_float = view.facts.data_type(chain.output).is_some_and(DataType::is_float);
        let scales = chain.affine.scale.len() == 1 && !chain.affine.has_no_scale();
        // A sign is no number that somebody chose: rotary embeddings turn one half of the channels round.
        let has_number = chain.nodes.iter().any(|&node| !view.graph.is(node, "Neg"));
        let kind = Kind { name: "scalar affine", family: Family::Scale };
        (is_float && has_number && (scales || chain.affine.is_identity()))
            .then(|| chain.site(view.graph, view.facts, kind))
    }
}
