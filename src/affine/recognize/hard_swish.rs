//! HardSwish, `x·clip(x + 3, 0, 6)/6`, written out.
//!
//! Before: an Add, a Clip, a Mul and a Div over all elements. After: one HardSwish, which exists
//! since operator set 14. A model with an older operator set is upgraded if that is exact.
//! Otherwise the written-out form stays, and its factor 1/6 folds into the next operator.

use crate::affine::recognize::bounds::{Bounds, bounds};
use crate::affine::recognize::{Family, Kind, Normalizer, Replacement, Site, View};
use crate::ir::builder::Maker;
use crate::ir::{NodeId, ValueId};
use crate::onnx::tensor::DataType;

/// The name of the kind for `--skip`.
pub(crate) const KIND: &str = "hard swish";

/// The first operator set with a HardSwish.
pub(crate) const SINCE: i64 = 14;

/// HardSwish, the activation of MobileNetV3, LeViT and PP-LCNet.
pub(crate) struct HardSwish;

impl Normalizer for HardSwish {
    fn recognize(&self, view: &View, node: NodeId) -> Option<Site> {
        let (input, nodes) = found(view, node)?;
        let output = view.graph.only_output(node)?;
        let mut maker = Maker::new(view.graph, node);
        if maker.opset() < SINCE {
            return None;
        }
        maker.op("HardSwish", &[view.graph.value_name(input)], vec![]);
        let (made, constants) = maker.finish(view.graph.value_name(output));
        let rank = view.facts.rank(output)?;
        Some(Site {
            channels: 1,
            axis: rank.max(1) - 1,
            replacement: Some(Replacement {
                nodes: nodes.clone(),
                made,
                constants,
            }),
            ..Site::new(
                Kind::new(KIND, Family::Pointwise),
                view.site_name(nodes[0]),
                nodes,
            )
        })
    }
}

/// The first node of the written-out HardSwish that ends at `node`. `None` if no such HardSwish
/// ends there, or if the operator set of the model has the operator.
pub(crate) fn written_out(view: &View, node: NodeId) -> Option<NodeId> {
    let (_, nodes) = found(view, node).filter(|_| view.graph.model().own_opset() < SINCE)?;
    nodes.first().copied()
}

/// Finds the HardSwish that ends at a node. Returns its input and its nodes. `None` if no HardSwish
/// ends there, or if the input is not float32, because engines support HardSwish only for float32.
fn found(view: &View, node: NodeId) -> Option<(ValueId, Vec<NodeId>)> {
    let (input, nodes) = divided(view, node).or_else(|| gated(view, node, true))?;
    let rank = view.facts.rank(input)?;
    let constants = nodes
        .iter()
        .flat_map(|&node| view.graph.inputs(node))
        .flatten();
    let mut constants = constants.filter(|&&value| view.constants.is_constant(value));
    // Constants with more axes than the value would add axes to the result.
    let keeps_shape = constants.all(|&value| view.facts.rank(value).is_some_and(|own| own <= rank));
    (keeps_shape && view.facts.data_type(input) == Some(DataType::Float)).then_some((input, nodes))
}

/// Matches `(x·clip(x + 3, 0, 6))/6`. Returns x and the nodes.
fn divided(view: &View, div: NodeId) -> Option<(ValueId, Vec<NodeId>)> {
    let product = sixth(view, div)?;
    let mul = view
        .maker(product)
        .filter(|_| view.only_reader(product) == Some(div))?;
    let (input, mut nodes) = gated(view, mul, false)?;
    nodes.push(div);
    Some((input, nodes))
}

/// Matches `x·clip(x + 3, 0, 6)`, or, if `by_sixth` holds, `x·(clip(x + 3, 0, 6)/6)`. Returns x and
/// the nodes.
fn gated(view: &View, mul: NodeId, by_sixth: bool) -> Option<(ValueId, Vec<NodeId>)> {
    let (left, right) = (view.graph.input(mul, 0)?, view.graph.input(mul, 1)?);
    if !view.graph.is(mul, "Mul") {
        return None;
    }
    [(left, right), (right, left)]
        .into_iter()
        .find_map(|(plain, gate)| {
            let maker = view
                .maker(gate)
                .filter(|_| view.only_reader(gate) == Some(mul))?;
            let (input, mut nodes) = match by_sixth {
                true => {
                    let whole = sixth(view, maker)?;
                    let clip = view
                        .maker(whole)
                        .filter(|_| view.only_reader(whole) == Some(maker))?;
                    let (input, mut nodes) = clipped(view, clip)?;
                    nodes.push(maker);
                    (input, nodes)
                }
                false => clipped(view, maker)?,
            };
            nodes.push(mul);
            (input == plain).then_some((input, nodes))
        })
}

/// Matches `clip(x + 3, 0, 6)`. Returns x and the nodes.
fn clipped(view: &View, clip: NodeId) -> Option<(ValueId, Vec<NodeId>)> {
    let graph = view.graph;
    let numbers = graph
        .inputs(clip)
        .get(1..)?
        .iter()
        .flatten()
        .map(|&value| view.scalar(value));
    let numbers: Vec<f64> = numbers.collect::<Option<_>>()?;
    let given = [Bounds::VARIABLE]
        .into_iter()
        .chain(numbers.into_iter().map(Bounds::number));
    let within = bounds(&view.at(clip), &given.collect::<Vec<_>>())?;
    let sum = graph.input(clip, 0)?;
    let add = view
        .maker(sum)
        .filter(|&node| graph.is(node, "Add") && view.only_reader(sum) == Some(clip))?;
    let (left, right) = (graph.input(add, 0)?, graph.input(add, 1)?);
    let input = [(left, right), (right, left)]
        .into_iter()
        .find(|&(_, number)| view.scalar(number) == Some(3.0))?
        .0;
    (graph.is(clip, "Clip") && within.low == 0.0 && within.high == 6.0)
        .then(|| (input, vec![add, clip]))
}

/// The value that a node divides by 6. `None` if the node is not such a Div.
fn sixth(view: &View, div: NodeId) -> Option<ValueId> {
    let by = view
        .graph
        .input(div, 1)
        .and_then(|value| view.scalar(value));
    view.graph
        .input(div, 0)
        .filter(|_| view.graph.is(div, "Div") && by == Some(6.0))
}
