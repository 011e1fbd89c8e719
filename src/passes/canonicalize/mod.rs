//! Canonicalization: operators in forms that the next passes see through.
//!
//! `x[..., 0]` of an axis that has one place is a Squeeze, which moves nothing; exporters write a Gather, which picks
//! places. And what broadcasting does by itself need not be written: `x + Expand(c)` is `x + c` where x is as large, as is
//! `x + Gather(table, zeros)` with the first entry, and `f(Expand(c))` is `Expand(f(c))`. So statistics that were given the
//! shape of the input are constants of channels again. A Sum of two values is an Add, an Einsum that adds up nothing is a
//! Mul, a pooling by whose mean a value is centred is a mean, a BatchNormalization of which each token is a channel is a
//! LayerNormalization, a Gather of all places in order is a Reshape, a GatherND of
//! places of one axis a Gather, and zeros around an image are the padding of the
//! convolution behind.

pub(crate) mod adjacent;
pub(crate) mod identity_selection;
pub(crate) mod padding;
pub(crate) mod token_norm;

use crate::affine::materialize::{Edit, written_anew};

use crate::analysis::Analysis;
use crate::analysis::broadcast::LARGEST;
use crate::analysis::uniform;
use crate::ir::axes::axis;
use crate::ir::builder::{Maker, int};
use crate::ir::equation::{Equation, is_once};
use crate::ir::{NodeId, Reader, ValueId};
use crate::onnx::operator::Category;
use crate::onnx::tensor;
use crate::recipe::Numbers;
use crate::shape::facts::{extent, same_shape};

/// The operator set from which on a Sum broadcasts.
const SUM_BROADCASTS: i64 = 8;

/// The edits of float operators.
pub fn edits(analysis: &Analysis) -> Vec<Edit> {
    written_anew(analysis, |node, output| {
        analysis
            .facts
            .data_type(output)
            .filter(|data_type| data_type.is_float())?;
        squeezed(analysis, node)
            .or_else(|| picked(analysis, node))
            .or_else(|| pooled(analysis, node))
            .or_else(|| token_norm::written_out(analysis, node))
            .or_else(|| identity_selection::whole(analysis, node))
            .or_else(|| padding::by_itself(analysis, node))
            .or_else(|| added(analysis, node))
            .or_else(|| multiplied(analysis, node))
            .or_else(|| broadcast(analysis, node))
            .or_else(|| adjacent::one(analysis, node))
            .or_else(|| narrowed(analysis, node))
    })
}

/// A Gather of the only place of an axis as a Squeeze.
fn squeezed<'m>(analysis: &'m Analysis, node: NodeId) -> Option<Maker<'m>> {
    let Analysis {
        graph,
        facts,
        constants,
        ..
    } = analysis;
    if !graph.is(node, "Gather") || analysis.at(node).only_attributes(&["axis"]).is_err() {
        return None;
    }
    let [Some(value), Some(index)] = graph.inputs(node) else {
        return None;
    };
    let shape = facts.shape(*value)?;
    let along = axis(
        graph.node(node).attr_i("axis").ok()?.unwrap_or(0),
        shape.len(),
    )
    .ok()?;
    let is_one_place = extent(&shape[along]) == Some(1) && facts.shape(*index)?.is_empty();
    if !is_one_place
        || !constants.is_constant(*index)
        || !matches!(constants.ints(*index)?[..], [-1 | 0])
    {
        return None;
    }
    let mut maker = Maker::new(graph, node);
    maker.squeeze(graph.value_name(*value), along as i64);
    Some(maker)
}

/// A GatherND that picks places of the first axis, which constants tell, as the Gather that it is: exporters write
/// `x[..., places]` so, between Transposes.
fn picked<'m>(analysis: &'m Analysis, node: NodeId) -> Option<Maker<'m>> {
    let Analysis {
        graph,
        facts,
        constants,
        ..
    } = analysis;
    let at = analysis.at(node);
    if !graph.is(node, "GatherND") || at.only_attributes(&["batch_dims"]).is_err() {
        return None;
    }
    let [Some(value), Some(index)] = *graph.inputs(node) else {
        return None;
    };
    let shape = facts.shape(index)?;
    let [_, Some(1)] = shape.iter().map(extent).collect::<Vec<_>>()[..] else {
        return None;
    };
    let is_first = at.attr("batch_dims", 0).ok()? == 0 && constants.is_constant(index);
    let places = constants.ints(index).filter(|_| is_first)?;
    let mut maker = Maker::new(graph, node);
    let places = maker.ints(&places);
    maker.op(
        "Gather",
        &[graph.value_name(value), &places],
        vec![int("axis", 0)],
    );
    Some(maker)
}

