//! LayerScale: a bare scale of each channel behind a linear operator, before the residual stream.

use super::{Family, Kind, Normalizer, Site, View};
use crate::graph::NodeId;
use crate::onnx::operator::Category;

/// The per-channel scale of CaiT, DeiT-III and DINOv2.
pub struct LayerScale;

impl Normalizer for LayerScale {
    fn recognise(&self, view: &View, node: NodeId) -> Option<Site> {
        let chain = view.chain(node)?;
        let scales = chain.spread.is_some() && chain.affine.has_no_shift();
        let maker = view.maker(chain.input)?;
        let behind = |what: Category| what.is_product() || what == Category::Movement;
        let linear = view.graph.category(maker).is_some_and(behind) || view.graph.is(maker, "Add");
        let residual = view.only_reader(chain.output).is_some_and(|reader| view.graph.is(reader, "Add"));
        let kind = Kind { name: "LayerScale", family: Family::Scale };
        (scales && linear && residual).then(|| chain.site(view.graph, view.facts, kind))
    }
}
