//! Operators that tie values of one stream together. Each token of the result is a sum of tokens of
//! the operands, in the same way for all channels. So a change of basis of the operands is an equal
//! change of the result.
//!
//! The transfer [rule](crate::affine::rule::Rule) of a node finds the channels of its result. It is
//! applied to a probe, which is a scale with a different number for each channel. Sums are handled
//! here, because a rule sees the affine of an operand, but not the operand's axis of channels.

use ndarray::{ArrayD, IxDyn};

use crate::affine::Affine;
use crate::affine::propagate::rule_table::{rule_of, takes_all};
use crate::affine::rule::{Side, Step};
use crate::analysis::Analysis;
use crate::analysis::node_view::At;
use crate::ir::NodeId;
use crate::onnx::operator::Category;
use crate::recipe::Numbers;

/// A node that ties values together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tie {
    /// The operands with channels, each with its axis of channels.
    pub operands: Vec<(usize, usize)>,
    /// The operands that are added and constant along the channels.
    pub uniform: Vec<usize>,
    /// The outputs with channels.
    pub outputs: Vec<usize>,
    /// The axis of channels in each of these outputs.
    pub axis: usize,
}

/// The tie between a node's inputs and its result, which has `channels` along this axis. `None` if
/// the node does not tie them together.
pub(super) fn behind(
    analysis: &Analysis,
    node: NodeId,
    axis: usize,
    channels: usize,
) -> Option<Tie> {
    let at = analysis.at(node);
    if let Some(sum) = Combination::from_node(&at) {
        return sum.tie(&at, axis, channels);
    }
    let axes = (0..at.rank(0).ok()?).filter(|&axis| at.extent(0, axis) == Ok(channels));
    axes.filter_map(|from| ahead(analysis, node, 0, from, channels))
        .find(|tie| tie.axis == axis)
}

/// The tie between a node's result and its operand `slot`, which has `channels` along this axis.
/// `None` if the node does not tie them together.
pub(super) fn ahead(
    analysis: &Analysis,
    node: NodeId,
    slot: usize,
    axis: usize,
    channels: usize,
) -> Option<Tie> {
    let at = analysis.at(node);
    if let Some(sum) = Combination::from_node(&at) {
        let missing = at.output_rank(0).ok()?.checked_sub(at.rank(slot).ok()?)?;
        let tie = sum.tie(&at, axis + missing, channels)?;
        return tie.operands.contains(&(slot, axis)).then_some(tie);
    }
    if !mixes_tokens(&at) {
        return None;
    }
    let slots = if at.graph.is(node, "Concat") {
        0..at.arity()
    } else {
        0..1
    };
    if !slots.contains(&slot) {
        return None;
    }
    let probes: Vec<Option<Affine>> = slots
        .clone()
        .map(|slot| probe(at.rank(slot).ok()?, axis, channels))
        .collect();
    let step = rule_of(&at)
        .and_then(|rule| rule.forward(&at, &probes))
        .ok()?;
    let (outputs, axis_behind) = reached(step, channels)?;
    let operands = slots.map(|slot| (slot, axis)).collect();
    Some(Tie {
        operands,
        uniform: vec![],
        outputs,
        axis: axis_behind,
    })
}

/// Whether a node is a linear operator whose constants can absorb a scale of the channels along
/// this axis of an operand, or of its result.
pub(super) fn is_taken(
    analysis: &Analysis,
    node: NodeId,
    side: Side,
    axis: usize,
    channels: usize,
) -> bool {
    let at = analysis.at(node);
    let rank = match side {
        Side::Operand(slot) => at.rank(slot),
        _ => at.output_rank(0),
    };
    let probe = rank.ok().and_then(|rank| probe(rank, axis, channels));
    at.graph.category(node).is_some_and(Category::is_product)
        && probe.is_some_and(|probe| takes_all(&at, side, &probe))
}

/// Whether each token of the result is a combination of tokens of the operand, in the same way for
/// all channels.
fn mixes_tokens(at: &At) -> bool {
    const OTHERS: &[&str] = &[
        "AveragePool",
        "Cast",
        "CastLike",
        "Concat",
        "CumSum",
        "Dropout",
        "GlobalAveragePool",
        "Pad",
        "ReduceMean",
        "ReduceSum",
    ];
    let is_scale_transparent = matches!(
        at.graph.category(at.node),
        Some(Category::Movement | Category::Selection)
    );
    is_scale_transparent || at.graph.op(at.node).is_some_and(|op| OTHERS.contains(&op))
}

/// A scale with a different number for each channel.
fn probe(rank: usize, axis: usize, channels: usize) -> Option<Affine> {
    let mut shape = vec![1; rank];
    *shape.get_mut(axis)? = channels;
    let numbers = (2..channels + 2).map(|number| number as f64).collect();
    Some(Affine::scale(Numbers::literal(
        ArrayD::from_shape_vec(IxDyn(&shape), numbers).ok()?,
    )))
}

/// The outputs that a probe reaches, and the axis along which its numbers vary there. `None` if the
/// node changes the numbers of the probe.
fn reached(step: Step, channels: usize) -> Option<(Vec<usize>, usize)> {
    let [way] = &step.ways[..] else { return None };
    let (_, first) = way.first()?;
    let axis = first
        .scale
        .shape()
        .iter()
        .position(|&extent| extent == channels)?;
    let probe = probe(first.rank(), axis, channels)?;
    let fits = step.only_passes_on() && way.iter().all(|(_, affine)| *affine == probe);
    fits.then(|| (way.iter().map(|&(output, _)| output).collect(), axis))
}

/// An element-wise operator that is linear in those operands that have channels.
struct Combination {
    /// The operands that must be constant along the channels.
    factors: &'static [usize],
    /// Whether only one operand may have channels, because the others multiply it.
    multiplies: bool,
}

impl Combination {
    fn from_node(at: &At) -> Option<Self> {
        let (factors, multiplies): (&[usize], bool) = match at.graph.op(at.node)? {
            "Add" | "Sub" | "Sum" | "Neg" => (&[], false),
            "Mul" => (&[], true),
            "Div" => (&[1], true),
            "Where" => (&[0], false),
            _ => return None,
        };
        Some(Self {
            factors,
            multiplies,
        })
    }

    fn tie(&self, at: &At, axis: usize, channels: usize) -> Option<Tie> {
        at.only_attributes(&[]).ok()?;
        let rank = at.output_rank(0).ok()?;
        let (mut operands, mut uniform) = (vec![], vec![]);
        for slot in 0..at.arity() {
            // An operand without this axis is repeated along all channels.
            let own = (axis + at.rank(slot).ok()?).checked_sub(rank);
            match own.map_or(Ok(1), |own| at.extent(slot, own)).ok()? {
                1 => uniform.push(slot),
                extent if extent == channels => operands.push((slot, own?)),
                _ => return None,
            }
        }
        let fits = operands
            .iter()
            .all(|(slot, _)| !self.factors.contains(slot));
        uniform.retain(|slot| !self.factors.contains(slot) && !self.multiplies);
        let fits = fits && !operands.is_empty() && (!self.multiplies || operands.len() == 1);
        fits.then_some(Tie {
            operands,
            uniform,
            outputs: vec![0],
            axis,
        })
    }
}