/// A pooling over all places as the mean that it is, where a normalization reads it: TensorFlow's over the channels of
/// tokens is written as one.
fn pooled<'m>(analysis: &'m Analysis, node: NodeId) -> Option<Maker<'m>> {
    let Analysis { graph, facts, .. } = analysis;
    if !graph.is(node, "GlobalAveragePool") || analysis.at(node).only_attributes(&[]).is_err() {
        return None;
    }
    let value = graph.input(node, 0)?;
    let rank = facts.rank(value).filter(|&rank| rank > 2)?;
    // A centred value, or a square.
    let is_square = graph
        .producer(value)
        .is_some_and(|(maker, _)| match graph.op(maker) {
            Some("Mul") => graph.input(maker, 0) == graph.input(maker, 1),
            Some("Pow") => {
                graph
                    .input(maker, 1)
                    .and_then(|power| analysis.constants.scalar(power))
                    == Some(2.0)
            }
            _ => false,
        });
    let mean = graph.only_output(node)?;
    let centres = |reader: &Reader| matches!(reader, Reader::Node { node, .. } if graph.is(*node, "Sub") && graph.inputs(*node) == [Some(value), Some(mean)]);
    if !is_square && !graph.readers(mean).iter().any(centres) {
        return None;
    }
    let mut maker = Maker::new(graph, node);
    maker.mean(
        graph.value_name(value),
        &(2..rank as i64).collect::<Vec<_>>(),
        true,
    );
    Some(maker)
}

/// A Sum of two values as an Add, or of one as that.
fn added<'m>(analysis: &'m Analysis, node: NodeId) -> Option<Maker<'m>> {
    let graph = &analysis.graph;
    if !graph.is(node, "Sum") || analysis.at(node).only_attributes(&[]).is_err() {
        return None;
    }
    let mut maker = Maker::new(graph, node);
    match *graph.inputs(node) {
        [Some(only)] => maker.op("Identity", &[graph.value_name(only)], vec![]),
        [Some(one), Some(other)]
            if maker.opset() >= SUM_BROADCASTS || is_as_large(analysis, one, other) =>
        {
            maker.op(
                "Add",
                &[one, other].map(|value| graph.value_name(value)),
                vec![],
            )
        }
        _ => return None,
    };
    Some(maker)
}

/// An Einsum of a value and a constant as a Mul, where it adds up nothing and the constant has its axes in their order.
fn multiplied<'m>(analysis: &'m Analysis, node: NodeId) -> Option<Maker<'m>> {
    let (graph, at) = (&analysis.graph, analysis.at(node));
    if !graph.is(node, "Einsum") || at.arity() != 2 || at.only_attributes(&["equation"]).is_err() {
        return None;
    }
    let slot = (0..2).find(|&slot| at.is_constant(slot) && !at.is_constant(1 - slot))?;
    let ranks = [0, 1].map(|slot| at.rank(slot).ok());
    let Equation { operands, result } = Equation::read(at.attr_text("equation", "").ok()?, &ranks)?;
    let (value, constant) = (&operands[1 - slot], &operands[slot]);
    if *value != result || !is_once(value) || !is_once(constant) || ranks.contains(&None) {
        return None;
    }
    let place = |letter| result.iter().position(|other| other == letter);
    let places: Vec<usize> = constant.iter().map(place).collect::<Option<_>>()?;
    let mut shape = vec![1; result.len() - places.first().filter(|_| places.is_sorted())?];
    let before = result.len() - shape.len();
    for (place, extent) in places.iter().zip(at.extents(slot).ok()?) {
        shape[place - before] = extent;
    }
    let mut maker = Maker::new(graph, node);
    let [value, factor] = [at.input(1 - slot).ok()?, at.input(slot).ok()?];
    let factor = if shape.len() > constant.len() {
        let data_type = analysis.facts.data_type(factor)?;
        // Infinities and NaN are not stored anew.
        at.numbers(slot)
            .ok()
            .filter(|numbers| numbers.iter().all(|number| number.is_finite()))?;
        maker.floats(data_type, &at.constant(slot).ok()?.reshape(&shape)?)
    } else {
        graph.value_name(factor).to_owned()
    };
    maker.op("Mul", &[graph.value_name(value), &factor], vec![]);
    Some(maker)
}

/// Whether two values are known to have the same extents.
fn is_as_large(Analysis { facts, .. }: &Analysis, one: ValueId, other: ValueId) -> bool {
    let (Some(shape), Some(beside)) = (facts.shape(one), facts.shape(other)) else {
        return false;
    };
    same_shape(&shape, &beside)
}

/// The operand and the shape of an Expand.
fn expanded(analysis: &Analysis, value: ValueId) -> Option<(ValueId, ValueId)> {
    let graph = &analysis.graph;
    let (node, _) = graph.producer(value)?;
    match graph.inputs(node) {
        [Some(of), Some(to)] if graph.is(node, "Expand") => Some((*of, *to)),
        _ => None,
    }
}

