//! Moves arithmetic on the inputs of a wide Concat to its result, as one operator.
//!
//! `Concat(x₁·c₁, …, xₙ·cₙ) = Concat(x₁, …, xₙ)·Concat(c₁, …, cₙ)`
//!
//! Sums, differences and quotients move in the same way. If n affines propagated through the Concat
//! one by one, each would be as long as all parts together, which takes n² numbers. All parts must
//! have the same operator, with a constant that does not widen the part. The Concat must be the
//! only reader of each result.

use crate::affine::materialize::Edit;
use crate::affine::recognize::Replacement;
use crate::analysis::Analysis;
use crate::analysis::broadcast::LARGEST;
use crate::hash::HashMap;
use crate::ir::axes::axis;
use crate::ir::builder::{Maker, int};
use crate::ir::regions::region_path;
use crate::ir::{NodeId, ValueId};
use crate::onnx::tensor::DataType;
use crate::recipe::Numbers;

/// A Concat with at most this many parts stays, because the affine of each part may propagate
/// separately.
const WIDE: usize = 16;

/// The joined constant may have at most this many times as many elements as the constants of the
/// parts together. A separate tensor takes about as many bytes for its name and shape as this many
/// elements.
const GROWTH: usize = 16;

/// The edits that move arithmetic after a Concat.
pub(crate) fn edits(analysis: &Analysis) -> Vec<Edit> {
    let graph = &analysis.graph;
    let concats = graph
        .order()
        .iter()
        .filter(|&&node| graph.is(node, "Concat"));
    concats
        .filter_map(|&node| Some(Edit::replacing(graph, node, joined(analysis, node)?)))
        .collect()
}

/// One part of a Concat: a value, and the constant with which an operator combines it.
struct ConcatPart {
    node: NodeId,
    value: ValueId,
    constant: Numbers,
    stored: ValueId,
    /// The extent of the value along the axis of the Concat.
    length: usize,
}

fn joined(analysis: &Analysis, concat: NodeId) -> Option<Replacement> {
    let Analysis { graph, facts, .. } = analysis;
    let at = analysis.at(concat);
    let inputs: Option<Vec<ValueId>> = graph.inputs(concat).iter().copied().collect();
    let inputs = inputs.filter(|inputs| inputs.len() > WIDE)?;
    at.only_attributes(&["axis"]).ok()?;
    let output = graph.only_output(concat)?;
    let along = axis(at.attr("axis", 0).ok()?, at.output_rank(0).ok()?).ok()?;
    let data_type = facts
        .data_type(output)
        .filter(|data_type| data_type.is_float())?;
    let op = graph.op(graph.producer(inputs[0])?.0)?;
    let parts: Vec<ConcatPart> = inputs
        .iter()
        .map(|&input| part(analysis, concat, input, (op, along)))
        .collect::<Option<_>>()?;
    let constant = joined_constant(&parts, along)?;
    is_worth_it(&parts, &constant).then_some(())?;
    let mut maker = Maker::new(graph, concat);
    write(
        &mut maker,
        analysis,
        &parts,
        (op, along),
        (&constant, data_type),
    );
    let (made, constants) = maker.finish(graph.value_name(output));
    let nodes = parts.iter().map(|part| part.node).chain([concat]).collect();
    Some(Replacement {
        nodes,
        made,
        constants,
    })
}

/// Reads a part of a Concat. `None` unless the operator `op` produces the part, and the Concat is
/// the part's only reader.
fn part(
    analysis: &Analysis,
    concat: NodeId,
    input: ValueId,
    (op, along): (&str, usize),
) -> Option<ConcatPart> {
    let Analysis {
        graph,
        constants,
        facts,
        ..
    } = analysis;
    graph
        .only_reader(input)
        .filter(|_| !graph.is_output(input))?;
    let (node, _) = graph.producer(input)?;
    let is_beside =
        graph.is(node, op) && region_path(graph.node(node)) == region_path(graph.node(concat));
    let is_plain = is_beside && analysis.at(node).only_attributes(&[]).is_ok();
    let [Some(left), Some(right)] = *graph.inputs(node) else {
        return None;
    };
    let (value, constant) = match op {
        "Add" | "Mul" if constants.is_constant(left) => (right, left),
        "Add" | "Div" | "Mul" | "Sub" => (left, right),
        _ => return None,
    };
    let is_numbers = is_plain && constants.is_constant(constant) && !constants.is_constant(value);
    let rank = facts.rank(value)?;
    let numbers = constants
        .numbers(constant)
        .ok()
        .filter(|_| is_numbers)?
        .align(rank)?;
    let mut axes = numbers.shape().iter().enumerate();
    let is_narrow =
        axes.all(|(axis, &places)| places == 1 || facts.extent(value, axis) == Some(places));
    let length = facts.extent(value, along)?;
    is_narrow.then_some(ConcatPart {
        node,
        value,
        constant: numbers,
        stored: constant,
        length,
    })
}

/// Whether more than `WIDE` parts have constants of their own, and the joined constant has at most
/// `GROWTH` times as many elements as all these constants. Parts with equal constants are merged by
/// another pass.
fn is_worth_it(parts: &[ConcatPart], joined: &Numbers) -> bool {
    let distinct: HashMap<ValueId, usize> = parts
        .iter()
        .map(|part| (part.stored, part.constant.len()))
        .collect();
    let stored: usize = distinct.values().sum();
    distinct.len() > WIDE && joined.len() <= GROWTH.saturating_mul(stored)
}

/// The constants of all parts, concatenated along the axis. `None` if the result is too large.
fn joined_constant(parts: &[ConcatPart], along: usize) -> Option<Numbers> {
    let mut shape = vec![1; parts.first()?.constant.ndim()];
    for part in parts {
        for (wide, &places) in shape.iter_mut().zip(part.constant.shape()) {
            *wide = (*wide).max(places);
        }
    }
    let length: usize = parts.iter().map(|part| part.length).sum();
    *shape.get_mut(along)? = length;
    shape
        .iter()
        .try_fold(1_usize, |count, &places| count.checked_mul(places))
        .filter(|&count| count <= LARGEST)?;
    let mut pieces = vec![];
    for part in parts {
        shape[along] = part.length;
        pieces.push(part.constant.expand(&shape)?);
    }
    Numbers::concat(along, &pieces)
}

fn write(
    maker: &mut Maker,
    analysis: &Analysis,
    parts: &[ConcatPart],
    (op, along): (&str, usize),
    (constant, data_type): (&Numbers, DataType),
) {
    let values: Vec<&str> = parts
        .iter()
        .map(|part| analysis.graph.value_name(part.value))
        .collect();
    let whole = maker.op("Concat", &values, vec![int("axis", along as i64)]);
    let constant = maker.floats(data_type, constant.recipe());
    maker.op(op, &[&whole, &constant], vec![]);
}
