//! ScaleNorm: `g·x/‖x‖`, with the norm of each token.

use crate::affine::Affine;
use crate::affine::recognize::{Normalizer, Part, Reset, Site, View, decomposed_norm};
use crate::ir::NodeId;

/// Scale Normalization.
pub(super) struct ScaleNorm;

impl Normalizer for ScaleNorm {
    fn recognize(&self, view: &View, node: NodeId) -> Option<Site> {
        let core = decomposed_norm::scaled_core(view, node)?;
        let is_scale_norm = !core.centred && core.norm && core.input_is_squared(view);
        let site = is_scale_norm.then(|| decomposed_norm::site(view, "ScaleNorm", &core))?;
        let inside = core
            .factor
            .filter(|_| site.post.is_none())
            .and_then(|factor| part(view, &core, factor));
        Some(match inside {
            Some(part) => Site {
                post: Some(part),
                refusal: None,
                ..site
            },
            None => site,
        })
    }
}

/// The part with the scale `g` in `x·(g/‖x‖)`, where the node `factor` computes `g/‖x‖`.
fn part(view: &View, core: &decomposed_norm::Core, factor: NodeId) -> Option<Part> {
    let number = view
        .at(factor)
        .numbers(0)
        .ok()?
        .reshape(&vec![1; view.facts.rank(core.output)?])?;
    Some(Part {
        affine: Affine::scale(number),
        input: core.output,
        output: core.output,
        nodes: vec![],
        resets: vec![Reset {
            node: factor,
            slot: 0,
            neutral: 1.0,
            optional: false,
            like: 0,
            axes: [0, 0],
        }],
    })
}