/// An operator of two values, one of which has the same at all places, and no more of these than the other.
fn broadcast<'m>(analysis: &'m Analysis, node: NodeId) -> Option<Maker<'m>> {
    let graph = &analysis.graph;
    let [Some(one), Some(other)] = *graph.inputs(node) else {
        return None;
    };
    if graph.category(node) != Some(Category::Arithmetic)
        || analysis.at(node).only_attributes(&[]).is_err()
    {
        return None;
    }
    let name = |value| graph.value_name(value);
    let mut maker = Maker::new(graph, node);
    let output = graph.only_output(node)?;
    // The other operand is as large as the result, so that the broadcast shape is not needed.
    let is_whole =
        |value| is_as_large(analysis, value, output) || is_as_large(analysis, one, other);
    let second = is_whole(one)
        .then(|| narrow(analysis, &mut maker, other))
        .flatten();
    let operands = match second {
        Some(narrow) => [name(one).to_owned(), narrow],
        None if is_whole(other) => [narrow(analysis, &mut maker, one)?, name(other).to_owned()],
        None => return None,
    };
    maker.op(
        graph.op(node)?,
        &operands.each_ref().map(String::as_str),
        vec![],
    );
    Some(maker)
}

/// A small value that broadcasts to a uniform one.
fn narrow(analysis: &Analysis, maker: &mut Maker, wide: ValueId) -> Option<String> {
    let Analysis {
        graph,
        facts,
        constants,
        ..
    } = analysis;
    if constants.is_constant(wide) {
        return None;
    }
    if let Some((of, _)) = expanded(analysis, wide) {
        return Some(graph.value_name(of).to_owned());
    }
    Some(maker.floats(facts.data_type(wide)?, &uniform::row(analysis, wide)?))
}

/// An operator on single elements of a constant that is expanded, and of numbers: the constant is computed before it is.
fn narrowed<'m>(analysis: &'m Analysis, node: NodeId) -> Option<Maker<'m>> {
    let Analysis {
        graph, constants, ..
    } = analysis;
    let wide = graph
        .inputs(node)
        .iter()
        .flatten()
        .find(|&&value| !constants.is_constant(value))?;
    let (of, to) = expanded(analysis, *wide)?;
    if graph.only_reader(*wide).is_none()
        || !constants.is_constant(of)
        || constants.is_quantized(of)
        || constants.is_blurred(of)
    {
        return None;
    }
    let is_small = constants.len(of).is_some_and(|count| count <= LARGEST);
    let data_type = analysis.facts.data_type(of).filter(|_| is_small)?;
    let numbers = applied(analysis, node, *wide, &constants.numbers(of).ok()?)?;
    tensor::make("", data_type, &numbers.view()).ok()?;
    let mut maker = Maker::new(graph, node);
    let made = maker.floats(data_type, numbers.recipe());
    maker.op("Expand", &[&made, graph.value_name(to)], vec![]);
    Some(maker)
}

/// The result of a node for numbers in place of one of its inputs, if all others are scalars; it
/// has their shape.
fn applied(analysis: &Analysis, node: NodeId, at: ValueId, numbers: &Numbers) -> Option<Numbers> {
    let Analysis {
        graph, constants, ..
    } = analysis;
    analysis.at(node).only_attributes(&[]).ok()?;
    let operand = |slot: usize| {
        let value = graph.input(node, slot)?;
        if value == at {
            return Some(numbers.clone());
        }
        let number = constants
            .numbers(value)
            .ok()
            .filter(|_| constants.is_scalar(value));
        number.filter(|number| number.ndim() <= numbers.ndim())
    };
    let made = match (graph.op(node)?, graph.inputs(node).len()) {
        ("Neg", 1) => -&operand(0)?,
        ("Sqrt", 1) => operand(0)?.sqrt(),
        ("Reciprocal", 1) => &Numbers::number(1.0, 0) / &operand(0)?,
        ("Add", 2) => &operand(0)? + &operand(1)?,
        ("Sub", 2) => &operand(0)? - &operand(1)?,
        ("Mul", 2) => &operand(0)? * &operand(1)?,
        ("Div", 2) => &operand(0)? / &operand(1)?,
        ("Pow", 2) => {
            let root = operand(0)
                .filter(|_| graph.input(node, 0) == Some(at))?
                .sqrt();
            match constants.scalar(graph.input(node, 1)?)? {
                0.5 => root,
                -0.5 => &Numbers::number(1.0, 0) / &root,
                _ => return None,
            }
        }
        _ => return None,
    };
    (made.shape() == numbers.shape() && made.iter().all(|number| number.is_finite()))
        .then_some(made)
}
