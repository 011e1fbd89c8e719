//! Packed products: one product `x·W + b`, such as queries, keys and values, whose columns a Reshape
//! and a Split, Slices or Gathers divide into parts.
//!
//! The columns of `W` form `O` runs. In each run, each of the `P` parts has `I` adjacent columns, so
//! column `(o·P + p)·I + i` belongs to part `p`. [`write::divided`] writes one product for each
//! group of parts, with the columns of the group.

mod write;

use std::ops::Range;

use crate::analysis::Analysis;
use crate::analysis::node_view::At;
use crate::ir::axes::axis as counted;
use crate::ir::{NodeId, Reader, ValueId};
use crate::ops::axes::{AxisRead, PlaceAxis, reads};
use crate::passes::movement::split_before_transpose::squeeze_after;

pub(super) use write::{columns_of, divided, rename};

/// A part of a packed product that a reader takes.
pub(super) struct TakenPart {
    /// The node that takes the part.
    pub node: NodeId,
    /// The Squeeze of the axis of the parts, if it is the only reader of the node's result.
    pub squeeze: Option<NodeId>,
    /// The output of the node with the elements of the part.
    pub taken: ValueId,
    /// The result of the Squeeze, or else of the node.
    pub output: ValueId,
    /// The places that the part takes on the axis of the parts.
    pub places: Range<usize>,
    /// Whether the output is without the axis of the parts.
    pub drops_axis: bool,
}

/// A product with a constant weight, and the operators between the product and the value whose
/// parts are taken.
pub(super) struct PackedProduct {
    /// The MatMul, or a Gemm without factors.
    pub node: NodeId,
    /// The Add of a bias, or the Gemm, and the index of the input that is the bias.
    pub bias: Option<(NodeId, usize)>,
    /// A Reshape that gives the parts an axis of their own.
    pub reshape: Option<NodeId>,
    /// The Transposes after the product, the bias and the Reshape, in execution order.
    pub transposes: Vec<NodeId>,
}

impl PackedProduct {
    /// Finds the product before a value. `None` if a value in between or the weight has another
    /// reader.
    pub(super) fn before(analysis: &Analysis, whole: ValueId) -> Option<Self> {
        let graph = &analysis.graph;
        let mut found = PackedProduct {
            node: 0,
            bias: None,
            reshape: None,
            transposes: vec![],
        };
        let mut value = whole;
        loop {
            let (node, _) = graph.producer(value)?;
            let at = analysis.at(node);
            if value != whole && graph.only_reader(value).is_none() {
                return None;
            }
            value = match graph.op(node)? {
                "Transpose" if found.reshape.is_none() && found.bias.is_none() => {
                    found.transposes.insert(0, node);
                    at.input(0).ok()?
                }
                "Reshape" if found.reshape.is_none() && found.bias.is_none() => {
                    found.reshape = Some(node);
                    at.input(0).ok()?
                }
                "Add" if found.bias.is_none() => {
                    let bias = at.constant_operand()?;
                    found.bias = Some((node, bias));
                    at.input(1 - bias).ok()?
                }
                "MatMul" => {
                    found.node = node;
                    let weight = at.weight(1).ok()?;
                    let is_own = at.rank(1) == Ok(2) && graph.only_reader(weight).is_some();
                    return is_own.then_some(found);
                }
                "Gemm" if found.bias.is_none() && is_plain_gemm(&at) => {
                    found.node = node;
                    found.bias = at.input(2).is_ok().then_some((node, 2));
                    let weight = at.weight(1).ok()?;
                    return graph.only_reader(weight).is_some().then_some(found);
                }
                _ => return None,
            };
        }
    }

    /// Whether a selection of places along an axis of the whole value can move to the operand of
    /// the product.
    pub(super) fn passes(&self, analysis: &Analysis, along: PlaceAxis) -> bool {
        let mut steps: Vec<(NodeId, usize)> = vec![];
        steps.extend(self.transposes.iter().rev().map(|&node| (node, 0)));
        steps.extend(self.reshape.map(|node| (node, 0)));
        let add = self.bias.filter(|&(node, _)| node != self.node);
        steps.extend(add.map(|(node, bias)| (node, 1 - bias)));
        steps.push((self.node, 0));
        let mut steps = steps.into_iter();
        let reached = steps.try_fold(along, |along, (node, slot)| {
            along.in_input(&analysis.at(node), 0, slot)
        });
        reached.is_some()
    }
}

/// Whether a Gemm multiplies rows by its weight, and only adds its bias.
fn is_plain_gemm(at: &At) -> bool {
    let factors = ["alpha", "beta"].map(|name| at.attr_float(name, 1.0));
    at.flag("transA", false) == Ok(false) && factors.iter().all(|factor| *factor == Ok(1.0))
}

/// The parts that the readers of a value take, and their common axis. `None` if a reader takes no
/// part along this axis.
pub(super) fn parts(analysis: &Analysis, whole: ValueId) -> Option<(usize, Vec<TakenPart>)> {
    let graph = &analysis.graph;
    let mut all: Option<(usize, Vec<TakenPart>)> = None;
    for reader in graph.readers(whole) {
        let &Reader::Node { node, input: 0 } = reader else {
            return None;
        };
        let axis = parted_axis(analysis, node)?;
        let (other, list) = all.get_or_insert((axis, vec![]));
        if *other != axis {
            return None;
        }
        for slot in 0..graph.outputs(node).len() {
            list.push(part(analysis, node, slot, axis)?);
        }
    }
    all
}

/// The part that a node outputs at `slot`. `None` if its places are unknown or not adjacent.
fn part(analysis: &Analysis, node: NodeId, slot: usize, axis: usize) -> Option<TakenPart> {
    let at = analysis.at(node);
    let taken = analysis.graph.output(node, slot)?;
    let is_gather = analysis.graph.is(node, "Gather");
    let places = match is_gather {
        true => gathered(analysis, node, axis)?,
        false => {
            let AxisRead::Strided { start, step: 1, .. } = *reads(&at, slot, axis).first()? else {
                return None;
            };
            start..start + at.output_extent(slot, axis).ok()?
        }
    };
    let squeezed = if is_gather {
        None
    } else {
        squeeze_after(analysis, taken, axis, at.rank(0).ok()?)
    };
    Some(TakenPart {
        node,
        squeeze: squeezed.map(|(_, squeeze)| squeeze),
        taken,
        output: squeezed.map_or(taken, |(output, _)| output),
        places,
        drops_axis: is_gather || squeezed.is_some(),
    })
}

fn parted_axis(analysis: &Analysis, node: NodeId) -> Option<usize> {
    let at = analysis.at(node);
    let rank = at.rank(0).ok()?;
    match analysis.graph.op(node)? {
        "Gather" | "Split" => counted(at.attr("axis", 0).ok()?, rank).ok(),
        "Slice" => match at.list("axes").ok()??[..] {
            [axis] => counted(axis, rank).ok(),
            _ => None,
        },
        _ => None,
    }
}

fn gathered(analysis: &Analysis, node: NodeId, axis: usize) -> Option<Range<usize>> {
    let at = analysis.at(node);
    let [place] = at.ints(1).ok()??[..] else {
        return None;
    };
    let whole = at.extent(0, axis).ok()?;
    let place = counted(place, whole).ok()?;
    (at.rank(1) == Ok(0)).then_some(place..place + 1)
}
