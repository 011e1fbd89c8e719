//! Finds how to read a value in rows: its elements in the order of batch, token, head and channel.

use crate::affine::propagate::rules::slice::cuts;
use crate::analysis::Analysis;
use crate::analysis::axis_factors::LayoutMap;
use crate::ir::axes::axis;
use crate::ir::regions::region_path;
use crate::ir::{NodeId, ValueId};
use crate::shape::facts::extent;

/// The largest number of movements that are followed.
const REACH: usize = 12;

/// The way to read a value in rows, which have the order of batch, token, head and channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OperandRows {
    /// Another value has the same elements in the order of rows.
    Whole(ValueId),
    /// A part of another value, whose rows have several parts of equal width next to each other.
    Part {
        whole: ValueId,
        part: usize,
        parts: usize,
    },
    /// No value has its elements in the order of rows. The value itself must be transposed.
    Transposed,
}

/// A node through which the search for rows goes back.
#[derive(Clone, Copy)]
enum RowStep {
    Move(NodeId),
    /// Takes one place along an axis.
    Pick(Picked),
}

/// The choice of one place along an axis.
#[derive(Clone, Copy)]
struct Picked {
    axis: usize,
    place: usize,
    places: usize,
    /// Whether the axis stays, with extent 1.
    keeps_axis: bool,
}

/// The order of the axes of a value in rows.
pub(super) struct RowOrder {
    /// The axes of batch, token, head and channel. An attention with one head may lack the axis of
    /// heads.
    pub axes: Vec<usize>,
    /// The number of axes of batch and token.
    pub outer: usize,
}

impl RowOrder {
    /// The order for a value of rank `rank`. Its last two axes are `token` and `channel`, in either
    /// order.
    pub(super) fn new(rank: usize, token: usize, channel: usize) -> Self {
        let head = (rank > 3).then(|| rank - 3);
        let mut axes: Vec<usize> = (0..head.unwrap_or(rank - 2)).collect();
        axes.push(token);
        let outer = axes.len();
        axes.extend(head);
        axes.push(channel);
        RowOrder { axes, outer }
    }
}

/// Finds how to read a value in rows. `order` is the order of its axes in rows, and a row has
/// `width` elements.
pub(super) fn rows(
    analysis: &Analysis,
    value: ValueId,
    order: &RowOrder,
    width: usize,
) -> OperandRows {
    let mut found = OperandRows::Transposed;
    let (mut start, mut steps) = (value, vec![]);
    for _ in 0..REACH {
        if let Some(rows) = at(analysis, start, &steps, order) {
            found = rows;
            if is_matrix(analysis, start, rows, width) {
                break;
            }
        }
        let Some((source, step)) = before(analysis, start) else {
            break;
        };
        steps.push(step);
        start = source;
    }
    found
}

/// Whether a value has the axes batch, token and channel, so that it needs no Reshape.
fn is_matrix(analysis: &Analysis, value: ValueId, rows: OperandRows, width: usize) -> bool {
    let parts = match rows {
        OperandRows::Part { parts, .. } => parts,
        _ => 1,
    };
    analysis.facts.rank(value) == Some(3) && analysis.facts.extent(value, 2) == Some(width * parts)
}

/// The rows of the value that `steps` compute from `start`: all elements of `start`, or one part of
/// it. `None` if neither has the order of rows. The last step is the nearest to `start`.
fn at(
    analysis: &Analysis,
    start: ValueId,
    steps: &[RowStep],
    order: &RowOrder,
) -> Option<OperandRows> {
    let mut map = LayoutMap::new(&analysis.facts.shape(start)?);
    let mut picked = None;
    for step in steps.iter().rev() {
        match *step {
            RowStep::Move(node) => {
                let output = analysis.graph.only_output(node)?;
                map.follow(analysis.graph.node(node), &analysis.facts.shape(output)?)?;
            }
            RowStep::Pick(pick) if picked.is_none() => {
                map.pick(pick.axis, pick.keeps_axis)?;
                picked = Some(pick);
            }
            RowStep::Pick(_) => return None,
        }
    }
    let has_order = map.has_order(&order.axes, order.outer);
    has_order.then_some(match picked {
        None => OperandRows::Whole(start),
        Some(Picked { place, places, .. }) => OperandRows::Part {
            whole: start,
            part: place,
            parts: places,
        },
    })
}

