//! The first claim: a new tensor is what its recipe gives, rounded once, and every other one is the original's.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;

use super::operators::Allowance;
use super::sources::{read, tensors};
use super::{Proof, blame, formula};
use crate::fold::plan::Stored;
use crate::graph::analysis::Analysis;
use crate::graph::{Graph, Reader};
use crate::onnx::Model;
use crate::onnx::proto::TensorProto;
use crate::onnx::tensor::{self, DataType};
use crate::recipe::{DECIDED, Op, evaluate};

/// What is compared of a tensor that is one of the original's; `None` of those that are exact.
fn content(tensor: &TensorProto, model: &Model) -> Option<(DataType, Bytes)> {
    let data_type = DataType::from_code(tensor.data_type()).filter(|data_type| data_type.is_float())?;
    Some((data_type, tensor::raw(tensor, model.externals()).ok()?))
}

/// Checks every tensor of floats, and counts those that were computed again.
///
/// # Errors
/// [`Proof::Disproved`] at the first one that is something else.
pub fn check((original, known): (&Model, &Analysis), fused: &Model, new: &[Stored]) -> Result<usize, Proof> {
    // What was written out has tensors of its own, and lacks those that only it read.
    let mut before = tensors(known.graph.model());
    before.extend(tensors(original));
    let named: HashMap<&str, &TensorProto> = before.iter().map(|(name, tensor)| (*name, tensor)).collect();
    let mut after = tensors(fused);
    let recipes: HashMap<&str, &Stored> = new.iter().map(|stored| (stored.name.as_str(), stored)).collect();
    let mut others: Option<HashSet<(DataType, Bytes)>> = None;
    after.sort_by_key(|(name, _)| *name);
    let allowance = Allowance::new(original.file_bytes(), 0);
    let mut recomputed = 0;
    for (name, tensor) in &after {
        let name = *name;
        if let Some(recipe) = recipes.get(name) {
            formula::room(&recipe.recipe, &allowance).map_err(|_| Proof::Undecided {
                reason: format!(
                    "the recipe of `{name}` takes more than a model of its size is known to take"
                ),
            })?;
            drops_nothing(&named, known, recipe).map_err(|reason| Proof::Disproved {
                at: name.to_owned(),
                site: recipe.sites.first().copied(),
                reason: reason.to_owned(),
            })?;
            is_rounded((original, known), fused, tensor, recipe)?;
            recomputed += 1;
            continue;
        }
        let Some(own) = content(tensor, fused) else { continue };
        let same = named.get(name).and_then(|twin| content(twin, original)).is_some_and(|twin| twin == own);
        let all = || before.iter().filter_map(|(_, other)| content(other, original)).collect();
        if !same && !others.get_or_insert_with(all).contains(&own) {
            let reason = "the tensor is neither new nor one of the original's".to_owned();
            let site = blamed(fused, name, new);
            return Err(Proof::Disproved { at: name.to_owned(), site, reason });
        }
    }
    Ok(recomputed)
}

/// The site near a tensor that nobody has a recipe for.
fn blamed(model: &Model, name: &str, tensors: &[Stored]) -> Option<usize> {
    let graph = Graph::new(model).ok()?;
    let readers = graph.readers(graph.value(name)?).iter();
    let reader = readers.filter_map(|reader| match reader {
        Reader::Node { node, .. } => Some(*node),
        _ => None,
    });
    blame::around(&graph, reader.min()?, tensors)
}

/// Whether a recipe drops nothing but what may be: anybody can have written it, and in the field it drops nothing.
fn drops_nothing(
    before: &HashMap<&str, &TensorProto>,
    known: &Analysis,
    stored: &Stored,
) -> Result<(), &'static str> {
    let of = |name: &str| {
        let computed = known.graph.value(name).and_then(|value| known.facts.data_type(value));
        computed.or_else(|| DataType::from_code(before.get(name)?.data_type()))
    };
    for step in stored.recipe.steps() {
        match step.op() {
            Op::Flush(below) if *below > DECIDED => return Err("its recipe drops numbers that count"),
            // A tensor that was stored on the way has the type of one that it took the place of.
            Op::Round(to)
                if *to != stored.data_type
                    && !stored.recipe.constants().into_iter().any(|name| of(name) == Some(*to)) =>
            {
                return Err("its recipe rounds to a type that nothing in it has");
            }
            _ => {}
        }
    }
    Ok(())
}

fn is_rounded(
    (original, known): (&Model, &Analysis),
    fused: &Model,
    tensor: &TensorProto,
    stored: &Stored,
) -> Result<(), Proof> {
    let disproved = |reason: String| Proof::Disproved {
        at: stored.name.clone(),
        site: stored.sites.first().copied(),
        reason,
    };
    let shape = stored.recipe.shape().iter().map(|&extent| extent as i64);
    if tensor.data_type() != stored.data_type.code() || !shape.eq(tensor.dims.iter().copied()) {
        return Err(disproved("the tensor has another type or shape than its recipe".to_owned()));
    }
    let numbers = evaluate(&stored.recipe, &|name| read(original, known, name)).map_err(|refusal| {
        Proof::Undecided {
            reason: format!(
                "the recipe of `{}` cannot be computed: `{}`: {}",
                stored.name, refusal.at, refusal.reason
            ),
        }
    })?;
    let held = tensor::raw(tensor, fused.externals()).map_err(|error| disproved(error.to_string()))?;
    let bytes = tensor::encode_f64(stored.data_type, &numbers.view());
    let bytes = bytes.map_err(|error| disproved(error.to_string()))?;
    let width = stored.data_type.byte_size(1).unwrap_or(1);
    let wrong = |bytes: &Bytes, held: &Bytes| {
        bytes.chunks(width).zip(held.chunks(width)).filter(|(one, other)| one != other).count()
    };
    match bytes == held {
        true => Ok(()),
        false => Err(disproved(format!(
            "{} of its {} elements are not what its recipe gives, rounded once",
            wrong(&bytes, &held),
            numbers.len()
        ))),
    }
}
