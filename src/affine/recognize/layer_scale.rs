//! LayerScale: a scale of each channel, without a shift, after a linear operator and before the
//! residual stream.

use crate::affine::recognize::affine_chain::Chain;
use crate::affine::recognize::{Family, Kind, Normalizer, Site, View};
use crate::ir::NodeId;
use crate::onnx::operator::Category;

/// The per-channel scale of CaiT, DeiT-III and DINOv2.
pub(super) struct LayerScale;

impl Normalizer for LayerScale {
    fn recognize(&self, view: &View, node: NodeId) -> Option<Site> {
        let chain = view.chain(node)?;
        let scales = chain.factor_axis.is_some() && ends_branch(view, chain);
        let kind = Kind::new("LayerScale", Family::Scale);
        scales.then(|| chain.site(view, kind))
    }
}

/// Whether a chain only scales the result of a linear operator, before the result is added to
/// another value.
pub(super) fn ends_branch(view: &View, chain: &Chain) -> bool {
    let maker = view.maker(chain.input);
    let reader = view.only_reader(chain.output);
    chain.affine.has_no_shift()
        && maker.is_some_and(|maker| is_linear(view, maker))
        && reader.is_some_and(|reader| view.graph.is(reader, "Add"))
}

/// Whether a node is a linear operator, or may lie between one and a scale: a movement, or the Add
/// of a bias.
fn is_linear(view: &View, node: NodeId) -> bool {
    let category = view.graph.category(node);
    category.is_some_and(Category::is_product)
        || category == Some(Category::Movement)
        || view.graph.is(node, "Add")
}
