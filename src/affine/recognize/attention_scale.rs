//! The scale of attention, `softmax(s·QKᵀ)`: one scalar on Q, on K, on both, or on the scores.

use crate::affine::recognize::{Family, Kind, Normalizer, Site, View};
use crate::ir::{NodeId, Reader, ValueId};
use crate::onnx::operator::Category;

/// A scalar factor before or after a product of two varying matrices, whose result leads to a
/// softmax.
pub(super) struct AttentionScale;

/// The largest number of operators between the scale and the softmax.
const REACH: usize = 12;

impl Normalizer for AttentionScale {
    fn recognize(&self, view: &View, node: NodeId) -> Option<Site> {
        let chain = view.chain(node)?;
        let is_number = chain.affine.scale.len() == 1
            && chain.affine.has_no_shift()
            && !chain.affine.has_no_scale();
        // A chain of only a Neg is not a scale: a rotary embedding negates one half of the
        // channels.
        let is_scale = chain.nodes.iter().any(|&node| !view.graph.is(node, "Neg"));
        let kind = Kind::new("attention scale", Family::Scale);
        (is_number && is_scale && feeds_softmax(view, chain.input, chain.output)).then(|| Site {
            axis: view.facts.rank(chain.output).unwrap_or(1).max(1) - 1,
            ..chain.site(view, kind)
        })
    }
}

/// Whether a softmax is reached from `output`, and a product of two varying matrices is right
/// before `input` or on the path to the softmax.
fn feeds_softmax(view: &View, input: ValueId, output: ValueId) -> bool {
    let scores = view.maker(input).is_some_and(|node| is_product(view, node));
    let mut open = vec![(output, scores, 0)];
    while let Some((value, product, steps)) = open.pop() {
        for reader in view.graph.readers(value) {
            let Reader::Node { node, .. } = *reader else {
                continue;
            };
            if view.graph.is(node, "Softmax") {
                if product {
                    return true;
                }
                continue;
            }
            let product_here = is_product(view, node);
            let passes = view.widens(node)
                || view.graph.category(node) == Some(Category::Arithmetic)
                || matches!(view.graph.op(node), Some("Concat" | "Slice" | "Split" | "Where"))
                // Talking heads mix the scores of all heads by another matrix product before the
                // softmax.
                || (product && view.graph.is(node, "MatMul"));
            if steps < REACH && (passes || (product_here && !product)) {
                let outputs = view.graph.outputs(node).iter().flatten();
                open.extend(outputs.map(|&value| (value, product || product_here, steps + 1)));
            }
        }
    }
    false
}

/// Whether a node multiplies two varying matrices.
fn is_product(view: &View, node: NodeId) -> bool {
    view.graph.category(node) == Some(Category::MatrixProduct) && view.both_vary(node)
}
