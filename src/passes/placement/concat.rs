//! Splits a linear operator over channels that reads a Concat, if a Resize makes some of the
//! concatenated values larger.
//!
//! Before: `W·concat(a, resize(b)) + c`. After: `(Wₐ·a + c) + resize(W_b·b)`, each with its own
//! columns of W. Values that no Resize makes larger stay together.
//!
//! This is exact: a product with concatenated channels is a sum of products, and each of these
//! products commutes with a linear map of places. The bias is added to a product without a Resize,
//! or before a Resize whose weights add up to 1 at each place. The operator is split if the saved
//! multiplications cost more than the additional sum and the additional channels that are resized.

use super::layer::ChannelOperator;
use super::{PlacementMove, WorkTerm, are_in_one_body, places};
use crate::analysis::Analysis;
use crate::ir::axes::axis;
use crate::ir::builder::{Maker, int};
use crate::ir::{NodeId, ValueId};
use crate::onnx::tensor::DataType;
use crate::passes::placement::before_resize::pays;
use crate::passes::placement::factor::ResizeFactor;
use crate::passes::placement::resize::Enlarged;

/// The number of channels of an operand whose multiplications cost as much as the additional sum.
/// Only further channels count as saved.
const LEAST: usize = 8;

/// An operand of the Concat.
struct ConcatTerm {
    value: ValueId,
    /// The index of its first channel, and the number of its channels.
    first: usize,
    width: usize,
    /// The Resize that makes the operand larger, if the operator moves before the Resize.
    enlarged: Option<Enlarged>,
}

impl ConcatTerm {
    /// The multiplications of the part of the operator that reads this operand. They are counted at
    /// the places before the Resize, if there is one. `None` if the places are unknown.
    fn work(&self, analysis: &Analysis, layer: &ChannelOperator) -> Option<WorkTerm> {
        let resized = self.enlarged.as_ref();
        let value = resized.map_or(self.value, |enlarged| enlarged.value);
        Some(WorkTerm::new(
            self.width * layer.channels[1],
            places(analysis, value, layer.axis)?,
        ))
    }
}

/// A linear operator that is split over the Concat that it reads.
struct DividedConcat<'a> {
    analysis: &'a Analysis<'a>,
    layer: ChannelOperator,
    data_type: DataType,
    /// The axis of the weight that has the input channels.
    columns: usize,
}

/// The move that splits a linear operator over the Concat that it reads. `None` if no operand can
/// move before its Resize.
pub(super) fn find(analysis: &Analysis, node: NodeId) -> Option<PlacementMove> {
    let graph = &analysis.graph;
    let layer = ChannelOperator::read(analysis, node)?;
    let columns = match graph.op(node)? {
        "Conv" => 1,
        "MatMul" => 0,
        _ => return None,
    };
    let (concat, _) = graph
        .producer(layer.value)
        .filter(|&(maker, _)| graph.is(maker, "Concat"))?;
    graph.only_reader(layer.value)?;
    let output = graph.only_output(node)?;
    let parts = parts(analysis, concat, &layer)?;
    let (moved, rest): (Vec<&ConcatTerm>, Vec<&ConcatTerm>) =
        parts.iter().partition(|part| part.enlarged.is_some());
    let first = moved.first()?;
    let resized = moved.iter().filter_map(|part| part.enlarged.as_ref());
    let nodes: Vec<NodeId> = resized
        .clone()
        .map(|enlarged| enlarged.node)
        .chain([concat, node])
        .collect();
    let takes_bias = first.enlarged.as_ref()?.adds_up_to_one || !layer.has_bias || !rest.is_empty();
    if !takes_bias || !are_in_one_body(graph, &nodes) {
        return None;
    }
    let data_type = analysis.facts.data_type(graph.input(node, 1)?)?;
    let divided = DividedConcat {
        analysis,
        layer,
        data_type,
        columns,
    };
    let mut maker = Maker::new(graph, node);
    divided.write(&moved, &rest, &mut maker)?;
    let layer = &divided.layer;
    let before = [WorkTerm::new(
        layer.products,
        places(analysis, layer.value, layer.axis)?,
    )];
    let after: Vec<WorkTerm> = parts
        .iter()
        .map(|part| part.work(analysis, layer))
        .collect::<Option<_>>()?;
    Some(PlacementMove::new(
        analysis,
        ("concat", node),
        nodes,
        maker,
        output,
        [&before, &after],
    ))
}

