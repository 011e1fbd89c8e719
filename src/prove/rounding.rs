//! Checks the first claim: each new tensor equals its recipe, rounded once, and the original has
//! every other tensor.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::Arc;

use ndarray::ArrayView1;
use rayon::prelude::*;

use super::operators::Allowance;
use super::sources::{given, stored_outside, tensors};
use super::{Ended, Proof, blame, formula};
use crate::affine::plan::Stored;
use crate::analysis::Analysis;
use crate::error::Error;
use crate::ir::{Graph, Reader};
use crate::onnx::Model;
use crate::onnx::external_data::Data;
use crate::onnx::proto::TensorProto;
use crate::onnx::tensor::{self, DataType};
use crate::recipe::{DECIDED, Given, Op, Promise, prepare};
use crate::refusal::Refusal;

/// The type and the data of a tensor of floats.
type FloatContent = (DataType, Data);

/// The type of a tensor, the number of its bytes, and the first [`BEGIN`] of them.
type Begin = (DataType, usize, Vec<u8>);

/// The number of bytes that are compared first. Different tensors rarely begin alike.
const BEGIN: usize = 1 << 6;

/// The type and the data of a tensor of floats. `None` for a tensor that does not hold floats,
/// which is not compared here, and for data that do not fit the type and the shape.
///
/// # Errors
/// The undecided verdict, if external data do not exist.
fn content(tensor: &TensorProto, model: &Model) -> Result<Option<FloatContent>, Proof> {
    let Some(data_type) = tensor::float_type(tensor) else {
        return Ok(None);
    };
    match tensor::data(tensor, model.externals()) {
        Ok(data) => Ok(Some((data_type, data))),
        Err(error @ Error::ExternalData { .. }) => Err(unread(tensor.name(), &error)),
        Err(_) => Ok(None),
    }
}

/// The verdict if a tensor cannot be read.
fn unread(name: &str, reason: &dyn Display) -> Proof {
    Proof::Undecided {
        reason: format!("`{name}` cannot be read: {reason}"),
    }
}

/// Checks every floating-point tensor, and returns the number of tensors with recipes, which were
/// computed again.
///
/// # Errors
/// [`Proof::Disproved`] at the first tensor that differs, [`Ended::Uncomputed`] at the first tensor
/// whose recipe cannot be computed, and [`Proof::Undecided`] if the recipes exceed the limits or
/// external data do not exist.
pub(super) fn check(
    (original, analysis): (&Model, &Analysis),
    fused: &Model,
    new: &[Stored],
) -> Result<usize, Ended> {
    // Inlining adds tensors and removes others. So the tensors before inlining and those after it
    // both count as the original's.
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
    after.sort_by_key(|(name, _)| *name);
    let allowance = Allowance::new(original.about_bytes(), 0);
    let mut others = OriginalTensors {
        model: original,
        before: &before,
        named: &named,
        by_begin: None,
    };
    let mut recomputed = vec![];
    for (name, tensor) in &after {
        let name = *name;
        if let Some(recipe) = recipes.get(name) {
            formula::room(&recipe.recipe, &allowance).map_err(|_| Proof::Undecided {
                reason: format!(
                    "the recipe of `{name}` takes more than a model of its size is known to take"
                ),
            })?;
            drops_nothing(&named, analysis, recipe)
                .map_err(|reason| disproved(recipe, reason.to_owned()))?;
            recomputed.push(Recomputed::new(
                (original, analysis),
                fused,
                tensor,
                recipe,
            )?);
        } else if !others.have(name, tensor, fused)? {
            let reason = "the tensor is neither new nor one of the original's".to_owned();
            return Err(Ended::With(Proof::Disproved {
                at: name.to_owned(),
                site: blamed(fused, name, new),
                reason,
            }));
        }
    }
    let count = recomputed.len();
    are_rounded(recomputed)?;
    Ok(count)
}

