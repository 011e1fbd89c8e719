//! Compares the casts of floats to narrower types in two models. Such casts round values while a
//! model runs.

use std::collections::{HashMap, HashSet};

use serde::Serialize;

use crate::analysis::Analysis;
use crate::ir::{Graph, Reader, ValueId};
use crate::onnx::Model;
use crate::onnx::tensor::DataType;
use crate::prove::{Digest, ValueDigests};

/// A cast that only one of the models has.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NarrowingCast {
    /// The name of the result of the cast.
    pub name: String,
    /// The name of the type to which it casts.
    pub to: String,
    /// Whether the first model has the cast.
    pub is_of_first: bool,
}

/// The narrowing casts of a model that round the same value to the same type.
type CastsByValue = HashMap<RoundedValue, Vec<String>>;

/// A value that a cast rounds: its digest at the proof's point, and the types before and after the
/// cast. The digest of casts of unknown values is `None`.
type RoundedValue = (Option<Digest>, DataType, DataType);

/// Finds narrowing casts that only one model has. Casts are paired if they round equal values to the
/// same type. `values` are the digests of the values of both models. Casts of constants from which only the values `in_formulas` are computed
/// are left out, because the error bounds of the formulas include the rounding of these casts.
pub(super) fn unpaired(
    models: [&Model; 2],
    values: &ValueDigests,
    in_formulas: &HashSet<&str>,
) -> Vec<NarrowingCast> {
    let [of_first, of_second] = [0, 1].map(|side| {
        let digests = &values.0[side];
        narrowing(models[side], digests, in_formulas)
    });
    let mut unpaired = missing(&of_first, &of_second, true);
    unpaired.extend(missing(&of_second, &of_first, false));
    unpaired.sort_by(|a, b| (b.is_of_first, &a.name).cmp(&(a.is_of_first, &b.name)));
    unpaired
}

/// The casts of one model that the other model lacks. If one model rounds a value n times more than
/// the other, n of its casts are missing.
fn missing(own: &CastsByValue, others: &CastsByValue, is_of_first: bool) -> Vec<NarrowingCast> {
    let mut missing = vec![];
    for (rounded, names) in own {
        let (_, _, to) = rounded;
        let paired = others.get(rounded).map_or(0, Vec::len);
        missing.extend(names.iter().skip(paired).map(|name| NarrowingCast {
            name: name.clone(),
            to: to.to_string(),
            is_of_first,
        }));
    }
    missing
}

/// The names of the results of narrowing casts. Leaves out casts that change no element, and casts
/// of constants from which only the values `in_formulas` are computed.
fn narrowing(
    model: &Model,
    digests: &HashMap<String, Digest>,
    in_formulas: &HashSet<&str>,
) -> CastsByValue {
    let mut casts = CastsByValue::new();
    let Ok(analysis) = Analysis::new(model) else {
        return casts;
    };
    let graph = &analysis.graph;
    for &node in graph.order().iter().filter(|&&node| graph.is(node, "Cast")) {
        let types = graph.input(node, 0).zip(graph.output(node, 0));
        let Some((input, output)) = types else {
            continue;
        };
        if analysis.constants.is_constant(input)
            && (keeps(&analysis, input, output) || is_inside(&analysis, output, in_formulas))
        {
            continue;
        }
        let types = [input, output].map(|value| analysis.facts.data_type(value));
        let [Some(from), Some(to)] = types else {
            continue;
        };
        let rearranged = before_rearrangement(graph, input);
        if narrows(from, to) && !is_widened(&analysis, rearranged, to) {
            let digest = |value| digests.get(graph.value_name(value)).copied();
            let digest = digest(rearranged).or_else(|| digest(output));
            let name = graph.value_name(output).to_owned();
            casts.entry((digest, from, to)).or_default().push(name);
        }
    }
    casts
}

/// The value that operators only rearrange to compute a value. A cast before these operators rounds
/// the same elements as one behind them.
fn before_rearrangement(graph: &Graph, mut value: ValueId) -> ValueId {
    while let Some(before) = rearranged(graph, value) {
        value = before;
    }
    value
}

/// The value whose elements an operator only rearranges to compute a value. `None` for results of
/// other operators.
fn rearranged(graph: &Graph, value: ValueId) -> Option<ValueId> {
    let (node, _) = graph.producer(value)?;
    let rearranges = matches!(
        graph.domain_op(node),
        (
            "",
            "Flatten" | "Identity" | "Reshape" | "Squeeze" | "Transpose" | "Unsqueeze"
        )
    );
    graph.input(node, 0).filter(|_| rearranges)
}

/// Whether a cast of a type whose numbers `to` has computes a value, so that a cast to `to` changes
/// no element.
fn is_widened(analysis: &Analysis, value: ValueId, to: DataType) -> bool {
    let graph = &analysis.graph;
    let cast = graph
        .producer(value)
        .filter(|&(node, _)| graph.is(node, "Cast"));
    let before = cast.and_then(|(node, _)| graph.input(node, 0));
    let before = before.and_then(|before| analysis.facts.data_type(before));
    before.is_some_and(|before| {
        before == to || before.is_float() && to.is_float() && !narrows(before, to)
    })
}

/// Whether a cast of a constant keeps each element.
fn keeps(analysis: &Analysis, input: ValueId, output: ValueId) -> bool {
    let [before, after] = [input, output].map(|value| analysis.constants.read(value));
    matches!((before, after), (Ok(before), Ok(after)) if before == after)
}

/// Whether a constant has one of the given names, or is read only to compute values with these
/// names.
fn is_inside(analysis: &Analysis, constant: ValueId, names: &HashSet<&str>) -> bool {
    let Analysis {
        graph, constants, ..
    } = analysis;
    if names.contains(graph.value_name(constant)) {
        return true;
    }
    let readers = graph.readers(constant);
    let are_inside = readers.iter().all(|reader| match reader {
        Reader::Node { node, .. } => {
            let mut results = graph.outputs(*node).iter().flatten();
            results.all(|&made| constants.is_constant(made) && is_inside(analysis, made, names))
        }
        _ => false,
    });
    are_inside && !readers.is_empty()
}

/// Whether the float type `to` lacks some numbers of the float type `from`.
fn narrows(from: DataType, to: DataType) -> bool {
    let are_floats = from.is_float() && to.is_float() && from != to;
    are_floats && to.bits() <= from.bits()
}
