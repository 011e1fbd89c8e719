//! A linear operator over channels: at each place, it is the product of the channels and a constant
//! matrix.
//!
//! Such operators are a MatMul with a constant matrix, a Gemm, and a convolution with windows of
//! one place. Each commutes with a linear map of the places, except for its bias. The map
//! multiplies the bias by the sum of the weights of the map at each place.

use crate::analysis::Analysis;
use crate::analysis::node_view::At;
use crate::ir::builder::Maker;
use crate::ir::{NodeId, ValueId};
use crate::onnx::operator::CONV;
use crate::onnx::tensor::DataType;
use crate::passes::placement::{WorkTerm, places};
use crate::recipe::Recipe;

/// A linear operator over channels.
#[derive(Debug, Clone)]
pub(super) struct ChannelOperator {
    /// The node.
    pub node: NodeId,
    /// The value that is multiplied.
    pub value: ValueId,
    /// The axis of the channels, both in the value and in the result.
    pub axis: usize,
    /// The rank of the value and of the result.
    pub rank: usize,
    /// The number of channels that the operator reads, and the number that it outputs.
    pub channels: [usize; 2],
    /// The number of multiplications for each place.
    pub products: usize,
    /// Whether the operator adds a bias.
    pub has_bias: bool,
}

impl ChannelOperator {
    /// Reads a node. `None` for another operator, or if a shape or an attribute is not known.
    pub(super) fn read(analysis: &Analysis, node: NodeId) -> Option<Self> {
        let at = analysis.at(node);
        let layer = match analysis.graph.domain_op(node) {
            ("", "Conv") => conv(&at),
            ("", "MatMul") => matmul(&at),
            ("", "Gemm") => gemm(&at),
            _ => None,
        };
        let output = analysis.graph.only_output(node)?;
        layer.filter(|_| is_wide(analysis, output) && !analysis.constants.is_constant(output))
    }

    /// The work of the operator at all places of its value. `None` if the shape is unknown.
    pub(super) fn work(&self, analysis: &Analysis) -> Option<WorkTerm> {
        let places = places(analysis, self.value, self.axis)?;
        Some(WorkTerm::new(self.products, places))
    }

    /// Writes the operator with `value` in place of the value that it multiplies. Returns the name
    /// of the result.
    pub(super) fn on(&self, analysis: &Analysis, value: &str, maker: &mut Maker) -> String {
        again(analysis, (self.node, 0), value, maker)
    }
}

/// Whether a value is float32 or wider, and so precise enough for a move, which changes the order
/// of additions and multiplications.
pub(super) fn is_wide(analysis: &Analysis, value: ValueId) -> bool {
    matches!(
        analysis.facts.data_type(value),
        Some(DataType::Float | DataType::Double)
    )
}

/// Writes a node with another value as one of its inputs. Returns the name of the result.
pub(super) fn again(
    analysis: &Analysis,
    (node, slot): (NodeId, usize),
    value: &str,
    maker: &mut Maker,
) -> String {
    let graph = &analysis.graph;
    let names = graph
        .inputs(node)
        .iter()
        .map(|input| input.map_or("", |input| graph.value_name(input)));
    let mut inputs: Vec<&str> = names.collect();
    inputs[slot] = value;
    let like = graph.node(node);
    maker.op(like.op_type(), &inputs, like.attribute.clone())
}

/// Whether every element of a list attribute equals this number, or the node has no such attribute.
/// `None` if the attribute has another type.
pub(super) fn are_all(at: &At, name: &str, number: i64) -> Option<bool> {
    let list = at.attr_ints(name).ok()?;
    Some(list.is_none_or(|list| list.iter().all(|&other| other == number)))
}

fn conv(at: &At) -> Option<ChannelOperator> {
    at.only_attributes(CONV).ok()?;
    let weight = at.constant(1).ok()?;
    let [outer, inner, kernel @ ..] = weight.shape() else {
        return None;
    };
    let group = usize::try_from(at.attr("group", 1).ok()?)
        .ok()
        .filter(|&group| group > 0)?;
    let has_one_place = kernel.iter().all(|&taps| taps == 1) && are_all(at, "kernel_shape", 1)?;
    let stays = are_all(at, "strides", 1)? && are_all(at, "pads", 0)?;
    let has_no_auto_pad = matches!(at.attr_text("auto_pad", "NOTSET").ok()?, "NOTSET" | "VALID");
    let rank = at.rank(0).ok()?;
    let fits = rank == weight.rank() && at.extent(0, 1).ok()? == inner.checked_mul(group)?;
    let is_per_place = has_one_place && stays && has_no_auto_pad && !kernel.is_empty();
    (is_per_place && fits).then_some(ChannelOperator {
        node: at.node,
        value: at.input(0).ok()?,
        axis: 1,
        rank,
        channels: [inner * group, *outer],
        products: weight.len(),
        has_bias: at.input(2).is_ok(),
    })
}

fn matmul(at: &At) -> Option<ChannelOperator> {
    at.only_attributes(&[]).ok()?;
    let weight = at.constant(1).ok()?;
    let rank = at.rank(0).ok().filter(|&rank| rank >= 2)?;
    read_matrix(at, &weight, rank, false, false)
}

fn gemm(at: &At) -> Option<ChannelOperator> {
    at.only_attributes(&["alpha", "beta", "transA", "transB"])
        .ok()?;
    let weight = at.constant(1).ok()?;
    let rank = at.rank(0).ok().filter(|&rank| rank == 2)?;
    let is_transposed = at.flag("transB", false).ok()?;
    if at.flag("transA", false).ok()? {
        return None;
    }
    let bias = at.input(2).ok();
    if bias.is_some() {
        let shape = at.shape(2).ok()?;
        let rows = shape
            .len()
            .checked_sub(2)
            .map_or(Some(1), |rows| at.extent(2, rows).ok())?;
        // A bias with a row for each place cannot move to other places.
        if rows != 1 {
            return None;
        }
    }
    read_matrix(at, &weight, rank, is_transposed, bias.is_some())
}

fn read_matrix(
    at: &At,
    weight: &Recipe,
    rank: usize,
    is_transposed: bool,
    has_bias: bool,
) -> Option<ChannelOperator> {
    let &[rows, columns] = weight.shape() else {
        return None;
    };
    let channels = if is_transposed {
        [columns, rows]
    } else {
        [rows, columns]
    };
    let fits = at.extent(0, rank - 1).ok()? == channels[0];
    fits.then_some(ChannelOperator {
        node: at.node,
        value: at.input(0).ok()?,
        axis: rank - 1,
        rank,
        channels,
        products: weight.len(),
        has_bias,
    })
}
