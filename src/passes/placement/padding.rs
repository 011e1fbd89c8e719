//! Moves a linear operator before the Pad whose result it reads, possibly in another layout.
//!
//! Before: `layout(pad(x))·W`. After: `layout(pad(x·W))`. For example, an image is padded to a
//! multiple of the extents of a window, and then cut into windows.
//!
//! This is exact, because W maps padded zeros to zeros, and a Pad that does not pad zeros copies
//! places of the image. If zeros are padded, an operator with a bias input stays, because it does
//! not map zeros to zeros. An Add of a bias after the product stays after the Pad. Layout operators
//! that keep the axis of the channels do not mix channels.

use super::layer::{ChannelOperator, again};
use super::{PlacementMove, WorkTerm, are_in_one_body, places};
use crate::analysis::Analysis;
use crate::ir::builder::Maker;
use crate::ir::{NodeId, ValueId};
use crate::ops::axes::{AxisRead, reads};
use crate::shape::facts::{Shape, extent, same};

/// The largest number of layout operators between the Pad and the linear operator.
const DEPTH: usize = 8;

/// The number of multiplications that cost as much as moving one element.
const PER_ELEMENT: usize = 8;

/// A Pad before a linear operator, and the layout operators in between.
struct PaddedOperand {
    pad: NodeId,
    /// The value that is padded, and its axis of channels.
    value: ValueId,
    axis: usize,
    /// The layout operators, each with the axis of the channels in its result. They are in the
    /// reverse order of execution.
    layouts: Vec<(NodeId, usize)>,
    pads_zeros: bool,
}

/// The move of a linear operator before the Pad whose result it reads. `None` if the move would
/// change the result or would not save work.
pub(super) fn find(analysis: &Analysis, node: NodeId) -> Option<PlacementMove> {
    let graph = &analysis.graph;
    let operator = ChannelOperator::read(analysis, node)?;
    let operand = PaddedOperand::read(analysis, &operator)?;
    let small = places(analysis, operand.value, operand.axis)?;
    let large = places(analysis, operator.value, operator.axis)?;
    let nodes = operand.nodes(node);
    let commutes = !(operator.has_bias && operand.pads_zeros);
    if !commutes || !operand.pays(analysis, &operator, &small) || !are_in_one_body(graph, &nodes) {
        return None;
    }
    let mut maker = Maker::new(graph, node);
    operand.write(analysis, &operator, &mut maker)?;
    let before = [WorkTerm::new(operator.products, large)];
    let after = [WorkTerm::new(operator.products, small)];
    Some(PlacementMove::new(
        analysis,
        ("padding", node),
        nodes,
        maker,
        graph.only_output(node)?,
        [&before, &after],
    ))
}

impl PaddedOperand {
    /// Reads the nodes before a linear operator. `None` unless they are a Pad and layout operators
    /// whose results no other node reads.
    fn read(analysis: &Analysis, operator: &ChannelOperator) -> Option<Self> {
        let graph = &analysis.graph;
        let (mut value, mut axis) = (operator.value, operator.axis);
        let mut layouts = vec![];
        for _ in 0..=DEPTH {
            graph.only_reader(value)?;
            let (node, _) = graph.producer(value)?;
            let at = analysis.at(node);
            let AxisRead::Same(from) = *reads(&at, 0, axis).first()? else {
                return None;
            };
            let input = at.input(0).ok()?;
            match graph.domain_op(node) {
                ("", "Pad") => {
                    let is_matmul = graph.is(operator.node, "MatMul");
                    let fits = if is_matmul {
                        from + 1 == analysis.facts.rank(input)?
                    } else {
                        layouts.is_empty()
                    };
                    let pads_zeros = pads_zeros(analysis, node)?;
                    return fits.then_some(PaddedOperand {
                        pad: node,
                        value: input,
                        axis: from,
                        layouts,
                        pads_zeros,
                    });
                }
                ("", "Reshape" | "Transpose") => layouts.push((node, axis)),
                _ => return None,
            }
            (value, axis) = (input, from);
        }
        None
    }

    /// The Pad, the layout operators and the linear operator.
    fn nodes(&self, operator: NodeId) -> Vec<NodeId> {
        let layouts = self.layouts.iter().rev().map(|&(node, _)| node);
        [self.pad]
            .into_iter()
            .chain(layouts)
            .chain([operator])
            .collect()
    }

    /// Whether the saved multiplications cost more than moving the additional channels. `false` if
    /// the Pad changes an unknown extent.
    fn pays(&self, analysis: &Analysis, operator: &ChannelOperator, small: &Shape) -> bool {
        let padded = analysis.graph.only_output(self.pad);
        let padded = padded.and_then(|padded| places(analysis, padded, self.axis));
        let Some(ratio) = padded.and_then(|padded| ratio(small, &padded)) else {
            return false;
        };
        let [inner, outer] = operator.channels;
        let moved = outer.saturating_sub(inner) * (self.layouts.len() + 1);
        let saved = operator.products as f64 * (1.0 - ratio);
        saved > (moved * PER_ELEMENT) as f64
    }

    /// Writes the operator, the Pad, and the layout operators for the new number of channels.
    /// `None` if the target of a Reshape is not constant.
    fn write(
        &self,
        analysis: &Analysis,
        operator: &ChannelOperator,
        maker: &mut Maker,
    ) -> Option<()> {
        let graph = &analysis.graph;
        let product = operator.on(analysis, graph.value_name(self.value), maker);
        let mut name = again(analysis, (self.pad, 0), &product, maker);
        for &(node, axis) in self.layouts.iter().rev() {
            name = match graph.is(node, "Reshape") {
                true => {
                    let mut target = analysis.at(node).ints(1).ok()??;
                    *target.get_mut(axis)? = i64::try_from(operator.channels[1]).ok()?;
                    maker.reshape(&name, &target)
                }
                false => again(analysis, (node, 0), &name, maker),
            };
        }
        Some(())
    }
}

/// `true` if a Pad writes zeros around the value, `false` if it copies places of the value. `None`
/// if it writes another number, or removes places.
fn pads_zeros(analysis: &Analysis, pad: NodeId) -> Option<bool> {
    let at = analysis.at(pad);
    let pads = at.list("pads").ok()??;
    if pads.iter().any(|&count| count < 0) {
        return None;
    }
    if at.attr_text("mode", "constant").ok()? != "constant" {
        return Some(false);
    }
    let is_zero = match at.input(2) {
        Ok(_) => at.numbers(2).ok()?.are_all(0.0),
        Err(_) => at.attr_float("value", 0.0).ok()? == 0.0,
    };
    is_zero.then_some(true)
}

/// The ratio of the numbers of places before and after a Pad. `None` if it pads an unknown extent.
fn ratio(small: &Shape, padded: &Shape) -> Option<f64> {
    let mut ratio = 1.0;
    for (few, many) in small.iter().zip(padded) {
        if !same(few, many) {
            ratio *= extent(few)? as f64 / extent(many)? as f64;
        }
    }
    Some(ratio)
}