/// The operands of a Concat of channels, each with the Resize before which the operator moves, if
/// there is one. `None` if the Concat joins other axes, or if an extent is unknown.
fn parts(analysis: &Analysis, concat: NodeId, layer: &ChannelOperator) -> Option<Vec<ConcatTerm>> {
    let (graph, at) = (&analysis.graph, analysis.at(concat));
    let [inner, outer] = layer.channels;
    at.only_attributes(&["axis"]).ok()?;
    let along = axis(at.proto().attr_i("axis").ok()??, layer.rank).ok()?;
    if along != layer.axis || layer.products != inner.checked_mul(outer)? {
        return None;
    }
    let (mut first, mut parts) = (0_usize, vec![]);
    for &operand in graph.inputs(concat) {
        let value = operand?;
        let width = analysis.facts.extent(value, along)?;
        let enlarged = Enlarged::making(analysis, value).filter(|enlarged| {
            let is_own = graph.only_reader(value).is_some();
            let keeps_channels = enlarged.factors.get(along) == Some(&ResizeFactor::Same);
            let products = width.saturating_sub(LEAST).saturating_mul(outer);
            is_own && keeps_channels && pays(enlarged, products, [width, outer])
        });
        parts.push(ConcatTerm {
            value,
            first,
            width,
            enlarged,
        });
        first = first.checked_add(width)?;
    }
    (first == inner && parts.len() > 1).then_some(parts)
}

impl DividedConcat<'_> {
    /// Writes the sum of the products of all operands. The first product has the bias. `None` if a
    /// Resize cannot be written for another number of channels.
    fn write(&self, moved: &[&ConcatTerm], rest: &[&ConcatTerm], maker: &mut Maker) -> Option<()> {
        let mut sum = self.rest_product(rest, maker);
        for part in moved {
            let has_bias = sum.is_none();
            let product = self.moved_product(part, has_bias, maker)?;
            sum = Some(match sum {
                Some(sum) => maker.op("Add", &[&sum, &product], vec![]),
                None => product,
            });
        }
        Some(())
    }

    /// Writes the operator on some of its input channels. Returns the name of the result. `None` if
    /// the columns of the weight cannot be selected.
    fn product(
        &self,
        value: &str,
        channels: &[&ConcatTerm],
        has_bias: bool,
        maker: &mut Maker,
    ) -> Option<String> {
        let (graph, at) = (&self.analysis.graph, self.analysis.at(self.layer.node));
        let weight = at.constant(1).ok()?;
        let places = channels
            .iter()
            .flat_map(|part| part.first..part.first + part.width)
            .map(Some);
        let columns = weight.pick(self.columns, places)?;
        let contracted = if self.columns == 0 {
            vec![0]
        } else {
            (1..weight.rank()).collect()
        };
        let replaces = graph.value_name(graph.input(self.layer.node, 1)?);
        let weight = maker.weight(self.data_type, &columns, replaces, contracted);
        let bias = graph
            .input(self.layer.node, 2)
            .filter(|_| has_bias)
            .map(|bias| graph.value_name(bias));
        let inputs: Vec<&str> = [value, &weight].into_iter().chain(bias).collect();
        let like = graph.node(self.layer.node);
        Some(maker.op(like.op_type(), &inputs, like.attribute.clone()))
    }

    /// Writes the operator on the operands that no Resize makes larger. `None` if there are none.
    fn rest_product(&self, rest: &[&ConcatTerm], maker: &mut Maker) -> Option<String> {
        let graph = &self.analysis.graph;
        let names: Vec<&str> = rest
            .iter()
            .map(|part| graph.value_name(part.value))
            .collect();
        let together = match names[..] {
            [] => return None,
            [only] => only.to_owned(),
            _ => maker.op("Concat", &names, vec![int("axis", self.layer.axis as i64)]),
        };
        self.product(&together, rest, true, maker)
    }

    /// Writes the operator on the value before the Resize of an operand, and then the Resize.
    /// `None` if the Resize cannot be written for another number of channels.
    fn moved_product(
        &self,
        part: &ConcatTerm,
        has_bias: bool,
        maker: &mut Maker,
    ) -> Option<String> {
        let enlarged = part.enlarged.as_ref()?;
        let small = self.analysis.graph.value_name(enlarged.value);
        let product = self.product(small, &[part], has_bias, maker)?;
        enlarged.on(
            self.analysis,
            &product,
            (self.layer.axis, self.layer.channels[1]),
            maker,
        )
    }
}
