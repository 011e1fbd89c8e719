//! `x + x·g`, a residual around a gate, as in squeeze-and-excitation and in attention over channels
//! or places.
//!
//! Before: a Mul and an Add over all elements. After: `x·(1 + g)`, a Mul over all elements and an
//! Add over the gate, which has fewer elements.

use crate::affine::recognize::{Family, Kind, Normalizer, Replacement, Site, View};
use crate::ir::builder::Maker;
use crate::ir::{NodeId, ValueId};
use crate::recipe::Recipe;
use crate::shape::extents::extent;

/// A value plus or minus its product with a gate.
pub(super) struct GatedResidual;

impl Normalizer for GatedResidual {
    fn recognize(&self, view: &View, node: NodeId) -> Option<Site> {
        let graph = view.graph;
        let op = graph.op(node).filter(|op| matches!(*op, "Add" | "Sub"))?;
        let (left, right) = (graph.input(node, 0)?, graph.input(node, 1)?);
        let (product, value) = match (gated(view, left, right), gated(view, right, left)) {
            (Some(product), _) => (product, right),
            (_, product) => (product?, left),
        };
        let Gated { mul, gate } = product;
        let (data_type, rank) = (view.facts.data_type(value)?, view.facts.rank(value)?);
        let (value_name, gate_name) = (graph.value_name(value), graph.value_name(gate));
        let mut maker = Maker::new(graph, node);
        let one = maker.floats(data_type, &Recipe::number(1.0, 0));
        let operands = if value == left {
            [&one, gate_name]
        } else {
            [gate_name, &one]
        };
        let gate = maker.op(op, &operands, vec![]);
        maker.op("Mul", &[value_name, &gate], vec![]);
        let (made, constants) = maker.finish(graph.value_name(graph.only_output(node)?));
        data_type.is_float().then(|| Site {
            channels: 1,
            axis: rank.max(1) - 1,
            replacement: Some(Replacement {
                nodes: vec![mul, node],
                made,
                constants,
            }),
            ..Site::new(
                Kind::new("gated residual", Family::Linear),
                view.site_name(mul),
                vec![mul, node],
            )
        })
    }
}

/// A product with a gate.
struct Gated {
    mul: NodeId,
    gate: ValueId,
}

/// Reads `product` as a product of `value` and a smaller gate. `None` if the product has several
/// readers.
fn gated(view: &View, product: ValueId, value: ValueId) -> Option<Gated> {
    let graph = view.graph;
    let mul = view.maker(product).filter(|&mul| graph.is(mul, "Mul"))?;
    let (left, right) = (graph.input(mul, 0)?, graph.input(mul, 1)?);
    let gate = if left == value { right } else { left };
    let varies = ![value, gate]
        .iter()
        .any(|&factor| view.constants.is_constant(factor));
    (view.only_reader(product).is_some()
        && (left == value || right == value)
        && varies
        && is_spread(view, gate, value))
    .then_some(Gated { mul, gate })
}

/// Whether a product of `gate` and `value` broadcasts the gate along an axis.
fn is_spread(view: &View, gate: ValueId, value: ValueId) -> bool {
    let (Some(gate), Some(value)) = (view.facts.shape(gate), view.facts.shape(value)) else {
        return false;
    };
    let gate = gate
        .iter()
        .rev()
        .map(extent)
        .chain(std::iter::repeat(Some(1)));
    value
        .iter()
        .rev()
        .map(extent)
        .zip(gate)
        .any(|(value, gate)| gate == Some(1) && value != Some(1))
}
