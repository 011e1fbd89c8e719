//! Moves an operator before the Resize that makes its input larger.
//!
//! Before: `f(resize(x))`. After: `resize(f(x))`. f is a linear operator over channels, or an
//! element-wise operator after a nearest Resize.
//!
//! This is exact. A linear operator over channels commutes with a linear map of places. So does its
//! bias, if the weights of each place add up to 1. A nearest Resize copies elements, so it commutes
//! with every function of one element. Other operands must not vary along a resized axis.

use crate::analysis::Analysis;
use crate::ir::builder::Maker;
use crate::ir::{NodeId, ValueId};
use crate::passes::placement::factor::ResizeFactor;
use crate::passes::placement::layer::{ChannelOperator, again};
use crate::passes::placement::resize::Enlarged;
use crate::passes::placement::{PlacementMove, WorkTerm, are_in_one_body, places};
use crate::shape::facts::{extent, same_shape};

/// The move of an operator before the Resize that produces its input. `None` if the move would
/// change the result or would not save work.
pub(super) fn find(analysis: &Analysis, node: NodeId) -> Option<PlacementMove> {
    layer(analysis, node).or_else(|| element_wise(analysis, node))
}

fn layer(analysis: &Analysis, node: NodeId) -> Option<PlacementMove> {
    let graph = &analysis.graph;
    let layer = ChannelOperator::read(analysis, node)?;
    let enlarged = Enlarged::making(analysis, layer.value)?;
    graph.only_reader(layer.value)?;
    let output = graph.only_output(node)?;
    let nodes = vec![enlarged.node, node];
    let commutes = enlarged.factors.get(layer.axis) == Some(&ResizeFactor::Same)
        && enlarged.factors.len() == layer.rank
        && (!layer.has_bias || enlarged.adds_up_to_one)
        && are_in_one_body(graph, &nodes);
    if !commutes || !pays(&enlarged, layer.products, layer.channels) {
        return None;
    }
    let mut maker = Maker::new(graph, node);
    let small = layer.on(analysis, graph.value_name(enlarged.value), &mut maker);
    enlarged.on(
        analysis,
        &small,
        (layer.axis, layer.channels[1]),
        &mut maker,
    )?;
    let before = [WorkTerm::new(
        layer.products,
        places(analysis, layer.value, layer.axis)?,
    )];
    let after = [WorkTerm::new(
        layer.products,
        places(analysis, enlarged.value, layer.axis)?,
    )];
    Some(PlacementMove::new(
        analysis,
        ("resize", node),
        nodes,
        maker,
        output,
        [&before, &after],
    ))
}

/// Whether an operator with `products` multiplications for each place costs less before a Resize.
/// If the operator increases the number of channels, the Resize must then resize more channels.
pub(super) fn pays(enlarged: &Enlarged, products: usize, [inner, outer]: [usize; 2]) -> bool {
    let saved = products as f64 * (1.0 - 1.0 / enlarged.ratio());
    let more = outer.saturating_sub(inner) as f64;
    saved > more * (enlarged.taps() + 1) as f64
}

fn element_wise(analysis: &Analysis, node: NodeId) -> Option<PlacementMove> {
    let (graph, facts) = (&analysis.graph, &analysis.facts);
    graph
        .category(node)
        .filter(|category| category.is_elementwise())?;
    let output = graph
        .only_output(node)
        .filter(|&output| !analysis.constants.is_constant(output))?;
    let slot = graph
        .inputs(node)
        .iter()
        .position(|input| input.is_some_and(|value| Enlarged::making(analysis, value).is_some()))?;
    let value = graph.input(node, slot)?;
    let enlarged = Enlarged::making(analysis, value).filter(Enlarged::is_nearest)?;
    graph.only_reader(value)?;
    let nodes = vec![enlarged.node, node];
    let keeps_shape = same_shape(&facts.shape(value)?, &facts.shape(output)?)
        && facts.data_type(value)?.is_float()
        && facts.data_type(value) == facts.data_type(output);
    let others = graph
        .inputs(node)
        .iter()
        .enumerate()
        .filter(|(other, _)| *other != slot);
    let mut others = others.filter_map(|(_, input)| *input);
    let are_same = others.all(|other| is_same_where_resized(analysis, other, &enlarged.factors));
    if !keeps_shape || !are_same || !are_in_one_body(graph, &nodes) {
        return None;
    }
    let mut maker = Maker::new(graph, node);
    let small = again(
        analysis,
        (node, slot),
        graph.value_name(enlarged.value),
        &mut maker,
    );
    again(analysis, (enlarged.node, 0), &small, &mut maker);
    let before = [WorkTerm::new(1, facts.shape(value)?)];
    let after = [WorkTerm::new(1, facts.shape(enlarged.value)?)];
    Some(PlacementMove::new(
        analysis,
        ("nearest", node),
        nodes,
        maker,
        output,
        [&before, &after],
    ))
}

/// Whether an operand does not vary along any resized axis. `factors` has a factor for each axis of
/// the result.
fn is_same_where_resized(analysis: &Analysis, operand: ValueId, factors: &[ResizeFactor]) -> bool {
    let Some(shape) = analysis.facts.shape(operand) else {
        return false;
    };
    let Some(missing) = factors.len().checked_sub(shape.len()) else {
        return false;
    };
    let mut axes = shape.iter().zip(&factors[missing..]);
    axes.all(|(dim, &factor)| factor == ResizeFactor::Same || extent(dim) == Some(1))
}
