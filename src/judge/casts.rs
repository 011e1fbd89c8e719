//! Compares the casts of two models to narrower types of floats, which round values while a model runs.

use std::collections::HashMap;

use serde::Serialize;

use crate::analysis::Analysis;
use crate::onnx::Model;
use crate::onnx::tensor::DataType;

/// A cast that only one of the models has.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NarrowingCast {
    /// The name of the result of the cast.
    pub name: String,
    /// The name of the type that it narrows to.
    pub to: String,
    /// Whether the first model has the cast.
    pub is_of_first: bool,
}

/// Finds narrowing casts that only one model has. For each source and target type, if one model has n
/// casts more than the other, these are n of its casts.
pub(super) fn unpaired(first: &Model, second: &Model) -> Vec<NarrowingCast> {
    let [of_first, of_second] = [first, second].map(narrowing);
    let mut unpaired = vec![];
    for (own, others, is_of_first) in [
        (&of_first, &of_second, true),
        (&of_second, &of_first, false),
    ] {
        for (types, names) in own {
            let other = others.get(types).map_or(&[][..], Vec::as_slice);
            let surplus = names.len().saturating_sub(other.len());
            // Casts whose names the other model lacks come first.
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

/// The names of the results of narrowing casts, by source and target type. Casts of constants are left out.
fn narrowing(model: &Model) -> HashMap<(DataType, DataType), Vec<String>> {
    let mut casts: HashMap<(DataType, DataType), Vec<String>> = HashMap::new();
    let Ok(analysis) = Analysis::new(model) else {
        return casts;
    };
    let graph = &analysis.graph;
    for &node in graph.order().iter().filter(|&&node| graph.is(node, "Cast")) {
        let types = graph.input(node, 0).zip(graph.output(node, 0));
        let Some((input, output)) =
            types.filter(|&(input, _)| !analysis.constants.is_constant(input))
        else {
            continue;
        };
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

/// Whether the type `to` lacks numbers of the type `from`, both of floats.
fn narrows(from: DataType, to: DataType) -> bool {
    let are_floats = from.is_float() && to.is_float() && from != to;
    are_floats && to.bits() <= from.bits()
}
