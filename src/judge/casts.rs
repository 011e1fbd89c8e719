//! Compares the casts of floats to narrower types in two models. Such casts round values while a
//! model runs.

use std::collections::{HashMap, HashSet};

use serde::Serialize;

use crate::analysis::Analysis;
use crate::ir::{Reader, ValueId};
use crate::onnx::Model;
use crate::onnx::tensor::DataType;

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

/// Finds narrowing casts that only one model has. Casts are paired by source and target type. If
/// one model has n more casts between two types than the other, n of these casts are returned.
/// Casts of constants from which only the values `in_formulas` are computed are left out, because
/// the error bounds of the formulas include the rounding of these casts.
pub(super) fn unpaired(models: [&Model; 2], in_formulas: &HashSet<&str>) -> Vec<NarrowingCast> {
    let [of_first, of_second] = models.map(|model| narrowing(model, in_formulas));
    let mut unpaired = vec![];
    for (own, others, is_of_first) in [
        (&of_first, &of_second, true),
        (&of_second, &of_first, false),
    ] {
        for (types, names) in own {
            let other = others.get(types).map_or(&[][..], Vec::as_slice);
            let surplus = names.len().saturating_sub(other.len());
            // Casts whose names the other model lacks are returned before others.
            let (mut rest, shared): (Vec<&String>, Vec<&String>) =
                names.iter().partition(|name| !other.contains(name));
            rest.extend(shared);
            unpaired.extend(rest.into_iter().take(surplus).map(|name| NarrowingCast {
                name: name.clone(),
                to: types.1.to_string(),
                is_of_first,
            }));
        }
    }
    unpaired.sort_by(|a, b| (b.is_of_first, &a.name).cmp(&(a.is_of_first, &b.name)));
    unpaired
}

/// The names of the results of narrowing casts, by source and target type. Leaves out casts of
/// constants that change no element, and casts of constants from which only the values
/// `in_formulas` are computed.
fn narrowing(
    model: &Model,
    in_formulas: &HashSet<&str>,
) -> HashMap<(DataType, DataType), Vec<String>> {
    let mut casts: HashMap<(DataType, DataType), Vec<String>> = HashMap::new();
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
        if let [Some(from), Some(to)] = types
            && narrows(from, to)
        {
            let name = graph.value_name(output).to_owned();
            casts.entry((from, to)).or_default().push(name);
        }
    }
    casts
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
