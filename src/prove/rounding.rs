//! The first claim: a new tensor is what its recipe gives, rounded once, and every other one is the original's.

use std::collections::{HashMap, HashSet};
use std::fmt::Display;

use ndarray::ArrayView1;
use rayon::prelude::*;

use super::operators::Allowance;
use super::sources::{given, tensors};
use super::{Ended, Proof, blame, formula};
use crate::affine::plan::Stored;
use crate::analysis::Analysis;
use crate::error::Error;
use crate::ir::{Graph, Reader};
use crate::onnx::Model;
use crate::onnx::digest::sha256;
use crate::onnx::external::Data;
use crate::onnx::proto::TensorProto;
use crate::onnx::tensor::{self, DataType};
use crate::recipe::{DECIDED, Op, Promise};
use crate::refusal::Refusal;

/// The contents to compare of a tensor of the original; `None` for exact types, and for elements
/// that do not fit their type and shape.
///
/// # Errors
/// Where elements that are outside of the model are not there: nothing follows from that.
fn content(tensor: &TensorProto, model: &Model) -> Result<Option<(DataType, Data)>, Proof> {
    let Some(data_type) = tensor::float_type(tensor) else {
        return Ok(None);
    };
    match tensor::data(tensor, model.externals()) {
        Ok(data) => Ok(Some((data_type, data))),
        Err(error @ Error::ExternalData { .. }) => Err(unread(tensor.name(), &error)),
        Err(_) => Ok(None),
    }
}

/// The verdict for a tensor that cannot be read.
fn unread(name: &str, reason: &dyn Display) -> Proof {
    Proof::Undecided {
        reason: format!("`{name}` cannot be read: {reason}"),
    }
}

/// Checks every tensor of floats, and counts those that were computed again.
///
/// # Errors
/// [`Proof::Disproved`] at the first one that is something else, [`Ended::Uncomputed`] at the first whose recipe cannot be
/// computed.
pub fn check(
    (original, analysis): (&Model, &Analysis),
    fused: &Model,
    new: &[Stored],
) -> Result<usize, Ended> {
    // Inlining adds tensors, and removes those that only it read.
    let mut before = tensors(analysis.graph.model());
    before.extend(tensors(original));
    let named: HashMap<&str, &TensorProto> = before
        .iter()
        .map(|(name, tensor)| (*name, tensor))
        .collect();
    let mut after = tensors(fused);
    let recipes: HashMap<&str, &Stored> = new
        .iter()
        .map(|stored| (stored.name.as_str(), stored))
        .collect();
    let mut others: Option<HashSet<(DataType, String)>> = None;
    after.sort_by_key(|(name, _)| *name);
    let allowance = Allowance::new(original.about_bytes(), 0);
    let mut recomputed = 0;
    for (name, tensor) in &after {
        let name = *name;
        if let Some(recipe) = recipes.get(name) {
            formula::room(&recipe.recipe, &allowance).map_err(|_| Proof::Undecided {
                reason: format!(
                    "the recipe of `{name}` takes more than a model of its size is known to take"
                ),
            })?;
            drops_nothing(&named, analysis, recipe).map_err(|reason| Proof::Disproved {
                at: name.to_owned(),
                site: recipe.sites.first().copied(),
                reason: reason.to_owned(),
            })?;
            is_rounded((original, analysis), fused, tensor, recipe)?;
            recomputed += 1;
            continue;
        }
        let Some((data_type, data)) = content(tensor, fused)? else {
            continue;
        };
        let twin = named
            .get(name)
            .map_or(Ok(None), |twin| content(twin, original))?;
        if let Some((_, twin)) = twin.filter(|(its, _)| *its == data_type)
            && twin.same(&data).map_err(|reason| unread(name, &reason))?
        {
            continue;
        }
        let own = (
            data_type,
            sha256(&data).map_err(|reason| unread(name, &reason))?,
        );
        let others = match &mut others {
            Some(others) => others,
            none => none.insert(marked(&before, original)?),
        };
        if !others.contains(&own) {
            let reason = "the tensor is neither new nor one of the original's".to_owned();
            let site = blamed(fused, name, new);
            return Err(Proof::Disproved {
                at: name.to_owned(),
                site,
                reason,
            }
            .into());
        }
    }
    Ok(recomputed)
}

/// The types of tensors, and the digests of their contents.
fn marked(
    tensors: &[(&str, TensorProto)],
    model: &Model,
) -> Result<HashSet<(DataType, String)>, Proof> {
    let mut marks = HashSet::new();
    for (name, tensor) in tensors {
        if let Some((data_type, data)) = content(tensor, model)? {
            marks.insert((
                data_type,
                sha256(&data).map_err(|reason| unread(name, &reason))?,
            ));
        }
    }
    Ok(marks)
}