/// The names of floating-point tensors that `other` stores outside of bodies, and that differ in
/// type or contents from every tensor of `original`.
///
/// # Errors
/// [`Proof::Undecided`] if elements cannot be read.
pub(crate) fn foreign(original: &Model, other: &Model) -> Result<Vec<String>, Proof> {
    let before = tensors(original);
    let named: HashMap<&str, &TensorProto> = before
        .iter()
        .map(|(name, tensor)| (*name, tensor))
        .collect();
    let mut originals = OriginalTensors {
        model: original,
        before: &before,
        named: &named,
        by_begin: None,
    };
    let stored = stored_outside(other).into_par_iter();
    let unequal = stored.filter_map(|(name, tensor)| {
        let content = originals.without_twin(name, &tensor, other).transpose()?;
        Some(content.map(|content| (name, content)))
    });
    let unequal: Vec<(&str, FloatContent)> = unequal.collect::<Result<_, Proof>>()?;
    if unequal.is_empty() {
        return Ok(vec![]);
    }
    let by_begin = originals.by_begin()?;
    let foreign = unequal.into_par_iter().filter_map(|(name, content)| {
        let is_known = is_among(name, &content, by_begin);
        is_known
            .map(|is_known| (!is_known).then(|| name.to_owned()))
            .transpose()
    });
    foreign.collect()
}

fn disproved(stored: &Stored, reason: String) -> Proof {
    Proof::Disproved {
        at: stored.name.clone(),
        site: stored.sites.first().copied(),
        reason,
    }
}

/// Searches the tensors of the original for tensors of the folded model.
struct OriginalTensors<'o> {
    model: &'o Model,
    before: &'o [(&'o str, TensorProto)],
    named: &'o HashMap<&'o str, &'o TensorProto>,
    /// The contents of all tensors by their begin. They are read when a tensor differs from the
    /// original's tensor of the same name.
    by_begin: Option<HashMap<Begin, Vec<FloatContent>>>,
}

impl OriginalTensors<'_> {
    /// Whether any tensor of the original has the same type and contents as this tensor of the
    /// folded model. Also true if the tensor does not hold floats.
    fn have(&mut self, name: &str, tensor: &TensorProto, fused: &Model) -> Result<bool, Proof> {
        match self.without_twin(name, tensor, fused)? {
            Some(content) => is_among(name, &content, self.by_begin()?),
            None => Ok(true),
        }
    }

    /// The content of a tensor of the folded model. `None` if the original's tensor of the same
    /// name has the same type and contents, or if the tensor does not hold floats.
    fn without_twin(
        &self,
        name: &str,
        tensor: &TensorProto,
        fused: &Model,
    ) -> Result<Option<FloatContent>, Proof> {
        let Some((data_type, data)) = content(tensor, fused)? else {
            return Ok(None);
        };
        let twin = match self.named.get(name) {
            Some(twin) => content(twin, self.model)?,
            None => None,
        };
        if let Some((_, twin)) = twin.filter(|(its, _)| *its == data_type)
            && twin.same(&data).map_err(|reason| unread(name, &reason))?
        {
            return Ok(None);
        }
        Ok(Some((data_type, data)))
    }

    /// The contents of all tensors of the original, by their begin.
    fn by_begin(&mut self) -> Result<&HashMap<Begin, Vec<FloatContent>>, Proof> {
        let by_begin = match self.by_begin.take() {
            Some(by_begin) => by_begin,
            None => self.all_by_begin()?,
        };
        Ok(self.by_begin.insert(by_begin))
    }

    fn all_by_begin(&self) -> Result<HashMap<Begin, Vec<FloatContent>>, Proof> {
        let mut by_begin: HashMap<Begin, Vec<FloatContent>> = HashMap::new();
        for (name, tensor) in self.before {
            if let Some(content) = content(tensor, self.model)? {
                by_begin
                    .entry(begin(name, &content)?)
                    .or_default()
                    .push(content);
            }
        }
        Ok(by_begin)
    }
}

