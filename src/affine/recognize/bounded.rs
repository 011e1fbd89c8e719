//! pointwise: `γ·f(αx + s) + β` with any other bounded function of one number: `x/√(x²+1)`, arctan, a clip, the sine of
//! one, and what else is written in operators whose bounds are known.

use crate::affine::recognize::batch_invariant::Alike;
use crate::affine::recognize::bounds::{Bounds, bounds};
use crate::affine::recognize::pointwise::{self, Bounded, is_cast};
use crate::affine::recognize::region::{Region, regions};
use crate::affine::recognize::{Normalizer, Site, View};
use crate::hash::HashMap;
use crate::ir::NodeId;
use crate::onnx::operator::Category;

/// How large the values may be: a clip at 6 is an activation.
const LARGEST: f64 = 2.0;

/// Any bounded function between two affines.
pub struct AnyBounded;

impl Normalizer for AnyBounded {
    fn recognise(&self, view: &View, node: NodeId) -> Option<Site> {
        let output = view.graph.only_output(node)?;
        pointwise::scaling(view, output)?.spread?;
        let is_of_one = |node: NodeId| {
            view.graph
                .category(node)
                .is_some_and(Category::is_elementwise)
                || is_cast(view, node)
        };
        let bounded = |region: Region| {
            let largest = values(view, &region).map(|values| values.high.max(-values.low))?;
            let Region { input, nodes } = region;
            let core = Bounded {
                input,
                output,
                nodes,
                replacement: None,
            };
            (largest <= LARGEST)
                .then(|| pointwise::site(view, self, "pointwise", core))
                .flatten()
        };
        regions(view, &Alike::new(view), node, is_of_one)
            .into_iter()
            .find_map(bounded)
    }
}

/// Between which numbers the last node of a region makes its values, whatever it is given.
fn values(view: &View, region: &Region) -> Option<Bounds> {
    let mut known = HashMap::from_iter([(region.input, Bounds::VARIABLE)]);
    for &node in &region.nodes {
        let inputs = view.graph.inputs(node).iter().flatten();
        let inputs: Vec<Bounds> = inputs
            .map(|input| {
                known
                    .get(input)
                    .copied()
                    .or_else(|| view.scalar(*input).map(Bounds::number))
            })
            .collect::<Option<_>>()?;
        known.insert(
            view.graph.only_output(node)?,
            bounds(&view.at(node), &inputs)?,
        );
    }
    known
        .get(&view.graph.only_output(*region.nodes.last()?)?)
        .copied()
}