/// The site near a tensor without a recipe.
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
    analysis: &Analysis,
    stored: &Stored,
) -> Result<(), &'static str> {
    let of = |name: &str| {
        let computed = analysis
            .graph
            .value(name)
            .and_then(|value| analysis.facts.data_type(value));
        computed.or_else(|| DataType::from_code(before.get(name)?.data_type()))
    };
    for step in stored.recipe.steps() {
        match step.op() {
            Op::Flush(below) if *below > DECIDED => {
                return Err("its recipe drops numbers that count");
            }
            // A tensor that was stored on the way has the type of one that it took the place of.
            Op::Round(to)
                if *to != stored.data_type
                    && !stored
                        .recipe
                        .constants()
                        .into_iter()
                        .any(|name| of(name) == Some(*to)) =>
            {
                return Err("its recipe rounds to a type that nothing in it has");
            }
            _ => {}
        }
    }
    Ok(())
}

fn is_rounded(
    (original, analysis): (&Model, &Analysis),
    fused: &Model,
    tensor: &TensorProto,
    stored: &Stored,
) -> Result<(), Ended> {
    let disproved = |reason: String| Proof::Disproved {
        at: stored.name.clone(),
        site: stored.sites.first().copied(),
        reason,
    };
    let shape = stored.recipe.shape().iter().map(|&extent| extent as i64);
    if tensor.data_type() != stored.data_type.code() || !shape.eq(tensor.dims.iter().copied()) {
        return Err(
            disproved("the tensor has another type or shape than its recipe".to_owned()).into(),
        );
    }
    let uncomputed = |Refusal { at, reason }| {
        Ended::Uncomputed(format!(
            "the recipe of `{}` cannot be computed: `{at}`: {reason}",
            stored.name
        ))
    };
    let constants = stored.recipe.constants().into_iter();
    let given = constants.map(|name| Ok((name.clone(), given(original, analysis, name)?)));
    let promise = Promise::new(
        stored.recipe.clone(),
        stored.data_type,
        given.collect::<Result<Vec<_>, _>>().map_err(uncomputed)?,
    );
    let held = tensor::data(tensor, fused.externals()).map_err(|error| match error {
        Error::ExternalData { .. } => unread(&stored.name, &error),
        _ => disproved(error.to_string()),
    })?;
    let parts: Vec<_> = (0..promise.parts())
        .into_par_iter()
        .map(|part| differing(&promise, part, &held))
        .collect();
    let mut wrong = 0;
    for part in parts {
        wrong += part.map_err(uncomputed)?.map_err(|failed| match failed {
            Incomparable::Unstorable(reason) => disproved(reason),
            Incomparable::Unread(reason) => unread(&stored.name, &reason),
        })?;
    }
    match wrong {
        0 => Ok(()),
        _ => Err(disproved(format!(
            "{wrong} of its {} elements are not what its recipe gives, rounded once",
            stored.recipe.len()
        ))
        .into()),
    }
}

/// Why a part was not compared.
enum Incomparable {
    /// The result of the recipe is no number of its type.
    Unstorable(String),
    /// The stored elements cannot be read.
    Unread(String),
}

/// How many elements of a part are others than those that are held, or why the part cannot be stored or read.
fn differing(
    promise: &Promise,
    part: usize,
    held: &Data,
) -> Result<Result<usize, Incomparable>, Refusal> {
    let width = promise.data_type().byte_size(1).unwrap_or(1);
    let compare = |numbers: &[f64], at: usize| -> Result<usize, Incomparable> {
        let bytes = tensor::encode_f64(promise.data_type(), &ArrayView1::from(numbers).into_dyn());
        let bytes = bytes.map_err(|error| Incomparable::Unstorable(error.to_string()))?;
        let held = held
            .read(at * width..(at + numbers.len()) * width)
            .map_err(Incomparable::Unread)?;
        let pairs = bytes.chunks(width).zip(held.chunks(width));
        Ok(if bytes == held {
            0
        } else {
            pairs.filter(|(one, other)| one != other).count()
        })
    };
    let (mut at, mut wrong) = (promise.begin(part), Ok(0));
    promise.each(part, &mut |numbers| {
        if let Ok(count) = &mut wrong {
            match compare(numbers, at) {
                Ok(more) => *count += more,
                Err(reason) => wrong = Err(reason),
            }
        }
        at += numbers.len();
        Ok(())
    })?;
    Ok(wrong)
}
