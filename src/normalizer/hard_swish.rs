//! HardSwish, `x·clip(x + 3, 0, 6)/6`, written out.
//!
//! An Add, a Clip, a Mul and a Div, each over all elements. After: one HardSwish, or, before operator set 14, a HardSigmoid
//! and a Mul, which is `x·clip(x/6 + 1/2, 0, 1)`.

use super::bounds::{Bounds, bounds};
use super::{Family, Kind, Normalizer, Replacement, Site, View};
use crate::graph::make::{self, Maker};
use crate::graph::{Graph, NodeId, ValueId};
use crate::onnx::tensor::DataType;

/// The operator set that brought the operator.
const SINCE: i64 = 14;

/// The activation of MobileNetV3, LeViT and PP-LCNet.
pub struct HardSwish;

impl Normalizer for HardSwish {
    fn recognise(&self, view: &View, node: NodeId) -> Option<Site> {
        let graph = view.graph;
        let (input, nodes) = divided(view, node).or_else(|| gated(view, node, true))?;
        let output = graph.only_output(node)?;
        let rank = view.facts.rank(input)?;
        let constants = nodes.iter().flat_map(|&node| graph.inputs(node)).flatten();
        let mut constants = constants.filter(|&&value| view.constants.is_constant(value));
        // Numbers of more axes than there are would bring more; and engines have these operators in float32.
        let keeps_shape = constants.all(|&value| view.facts.rank(value).is_some_and(|own| own <= rank));
        if !keeps_shape || view.facts.data_type(input) != Some(DataType::Float) {
            return None;
        }
        let (made, constants) = written(graph, node, input).finish(graph.value_name(output));
        Some(Site {
            kind: Kind::new("hard swish", Family::Pointwise),
            name: view.site_name(nodes[0]),
            channels: 1,
            axis: rank.max(1) - 1,
            nodes: nodes.clone(),
            pre: None,
            post: None,
            replacement: Some(Replacement { nodes, made, constants }),
            core: None,
            refusal: None,
        })
    }
}

/// `(x·clip(x + 3, 0, 6))/6`: x, and the nodes.
fn divided(view: &View, div: NodeId) -> Option<(ValueId, Vec<NodeId>)> {
    let product = sixth(view, div)?;
    let mul = view.maker(product).filter(|_| view.only_reader(product) == Some(div))?;
    let (input, mut nodes) = gated(view, mul, false)?;
    nodes.push(div);
    Some((input, nodes))
}

/// `x·clip(x + 3, 0, 6)`, or of a sixth of the clip: x, and the nodes.
fn gated(view: &View, mul: NodeId, by_sixth: bool) -> Option<(ValueId, Vec<NodeId>)> {
    let (left, right) = (view.graph.input(mul, 0)?, view.graph.input(mul, 1)?);
    if !view.graph.is(mul, "Mul") {
        return None;
    }
    [(left, right), (right, left)].into_iter().find_map(|(plain, gate)| {
        let maker = view.maker(gate).filter(|_| view.only_reader(gate) == Some(mul))?;
        let (input, mut nodes) = match by_sixth {
            true => {
                let whole = sixth(view, maker)?;
                let clip = view.maker(whole).filter(|_| view.only_reader(whole) == Some(maker))?;
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

/// `clip(x + 3, 0, 6)`: x, and the nodes.
fn clipped(view: &View, clip: NodeId) -> Option<(ValueId, Vec<NodeId>)> {
    let graph = view.graph;
    let numbers = graph.inputs(clip).get(1..)?.iter().flatten().map(|&value| view.scalar(value));
    let numbers: Vec<f64> = numbers.collect::<Option<_>>()?;
    let given = [Bounds::VARIABLE].into_iter().chain(numbers.into_iter().map(Bounds::number));
    let within = bounds(&view.at(clip), &given.collect::<Vec<_>>())?;
    let sum = graph.input(clip, 0)?;
    let add = view.maker(sum).filter(|&node| graph.is(node, "Add") && view.only_reader(sum) == Some(clip))?;
    let (left, right) = (graph.input(add, 0)?, graph.input(add, 1)?);
    let input =
        [(left, right), (right, left)].into_iter().find(|&(_, number)| view.scalar(number) == Some(3.0))?.0;
    (graph.is(clip, "Clip") && within.low == 0.0 && within.high == 6.0).then(|| (input, vec![add, clip]))
}

/// What a node divides by 6.
fn sixth(view: &View, div: NodeId) -> Option<ValueId> {
    let by = view.graph.input(div, 1).and_then(|value| view.scalar(value));
    view.graph.input(div, 0).filter(|_| view.graph.is(div, "Div") && by == Some(6.0))
}

/// The operators that come instead.
fn written<'g>(graph: &'g Graph<'g>, node: NodeId, input: ValueId) -> Maker<'g> {
    let mut maker = Maker::new(graph, node);
    let input = graph.value_name(input);
    if maker.opset() >= SINCE {
        maker.op("HardSwish", &[input], vec![]);
    } else {
        let gate = vec![make::float("alpha", 1.0 / 6.0), make::float("beta", 0.5)];
        let gate = maker.op("HardSigmoid", &[input], gate);
        maker.op("Mul", &[input, &gate], vec![]);
    }
    maker
}
