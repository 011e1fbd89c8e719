//! Canonicalization: rewrites operators into forms that the next passes recognize.
//!
//! | before | after |
//! |---|---|
//! | a Gather of the only place of an axis | a Squeeze |
//! | `x + Expand(c)`, x as large as the result | `x + c` |
//! | `x + Gather(table, zeros)` | `x +` the first entry |
//! | `f(Expand(c))` | `Expand(f(c))`, so that statistics with the shape of the input are constants of channels again |
//! | a Sum of two values | an Add |
//! | an Einsum of two values that sums nothing | a Mul |
//! | an Einsum of one value that permutes its axes | a Transpose |
//! | a pooling whose mean is subtracted from its input | a ReduceMean |
//! | a BatchNormalization whose channels are tokens | a LayerNormalization |
//! | a Gather of all places in order | a Reshape |
//! | a GatherND of places of one axis | a Gather |
//! | a Pad before a convolution or a pooling | the `pads` of that operator |
//! | extents cast to int32 and back | extents in int64 |

pub(crate) mod adjacent;
mod extents;
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
use crate::ir::{Graph, NodeId, Reader, ValueId};
use crate::onnx::operator::Category;
use crate::onnx::tensor::{self, DataType};
use crate::recipe::Numbers;
use crate::shape::facts::{extent, same_shape};

/// The first operator set in which a Sum broadcasts.
const SUM_BROADCASTS: i64 = 8;

/// Writes a node in its canonical form. `None` if the node has that form already, or if there is no
/// such form.
type CanonicalForm = for<'m> fn(&'m Analysis, NodeId) -> Option<Maker<'m>>;

/// The rewrites of operators with float results. For each node, only the first rewrite that applies
/// is written.
const FORMS: [CanonicalForm; 12] = [
    gather_as_squeeze,
    gather_nd_as_gather,
    pooling_as_mean,
    token_norm::as_layer_norm,
    identity_selection::as_reshape,
    padding::as_attribute,
    sum_as_add,
    einsum_as_mul,
    einsum_as_transpose,
    without_broadcast,
    adjacent::merged,
    before_expand,
];

/// The edits that write operators in their canonical form.
pub(crate) fn edits(analysis: &Analysis) -> Vec<Edit> {
    written_anew(analysis, |node, output| {
        match analysis.facts.data_type(output)? {
            DataType::Int64 => extents::without_narrowing(analysis, node),
            data_type if data_type.is_float() => FORMS.iter().find_map(|form| form(analysis, node)),
            _ => None,
        }
    })
}

/// Writes a Gather of the only place of an axis as a Squeeze. `None` for other nodes.
fn gather_as_squeeze<'m>(analysis: &'m Analysis, node: NodeId) -> Option<Maker<'m>> {
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

/// Replaces a GatherND that picks constant places of the first axis by a Gather. `None` for other
/// nodes. Exporters write `x[..., places]` as a GatherND between Transposes.
fn gather_nd_as_gather<'m>(analysis: &'m Analysis, node: NodeId) -> Option<Maker<'m>> {
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

/// Writes a pooling over all places as a ReduceMean, if the pooling computes a statistic of a
/// normalization: the mean of squares, or a mean that is subtracted from its input. TensorFlow
/// writes the mean over the channels of tokens as a pooling.
fn pooling_as_mean<'m>(analysis: &'m Analysis, node: NodeId) -> Option<Maker<'m>> {
    let Analysis { graph, facts, .. } = analysis;
    if !graph.is(node, "GlobalAveragePool") || analysis.at(node).only_attributes(&[]).is_err() {
        return None;
    }
    let value = graph.input(node, 0)?;
    let rank = facts.rank(value).filter(|&rank| rank > 2)?;
    let mean = graph.only_output(node)?;
    let mut readers = graph.readers(mean).iter();
    if !is_square(analysis, value) && !readers.any(|reader| centres(graph, reader, value, mean)) {
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

/// Whether a value is a square, written as `Mul(x, x)` or `Pow(x, 2)`.
fn is_square(analysis: &Analysis, value: ValueId) -> bool {
    let graph = &analysis.graph;
    let Some((maker, _)) = graph.producer(value) else {
        return false;
    };
    let second = graph.input(maker, 1);
    match graph.op(maker) {
        Some("Mul") => graph.input(maker, 0) == second,
        Some("Pow") => second.and_then(|power| analysis.constants.scalar(power)) == Some(2.0),
        _ => false,
    }
}

/// Whether a reader subtracts the mean from the value.
fn centres(graph: &Graph, reader: &Reader, value: ValueId, mean: ValueId) -> bool {
    let Reader::Node { node, .. } = *reader else {
        return false;
    };
    graph.is(node, "Sub") && graph.inputs(node) == [Some(value), Some(mean)]
}

/// Writes a Sum of two values as an Add, and a Sum of one value as an Identity. `None` for other
/// nodes, and before operator set 8 also if two values are not known to have equal shapes.
fn sum_as_add<'m>(analysis: &'m Analysis, node: NodeId) -> Option<Maker<'m>> {
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

