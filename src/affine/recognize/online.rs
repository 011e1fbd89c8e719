//! The statistics of a recognized site: the value, the axes, and the kind of normalization.

use crate::affine::recognize::decomposed_norm::{Core, scaled_core};
use crate::affine::recognize::{Family, Site, View};
use crate::ir::NodeId;
use crate::ir::axes::axis;

/// For each site, its core, or `None` if the site does not normalize by statistics of its input.
pub(crate) fn cores(view: &View, sites: &[Site]) -> Vec<Option<Core>> {
    sites.iter().map(|site| core(view, site)).collect()
}

/// The core of a site that normalizes by statistics of its input. `None` if the site has no such
/// core, if its axes are unknown, or if a place may be divided by the statistics of another place.
pub(crate) fn core(view: &View, site: &Site) -> Option<Core> {
    if site.kind.family != Family::Online {
        return None;
    }
    let found = site.nodes.iter().rev().find_map(|&node| {
        let core = operator(view, node).or_else(|| scaled_core(view, node))?;
        core.nodes
            .iter()
            .all(|node| site.nodes.contains(node))
            .then_some(core)
    });
    found.filter(|core| core.is_in_place && core.input_is_squared(view))
}

/// The core of an operator that normalizes along the last axes. `None` for other nodes.
fn operator(view: &View, node: NodeId) -> Option<Core> {
    let (graph, at) = (view.graph, view.at(node));
    let centred = match graph.domain_op(node) {
        ("" | "com.microsoft", "LayerNormalization") => true,
        ("", "RMSNormalization") | ("" | "com.microsoft", "SimplifiedLayerNormalization") => false,
        _ => return None,
    };
    let input = graph.input(node, 0)?;
    let rank = view.facts.rank(input)?;
    let first = axis(at.attr("axis", -1).ok()?, rank).ok()?;
    Some(Core {
        input,
        // `None` if a node reads the statistics, which are the other outputs.
        output: graph.only_output(node)?,
        centred,
        norm: false,
        squared: input,
        less_mean: false,
        axes: (first..rank).collect(),
        rank,
        nodes: vec![node],
        factor: None,
        inside: None,
        epsilon: at.attr_float("epsilon", 1e-5).ok(),
        epsilon_added: None,
        is_in_place: true,
    })
}
