//! pointwise: `γ·f(αx + s) + β` with any bounded function of one variable that has no kind of its
//! own. Examples are `x/√(x²+1)`, arctan, a clip and the sine. The function is written in operators
//! with known bounds.

use crate::affine::recognize::batch_invariant::Alike;
use crate::affine::recognize::bounds::{Bounds, bounds};
use crate::affine::recognize::pointwise::{self, Bounded, is_cast};
use crate::affine::recognize::region::{Region, regions};
use crate::affine::recognize::{Normalizer, Site, View};
use crate::hash::HashMap;
use crate::ir::NodeId;
use crate::onnx::operator::Category;

/// The largest magnitude of the results of a function that counts as a normalizer. A function with
/// larger results, such as a clip at 6, is an activation.
const LARGEST: f64 = 2.0;

/// Any bounded function between two affines.
pub(super) struct AnyBounded;

impl Normalizer for AnyBounded {
    fn recognize(&self, view: &View, node: NodeId) -> Option<Site> {
        let output = view.graph.only_output(node)?;
        pointwise::scaling(view, output)?.factor_axis?;
        let regions = regions(view, &Alike::new(view), node, |node| {
            is_elementwise(view, node)
        });
        regions.into_iter().find_map(|region| {
            let values = values(view, &region)?;
            let is_small = values.high.max(-values.low) <= LARGEST;
            let core = Bounded {
                input: region.input,
                output,
                nodes: region.nodes,
                replacement: None,
            };
            is_small.then(|| pointwise::site(view, self, "pointwise", core))?
        })
    }
}

/// Whether a node computes each element from one element of each input.
fn is_elementwise(view: &View, node: NodeId) -> bool {
    let category = view.graph.category(node);
    category.is_some_and(Category::is_elementwise) || is_cast(view, node)
}

/// The range of the result of a region over all inputs. `None` if the bounds of one of its
/// operators are not known.
fn values(view: &View, region: &Region) -> Option<Bounds> {
    let mut ranges = HashMap::from_iter([(region.input, Bounds::VARIABLE)]);
    for &node in &region.nodes {
        let mut inputs = vec![];
        for &input in view.graph.inputs(node).iter().flatten() {
            inputs.push(match ranges.get(&input) {
                Some(&range) => range,
                None => Bounds::number(view.scalar(input)?),
            });
        }
        let range = bounds(&view.at(node), &inputs)?;
        ranges.insert(view.graph.only_output(node)?, range);
    }
    let last = view.graph.only_output(*region.nodes.last()?)?;
    ranges.get(&last).copied()
}