/// Writes an Einsum of a value and a constant as a Mul, if it sums nothing and the constant has its
/// axes in the order of the value.
fn einsum_as_mul<'m>(analysis: &'m Analysis, node: NodeId) -> Option<Maker<'m>> {
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
    let places: Vec<usize> = constant
        .iter()
        .map(|letter| result.iter().position(|other| other == letter))
        .collect::<Option<_>>()?;
    let mut shape = vec![1; result.len() - places.first().filter(|_| places.is_sorted())?];
    let before = result.len() - shape.len();
    for (place, extent) in places.iter().zip(at.extents(slot).ok()?) {
        shape[place - before] = extent;
    }
    let mut maker = Maker::new(graph, node);
    let [value, factor] = [at.input(1 - slot).ok()?, at.input(slot).ok()?];
    let factor = if shape.len() > constant.len() {
        let data_type = analysis.facts.data_type(factor)?;
        // A constant that contains infinities or NaN cannot be stored in another shape, so its
        // Einsum stays.
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

/// Writes an Einsum of one value as a Transpose, if it only permutes the axes.
fn einsum_as_transpose<'m>(analysis: &'m Analysis, node: NodeId) -> Option<Maker<'m>> {
    let (graph, at) = (&analysis.graph, analysis.at(node));
    if !graph.is(node, "Einsum") || at.arity() != 1 || at.only_attributes(&["equation"]).is_err() {
        return None;
    }
    let equation = at.attr_text("equation", "").ok()?;
    let Equation { operands, result } = Equation::read(equation, &[at.rank(0).ok()])?;
    if !is_once(&operands[0]) || !is_once(&result) || operands[0].len() != result.len() {
        return None;
    }
    let axis_of = |letter| operands[0].iter().position(|other| other == letter);
    let axes: Vec<usize> = result.iter().map(axis_of).collect::<Option<_>>()?;
    let permutation: Vec<i64> = axes.into_iter().map(|axis| axis as i64).collect();
    let mut maker = Maker::new(graph, node);
    maker.transpose(graph.value_name(at.input(0).ok()?), &permutation);
    Some(maker)
}

/// Whether two values are known to have equal extents.
fn is_as_large(Analysis { facts, .. }: &Analysis, one: ValueId, other: ValueId) -> bool {
    let (Some(shape), Some(beside)) = (facts.shape(one), facts.shape(other)) else {
        return false;
    };
    same_shape(&shape, &beside)
}

/// The elements of an operand: `numbers` if the operand is `at`, else the element of a scalar
/// constant whose rank is at most that of `numbers`. `None` for other operands.
fn operand(analysis: &Analysis, value: ValueId, at: ValueId, numbers: &Numbers) -> Option<Numbers> {
    if value == at {
        return Some(numbers.clone());
    }
    let constants = &analysis.constants;
    let number = constants.numbers(value).ok();
    number.filter(|number| constants.is_scalar(value) && number.ndim() <= numbers.ndim())
}

/// The operand and the shape of the Expand that produces a value. `None` for other producers.
fn expanded(analysis: &Analysis, value: ValueId) -> Option<(ValueId, ValueId)> {
    let graph = &analysis.graph;
    let (node, _) = graph.producer(value)?;
    match graph.inputs(node) {
        [Some(operand), Some(shape)] if graph.is(node, "Expand") => Some((*operand, *shape)),
        _ => None,
    }
}

