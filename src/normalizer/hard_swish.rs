//! HardSwish, `x·clip(x + 3, 0, 6)/6`, written out.
//!
//! An Add, a Clip, a Mul and a Div, each over all elements. After: one HardSwish. Before operator set 14 there is none: what
//! is written out stays, which OpenVINO finds, and its sixth goes into what follows; onnxruntime, which does not find it, is
//! faster with a HardSigmoid and a Mul, `x·clip(x/6 + 1/2, 0, 1)`, and OpenVINO slower.

use super::bounds::{Bounds, bounds};
use super::{Family, Kind, Normalizer, Replacement, Site, View};
use crate::graph::make::{self, Maker};
use crate::graph::{NodeId, ValueId};
use crate::onnx::tensor::DataType;

/// What `--skip` calls it.
pub const KIND: &str = "hard swish";

/// The operator set that brought the operator.
const SINCE: i64 = 14;

/// The activation of MobileNetV3, LeViT and PP-LCNet.
pub struct HardSwish;

impl Normalizer for HardSwish {
    fn recognise(&self, view: &View, node: NodeId) -> Option<Site> {
        let replacement = replaced(
            view,
            node,
            |maker| maker.opset() >= SINCE,
            |maker, input| {
                maker.op("HardSwish", &[input], vec![]);
            },
        )?;
        let rank = view.facts.rank(view.graph.only_output(node)?)?;
        Some(Site {
            kind: Kind::new(KIND, Family::Pointwise),
            name: view.site_name(replacement.nodes[0]),
            channels: 1,
            axis: rank.max(1) - 1,
            nodes: replacement.nodes.clone(),
            pre: None,
            post: None,
            replacement: Some(replacement),
            core: None,
            refusal: None,
        })
    }
}

/// The one that ends at a node as a HardSigmoid and a Mul, where no operator set has more.
pub fn as_hard_sigmoid(view: &View, node: NodeId) -> Option<Replacement> {
    replaced(
        view,
        node,
        |maker| maker.opset() < SINCE,
        |maker, input| {
            let gate = vec![make::float("alpha", 1.0 / 6.0), make::float("beta", 0.5)];
            let gate = maker.op("HardSigmoid", &[input], gate);
            maker.op("Mul", &[input, &gate], vec![]);
        },
    )
}

/// What comes in the place of the one that ends at a node.
fn replaced(
    view: &View,
    node: NodeId,
    is_there: impl Fn(&Maker) -> bool,
    write: impl Fn(&mut Maker, &str),
) -> Option<Replacement> {
    let graph = view.graph;
    let (input, nodes) = divided(view, node).or_else(|| gated(view, node, true))?;
    let output = graph.only_output(node)?;
    let rank = view.facts.rank(input)?;
    let constants = nodes.iter().flat_map(|&node| graph.inputs(node)).flatten();
    let mut constants = constants.filter(|&&value| view.constants.is_constant(value));
    // Numbers of more axes than there are would bring more; and engines have these operators in float32.
    let keeps_shape = constants.all(|&value| view.facts.rank(value).is_some_and(|own| own <= rank));
    let mut maker = Maker::new(graph, node);
    if !keeps_shape || view.facts.data_type(input) != Some(DataType::Float) || !is_there(&maker) {
        return None;
    }
    write(&mut maker, graph.value_name(input));
    let (made, constants) = maker.finish(graph.value_name(output));
    Some(Replacement { nodes, made, constants })
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