/// The value from which the producer of `value` moves or picks elements, and the step that moves or
/// picks them. `None` if it does neither, or if it reads a constant.
fn before(analysis: &Analysis, value: ValueId) -> Option<(ValueId, RowStep)> {
    let graph = &analysis.graph;
    let (node, slot) = graph.producer(value)?;
    let source = graph.input(node, 0)?;
    if analysis.constants.is_constant(source) {
        return None;
    }
    if graph.is_movement(node) {
        return Some((source, RowStep::Move(node)));
    }
    Some((source, RowStep::Pick(pick(analysis, node, slot)?)))
}

/// The place that an output of a node takes along an axis. `None` if it takes several places.
fn pick(analysis: &Analysis, node: NodeId, slot: usize) -> Option<Picked> {
    let at = analysis.at(node);
    let rank = at.rank(0).ok()?;
    let (axis, place, keeps_axis) = match analysis.graph.op(node)? {
        "Split" => (axis(at.attr("axis", 0).ok()?, rank).ok()?, slot, true),
        "Gather" => {
            let indices = at.ints(1).ok()??;
            let &[index] = &indices[..] else {
                return None;
            };
            let axis = axis(at.attr("axis", 0).ok()?, rank).ok()?;
            let keeps_axis = at.rank(1) == Ok(1);
            let is_place = keeps_axis || at.rank(1) == Ok(0);
            let places = at.extent(0, axis).ok()?;
            (
                axis,
                counted(index, places).filter(|_| is_place)?,
                keeps_axis,
            )
        }
        "Slice" => {
            let &[(axis, Some(cut))] = &cuts(&at).ok()?[..] else {
                return None;
            };
            let places = at.extent(0, axis).ok()?;
            (axis, counted(cut.start, places)?, true)
        }
        _ => return None,
    };
    let places = at.extent(0, axis).ok()?;
    let output = at.output_shape(slot).ok()?;
    let is_one = !keeps_axis || extent(output.get(axis)?) == Some(1);
    let is_even = !analysis.graph.is(node, "Split") || splits_evenly(analysis, node, axis);
    (is_one && is_even).then_some(Picked {
        axis,
        place,
        places,
        keeps_axis,
    })
}

/// Whether each output of a Split has one place along the axis.
fn splits_evenly(analysis: &Analysis, split: NodeId, axis: usize) -> bool {
    let mut outputs = analysis.graph.outputs(split).iter();
    outputs.all(|output| output.is_some_and(|value| analysis.facts.extent(value, axis) == Some(1)))
}

/// A place, counted from the front. `None` if there is no such place.
fn counted(place: i64, places: usize) -> Option<usize> {
    axis(place, places).ok()
}

/// Follows the movements after `output` to a value whose elements are in rows. Returns that value
/// and the movements. If several values have their elements in rows, returns the first that has the
/// axes batch, token and channel. If none has these axes, returns the last value. `None` if no
/// value has its elements in rows.
pub(super) fn joined(
    analysis: &Analysis,
    output: ValueId,
    order: &RowOrder,
) -> Option<(ValueId, Vec<NodeId>)> {
    let graph = &analysis.graph;
    let mut map = LayoutMap::new(&analysis.facts.shape(output)?);
    let region = region_path(graph.node(graph.producer(output)?.0));
    let (mut value, mut nodes, mut found) = (output, vec![], None);
    for _ in 0..REACH {
        if map.turns_into(&order.axes) {
            found = Some((value, nodes.clone()));
            if analysis.facts.rank(value) == Some(3) {
                break;
            }
        }
        let next = graph.only_reader(value).filter(|&(node, slot)| {
            let is_beside = region_path(graph.node(node)) == region;
            slot == 0 && is_beside && graph.is_movement(node)
        });
        let Some((node, _)) = next else {
            break;
        };
        let Some(after) = graph.only_output(node) else {
            break;
        };
        let shape = analysis.facts.shape(after);
        if shape
            .and_then(|shape| map.follow(graph.node(node), &shape))
            .is_none()
        {
            break;
        }
        nodes.push(node);
        value = after;
    }
    found
}