/// Whether a tensor has the contents of one of these tensors, which are listed by their begin.
fn is_among(
    name: &str,
    content: &FloatContent,
    by_begin: &HashMap<Begin, Vec<FloatContent>>,
) -> Result<bool, Proof> {
    let same_begin = by_begin.get(&begin(name, content)?);
    for (_, data) in same_begin.into_iter().flatten() {
        if data
            .same(&content.1)
            .map_err(|reason| unread(name, &reason))?
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The begin of a tensor's contents.
fn begin(name: &str, (data_type, data): &FloatContent) -> Result<Begin, Proof> {
    let bytes = data.read(0..data.len().min(BEGIN));
    let bytes = bytes.map_err(|reason| unread(name, &reason))?;
    Ok((*data_type, data.len(), bytes.to_vec()))
}

/// The index of the site nearest to the first reader of a tensor without a recipe. `None` if no
/// node reads the tensor, or if no site is near.
fn blamed(model: &Model, name: &str, tensors: &[Stored]) -> Option<usize> {
    let graph = Graph::new(model).ok()?;
    let readers = graph.readers(graph.value(name)?).iter();
    let reader = readers.filter_map(|reader| match reader {
        Reader::Node { node, .. } => Some(*node),
        _ => None,
    });
    blame::around(&graph, reader.min()?, tensors)
}

/// Checks that a recipe flushes to 0 only numbers up to [`DECIDED`], and rounds intermediate
/// results only to its own type or to the type of one of its constants. The check is needed because
/// any program may have written the recipe, and the proof over the field ignores both operations.
fn drops_nothing(
    before: &HashMap<&str, &TensorProto>,
    analysis: &Analysis,
    stored: &Stored,
) -> Result<(), &'static str> {
    for step in stored.recipe.steps() {
        match step.op() {
            Op::Flush(below) if *below > DECIDED => {
                return Err("its recipe drops numbers that count");
            }
            // Rounding to the type of a constant is allowed, because an earlier step stored its
            // tensor in the type of the tensor that it replaced.
            Op::Round(to) if *to != stored.data_type => {
                let constants = stored.recipe.constants();
                let mut types = constants.iter().map(|name| type_of(name, before, analysis));
                if !types.any(|data_type| data_type == Some(*to)) {
                    return Err("its recipe rounds to a type that nothing in it has");
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// The type of a constant of the original. `None` if it is unknown.
fn type_of(
    name: &str,
    before: &HashMap<&str, &TensorProto>,
    analysis: &Analysis,
) -> Option<DataType> {
    let value = analysis.graph.value(name);
    let computed = value.and_then(|value| analysis.facts.data_type(value));
    computed.or_else(|| DataType::from_code(before.get(name)?.data_type()))
}

/// A new tensor that is computed again.
struct Recomputed<'t> {
    stored: &'t Stored,
    /// The constants in its recipe.
    constants: Vec<(Arc<str>, Given)>,
    /// The elements in the folded model.
    held: Data,
}

impl<'t> Recomputed<'t> {
    fn new(
        (original, analysis): (&Model, &Analysis),
        fused: &Model,
        tensor: &TensorProto,
        stored: &'t Stored,
    ) -> Result<Self, Ended> {
        let shape = stored.recipe.shape().iter().map(|&extent| extent as i64);
        if tensor.data_type() != stored.data_type.code() || !shape.eq(tensor.dims.iter().copied()) {
            let reason = "the tensor has another type or shape than its recipe";
            return Err(disproved(stored, reason.to_owned()).into());
        }
        let mut constants = vec![];
        for name in stored.recipe.constants() {
            let given = given(original, analysis, name);
            constants.push((
                name.clone(),
                given.map_err(|refusal| uncomputed(stored, refusal))?,
            ));
        }
        let held = tensor::data(tensor, fused.externals()).map_err(|error| match error {
            Error::ExternalData { .. } => unread(&stored.name, &error),
            _ => disproved(stored, error.to_string()),
        })?;
        Ok(Self {
            stored,
            constants,
            held,
        })
    }

    /// The promise of the tensor.
    fn promised(self) -> (Promise, &'t Stored, Data) {
        let stored = self.stored;
        let promise = Promise::new(&stored.recipe, stored.data_type, self.constants);
        (promise, stored, self.held)
    }
}

/// Checks that tensors equal their recipes, rounded once. All cores share the work on all tensors.
fn are_rounded(tensors: Vec<Recomputed>) -> Result<(), Ended> {
    let promised: Vec<_> = tensors.into_iter().map(Recomputed::promised).collect();
    let promises: Vec<&Promise> = promised.iter().map(|(promise, ..)| promise).collect();
    prepare(&promises);
    let mut parts: Vec<(usize, usize)> = vec![];
    for (tensor, (promise, ..)) in promised.iter().enumerate() {
        parts.extend((0..promise.parts()).map(|part| (tensor, part)));
    }
    let counts: Vec<_> = parts
        .par_iter()
        .map(|&(tensor, part)| {
            let (promise, _, held) = &promised[tensor];
            differing(promise, part, held)
        })
        .collect();
    let mut wrong = vec![0; promised.len()];
    for (&(tensor, _), count) in parts.iter().zip(counts) {
        let stored = promised[tensor].1;
        let count = count.map_err(|refusal| uncomputed(stored, refusal))?;
        wrong[tensor] += count.map_err(|failed| match failed {
            Incomparable::Unstorable(reason) => disproved(stored, reason),
            Incomparable::Unread(reason) => unread(&stored.name, &reason),
        })?;
    }
    let Some(first) = wrong.iter().position(|&wrong| wrong > 0) else {
        return Ok(());
    };
    let stored = promised[first].1;
    let reason = format!(
        "{} of its {} elements are not what its recipe gives, rounded once",
        wrong[first],
        stored.recipe.len()
    );
    Err(disproved(stored, reason).into())
}

fn uncomputed(stored: &Stored, Refusal { at, reason }: Refusal) -> Ended {
    Ended::Uncomputed(format!(
        "the recipe of `{}` cannot be computed: `{at}`: {reason}",
        stored.name
    ))
}

/// The reason why a part of a large tensor was not compared.
enum Incomparable {
    /// The result of the recipe cannot be represented in its type.
    Unstorable(String),
    /// The stored elements cannot be read.
    Unread(String),
}

/// The number of elements of a part of a recipe's result that differ from the stored elements. The
/// inner error is the reason why the part cannot be compared, and the outer error is the reason why
/// the recipe cannot be computed.
fn differing(
    promise: &Promise,
    part: usize,
    held: &Data,
) -> Result<Result<usize, Incomparable>, Refusal> {
    let (mut at, mut wrong) = (promise.begin(part), Ok(0));
    promise.each(part, &mut |numbers| {
        if let Ok(count) = &mut wrong {
            match unequal(promise.data_type(), numbers, held, at) {
                Ok(more) => *count += more,
                Err(reason) => wrong = Err(reason),
            }
        }
        at += numbers.len();
        Ok(())
    })?;
    Ok(wrong)
}

/// The number of elements in `numbers` that differ, after rounding, from the stored elements that
/// begin at index `at`.
fn unequal(
    data_type: DataType,
    numbers: &[f64],
    held: &Data,
    at: usize,
) -> Result<usize, Incomparable> {
    let width = data_type.byte_size(1).unwrap_or(1);
    let bytes = tensor::encode_f64(data_type, &ArrayView1::from(numbers).into_dyn());
    let bytes = bytes.map_err(|error| Incomparable::Unstorable(error.to_string()))?;
    let held = held
        .read(at * width..(at + numbers.len()) * width)
        .map_err(Incomparable::Unread)?;
    if bytes == held {
        return Ok(0);
    }
    let pairs = bytes.chunks(width).zip(held.chunks(width));
    Ok(pairs.filter(|(one, other)| one != other).count())
}