/// Replaces one operand of an arithmetic operator by the smaller value from which it is broadcast.
/// `None` unless the other operand has the shape of the result.
fn without_broadcast<'m>(analysis: &'m Analysis, node: NodeId) -> Option<Maker<'m>> {
    let graph = &analysis.graph;
    let [Some(one), Some(other)] = *graph.inputs(node) else {
        return None;
    };
    if graph.category(node) != Some(Category::Arithmetic)
        || analysis.at(node).only_attributes(&[]).is_err()
    {
        return None;
    }
    let mut maker = Maker::new(graph, node);
    let output = graph.only_output(node)?;
    // If one operand has the shape of the result, the operator itself broadcasts the other operand,
    // which may be smaller.
    let are_alike = is_as_large(analysis, one, other);
    let [is_first_whole, is_second_whole] =
        [one, other].map(|value| are_alike || is_as_large(analysis, value, output));
    let second = match is_first_whole {
        true => narrow(analysis, &mut maker, other),
        false => None,
    };
    let operands = match second {
        Some(second) => [graph.value_name(one).to_owned(), second],
        None if is_second_whole => {
            let first = narrow(analysis, &mut maker, one)?;
            [first, graph.value_name(other).to_owned()]
        }
        None => return None,
    };
    maker.op(
        graph.op(node)?,
        &operands.each_ref().map(String::as_str),
        vec![],
    );
    Some(maker)
}

/// The name of a smaller value that broadcasts to `wide`. `None` for a constant, or if there is no
/// such value.
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
    if let Some((operand, _)) = expanded(analysis, wide) {
        return Some(graph.value_name(operand).to_owned());
    }
    Some(maker.floats(facts.data_type(wide)?, &uniform::row(analysis, wide)?))
}

/// Applies an element-wise operator to the constant that an Expand broadcasts, and moves the Expand
/// after the operator. `None` if another operand is not a scalar constant, or if another node reads
/// the result of the Expand.
fn before_expand<'m>(analysis: &'m Analysis, node: NodeId) -> Option<Maker<'m>> {
    let Analysis {
        graph, constants, ..
    } = analysis;
    let wide = graph
        .inputs(node)
        .iter()
        .flatten()
        .find(|&&value| !constants.is_constant(value))?;
    let (small, shape) = expanded(analysis, *wide)?;
    if graph.only_reader(*wide).is_none()
        || !constants.is_constant(small)
        || constants.is_quantized(small)
        || constants.is_blurred(small)
    {
        return None;
    }
    let is_small = constants.len(small).is_some_and(|count| count <= LARGEST);
    let data_type = analysis.facts.data_type(small).filter(|_| is_small)?;
    let numbers = applied(analysis, node, *wide, &constants.numbers(small).ok()?)?;
    tensor::make("", data_type, &numbers.view()).ok()?;
    let mut maker = Maker::new(graph, node);
    let made = maker.floats(data_type, numbers.recipe());
    maker.op("Expand", &[&made, graph.value_name(shape)], vec![]);
    Some(maker)
}

/// Computes the result of a node whose input `at` has the elements `numbers`, and whose other
/// inputs are scalars. `None` for an operator that is not handled here, if the shape of the result
/// differs from that of `numbers`, or if an element is not finite.
fn applied(analysis: &Analysis, node: NodeId, at: ValueId, numbers: &Numbers) -> Option<Numbers> {
    let Analysis {
        graph, constants, ..
    } = analysis;
    analysis.at(node).only_attributes(&[]).ok()?;
    let made = match (graph.op(node)?, graph.inputs(node)) {
        ("Pow", &[Some(base), Some(power)]) if base == at => match constants.scalar(power)? {
            0.5 => numbers.sqrt(),
            -0.5 => &Numbers::number(1.0, 0) / &numbers.sqrt(),
            _ => return None,
        },
        ("Neg", &[Some(_)]) => -numbers,
        ("Sqrt", &[Some(_)]) => numbers.sqrt(),
        ("Reciprocal", &[Some(_)]) => &Numbers::number(1.0, 0) / numbers,
        (op, &[Some(one), Some(other)]) => {
            let one = operand(analysis, one, at, numbers)?;
            let other = operand(analysis, other, at, numbers)?;
            match op {
                "Add" => &one + &other,
                "Sub" => &one - &other,
                "Mul" => &one * &other,
                "Div" => &one / &other,
                _ => return None,
            }
        }
        _ => return None,
    };
    (made.shape() == numbers.shape() && made.iter().all(|number| number.is_finite()))
        .then_some(made)
}
