//! One scalar for all channels: a residual or embedding multiplier, the halves of a macaron block,
//! a learnable affine of two scalars, a product with 1, a sum with 0.

use crate::affine::recognize::{Family, Kind, Normalizer, Site, View};
use crate::ir::{NodeId, ValueId};
use crate::onnx::operator::Category;
use crate::onnx::tensor::DataType;

/// The largest number of operators between a Shape and a value that is computed from it.
const DEPTH: usize = 16;

/// Any other chain that scales by one scalar, or that does nothing.
pub(super) struct Scalar;

impl Normalizer for Scalar {
    fn recognize(&self, view: &View, node: NodeId) -> Option<Site> {
        let chain = view.chain(node)?;
        let is_float = view
            .facts
            .data_type(chain.output)
            .is_some_and(DataType::is_float);
        let scales = chain.affine.scale.len() == 1 && !chain.affine.has_no_scale();
        // A mere sign does not count: rotary embeddings negate one half of the channels.
        let has_number = chain.nodes.iter().any(|&node| !view.graph.is(node, "Neg"));
        let kind = Kind::new("scalar affine", Family::Scale);
        (is_float
            && has_number
            && (scales || chain.affine.is_identity())
            && !is_of_extents(view, chain.input))
        .then(|| chain.site(view, kind))
    }
}

/// Whether a value is computed only from the extents of another value. A chain on this value is not
/// a site, because it computes a shape and not a tensor.
pub(super) fn is_of_extents(view: &View, mut value: ValueId) -> bool {
    for _ in 0..DEPTH {
        let Some(node) = view.maker(value) else {
            return false;
        };
        if matches!(view.graph.op(node), Some("Shape" | "Size")) {
            return true;
        }
        let selects = matches!(
            view.graph.op(node),
            Some("Concat" | "Gather" | "Slice" | "Squeeze" | "Unsqueeze")
        );
        let computes = view
            .graph
            .category(node)
            .is_some_and(Category::is_elementwise);
        let goes_on = selects || computes || view.graph.is(node, "Cast");
        let mut varying = view
            .graph
            .inputs(node)
            .iter()
            .flatten()
            .filter(|&&input| !view.constants.is_constant(input));
        match (varying.next(), varying.next()) {
            (Some(&input), None) if goes_on => value = input,
            _ => return false,
        }
    }
    false
}
