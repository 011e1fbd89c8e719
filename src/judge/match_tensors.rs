//! Finds formulas over the tensors of the first model for tensors that only the second one stores.

use std::collections::HashSet;
use std::sync::Arc;

use ndarray::ArrayD;
use rayon::prelude::*;
use serde::Serialize;

use super::candidates::{
    CandidateKey, FormulaCandidate, FormulaCandidates, as_folded_biases, as_folded_weights,
    of_folding, of_graph, of_rounded, of_scalars, of_stored,
};
use super::constants::{ComputedConstants, GivenConstants};
use super::deviation::LargestDeviation;
use super::elements::{MissingElements, ShortTensors, sample};
use super::formula_parts::FormulaParts;
use super::formulas::value;
use super::neighbour_folds::of_neighbours;
use super::rounded::{ErrorBound, PART};
use crate::affine::plan::Stored;
use crate::analysis::Analysis;
use crate::onnx::Model;
use crate::onnx::tensor::{self, DataType, Floats};
use crate::prove::stored_outside;
use crate::recipe::{Given, Recipe};

/// A tensor of one model whose elements equal those of a formula over the other model, up to
/// rounding.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RoundedTensor {
    /// The name of the tensor.
    pub name: String,
    /// The formula, over the values of the other model.
    pub formula: String,
    /// The largest difference between an element of the tensor and of the formula, in units in the
    /// last place of the element.
    pub units: f64,
    /// The largest difference that the rounding of the formula's operations explains, in the same
    /// units.
    pub allowed: f64,
    /// Whether the first model has the tensor.
    pub is_of_first: bool,
}

/// A tensor with a formula whose result equals its elements up to rounding.
#[derive(Debug)]
pub(super) struct Matched {
    /// The tensor and its formula.
    pub stored: Stored,
    /// Whether the evaluation of the formula does not round.
    is_exact: bool,
    units: f64,
    allowed: f64,
}

impl Matched {
    /// The names of the tensor and of the constants in its formula.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        let constants = self.stored.recipe.constants().into_iter();
        let constants = constants.map(|name| &**name);
        constants.chain([self.stored.name.as_str()])
    }

    /// The entry for the verdict. `None` if the evaluation of the formula does not round.
    pub(super) fn rounded(&self, is_of_first: bool) -> Option<RoundedTensor> {
        (!self.is_exact).then(|| RoundedTensor {
            name: self.stored.name.clone(),
            formula: self.stored.recipe.to_string(),
            units: self.units,
            allowed: self.allowed,
            is_of_first,
        })
    }
}

/// A tensor of the second model that may need a formula.
#[derive(Clone)]
pub(super) struct Foreign {
    pub name: String,
    pub data_type: DataType,
    shape: Vec<usize>,
    /// The elements. Stored elements are read at each use, because those of all tensors together
    /// may not fit into memory.
    elements: Given,
    /// The first and the last element.
    ends: [f64; 2],
    /// The elements that [`MissingElements`] looks up.
    sample: Vec<f64>,
    /// Whether all elements are short numbers, like ¼ and 8.
    is_short: bool,
    /// The bound on the error of the elements: exact for a stored tensor, and otherwise the error
    /// of the second model's computation.
    pub error: ErrorBound,
}

/// The maximum number of binary digits after the first nonzero digit of a short number.
const DIGITS: u32 = 11;

/// Finds formulas for the named tensors of the second model.
///
/// The candidates are the constants that the first model computes, combinations of its scalars, its
/// weights with neighbouring operators folded into them, its stored tensors, and the tensors that
/// folding it creates. If the first model stores all elements of a tensor, perhaps at other places,
/// the tensor is matched only with constants and scalars, because its elements already have the
/// right images in the field.
pub(super) fn matched(first: &Model, second: &Model, names: &[String]) -> Vec<Matched> {
    let mut open = foreign_tensors(second, names);
    let Ok(analysis) = Analysis::new(first) else {
        return vec![];
    };
    let constants = ComputedConstants::new(&analysis);
    let mut found = take_matched(&mut open, &of_graph(&constants), &constants);
    // Short tensors are not matched with combinations of scalars, because rounded results are
    // rarely short.
    let (mut short, mut long): (Vec<Foreign>, Vec<Foreign>) =
        open.into_iter().partition(|foreign| foreign.is_short);
    found.extend(take_matched(&mut long, &of_scalars(&constants), &constants));
    short.append(&mut long);
    open = short;
    let keys: Vec<CandidateKey> = open.iter().map(Foreign::key).collect();
    let rounded = of_rounded(first, &keys, &constants);
    found.extend(take_matched(&mut open, &rounded, &constants));
    drop_stored(&mut open, first);
    let keys: Vec<CandidateKey> = open.iter().map(Foreign::key).collect();
    let candidates = of_neighbours(&analysis, &keys, &constants);
    found.extend(take_matched(&mut open, &candidates, &constants));
    found.extend(take_folded_in_both(&mut open, [first, second], &constants));
    if !open.is_empty() {
        let candidates = of_folding(first, &constants);
        found.extend(take_matched(&mut open, &candidates, &constants));
    }
    found
}

/// Removes from `open` the tensors of which the first model stores all elements, unless a few
/// elements are stored only by chance.
fn drop_stored(open: &mut Vec<Foreign>, first: &Model) {
    let missing = MissingElements::new(first, open.iter().flat_map(|foreign| &foreign.sample));
    let keys = open.iter().map(Foreign::key).collect();
    let short = ShortTensors::new(first, &keys);
    open.retain(|foreign| {
        !missing.has_none_of(&foreign.sample) || short.has_most_of(foreign.key(), &foreign.sample)
    });
}

/// Removes the tensors that match a candidate from `open`, and returns the matches.
pub(super) fn take_matched(
    open: &mut Vec<Foreign>,
    candidates: &FormulaCandidates,
    constants: &ComputedConstants,
) -> Vec<Matched> {
    let likely: Vec<Vec<&FormulaCandidate>> = open
        .iter()
        .map(|foreign| foreign.likely(candidates))
        .collect();
    let recipes = likely.iter().flatten().map(|candidate| &candidate.recipe);
    let given = constants.given(recipes);
    let matched: Vec<Option<Matched>> = (&*open, likely)
        .into_par_iter()
        .map(|(foreign, likely)| {
            let mut likely = likely.into_iter();
            likely.find_map(|candidate| foreign.matched(candidate, &given))
        })
        .collect();
    let mut is_matched = matched.iter().map(Option::is_some);
    open.retain(|_| !is_matched.next().unwrap_or_default());
    matched.into_iter().flatten().collect()
}

/// Removes from `open` the tensors that equal a stored tensor of the first model up to the rounding
/// of an earlier fold, of which neither model holds the operands, and returns the matches. Such a
/// fold changes the weight and the bias of a layer. A bias is therefore matched only if its layer
/// has a matched weight.
fn take_folded_in_both(
    open: &mut Vec<Foreign>,
    [first, second]: [&Model; 2],
    constants: &ComputedConstants,
) -> Vec<Matched> {
    // A tensor with the same name and type in both models was not folded, so no fold explains a
    // difference.
    let stored = stored_outside(first);
    let stored: HashSet<_> = stored
        .iter()
        .map(|(name, tensor)| (*name, tensor::data_type(tensor).ok()))
        .collect();
    let (copies, mut folds): (Vec<Foreign>, Vec<Foreign>) = std::mem::take(open)
        .into_iter()
        .partition(|foreign| stored.contains(&(foreign.name.as_str(), Some(foreign.data_type))));
    let keys: Vec<CandidateKey> = folds.iter().map(Foreign::key).collect();
    let mut candidates = of_stored(first, &keys, constants);
    for (key, rounded) in of_rounded(first, &keys, constants) {
        candidates.entry(key).or_default().extend(rounded);
    }
    as_folded_weights(&mut candidates);
    let mut found = take_matched(&mut folds, &candidates, constants);
    let beside = read_beside(second, &found);
    let (mut biases, others): (Vec<Foreign>, Vec<Foreign>) = folds
        .into_iter()
        .partition(|foreign| beside.contains(foreign.name.as_str()));
    let keys: HashSet<CandidateKey> = biases.iter().map(Foreign::key).collect();
    candidates.retain(|key, _| keys.contains(key));
    as_folded_biases(&mut candidates, constants);
    found.extend(take_matched(&mut biases, &candidates, constants));
    *open = copies.into_iter().chain(others).chain(biases).collect();
    found
}

/// The names of all inputs of the nodes that read one of these tensors.
fn read_beside<'m>(model: &'m Model, tensors: &[Matched]) -> HashSet<&'m str> {
    let names: HashSet<&String> = tensors.iter().map(|found| &found.stored.name).collect();
    let nodes = model.graph().node.iter();
    let readers = nodes.filter(|node| node.input.iter().any(|name| names.contains(name)));
    let read = readers.flat_map(|node| &node.input);
    read.map(String::as_str).collect()
}

/// The named tensors of floats of a model, except those that [`Foreign::new`] refuses.
fn foreign_tensors(model: &Model, names: &[String]) -> Vec<Foreign> {
    let names: HashSet<&str> = names.iter().map(String::as_str).collect();
    let stored = stored_outside(model).into_par_iter();
    let named = stored.filter(|(name, _)| names.contains(name));
    let externals = model.externals();
    let foreign = named.filter_map(|(name, tensor)| {
        let floats = Floats::new(&tensor, externals).ok()?;
        let data_type = tensor::data_type(&tensor).ok()?;
        let elements = Given::Stored(Arc::new(floats));
        Foreign::new(name, data_type, elements, ErrorBound::EXACT)
    });
    foreign.collect()
}

impl Foreign {
    /// A tensor with these elements. `None` if it is empty, if an element is not finite, or if the
    /// elements cannot be read.
    pub(super) fn new(
        name: &str,
        data_type: DataType,
        elements: Given,
        error: ErrorBound,
    ) -> Option<Self> {
        let values = elements.all(name).ok()?;
        let numbers = values.as_slice()?;
        let ends = [*numbers.first()?, *numbers.last()?];
        let is_finite = numbers.iter().all(|number| number.is_finite());
        is_finite.then(|| Self {
            name: name.to_owned(),
            data_type,
            shape: values.shape().to_vec(),
            elements,
            ends,
            sample: sample(numbers),
            is_short: numbers.iter().all(|&number| is_short(number)),
            error,
        })
    }

    /// Reads all elements. `None` if they cannot be read.
    pub(super) fn values(&self) -> Option<ArrayD<f64>> {
        self.elements.all(&self.name).ok()
    }

    pub(super) fn key(&self) -> CandidateKey {
        (self.data_type, self.shape.iter().product())
    }

    /// The candidates that have the tensor's type and size, and about its first and last element.
    fn likely<'c>(&self, candidates: &'c FormulaCandidates) -> Vec<&'c FormulaCandidate> {
        let candidates = candidates.get(&self.key()).into_iter().flatten();
        candidates
            .filter(|candidate| candidate.may_be(self.data_type, self.ends, self.error))
            .collect()
    }

    /// Matches the tensor with a candidate that is reshaped to the tensor's shape, or first
    /// transposed as a matrix.
    fn matched(&self, candidate: &FormulaCandidate, given: &GivenConstants) -> Option<Matched> {
        let recipe = candidate.recipe.reshape(&self.shape)?;
        self.agreeing(recipe, candidate, given).or_else(|| {
            let recipe = exchanged(&candidate.recipe, &self.shape)?;
            self.agreeing(recipe, candidate, given)
        })
    }

    /// Matches the tensor with the recipe of a candidate in the same shape. `None` if rounding does
    /// not explain the difference of some element.
    fn agreeing(
        &self,
        recipe: Recipe,
        candidate: &FormulaCandidate,
        given: &GivenConstants,
    ) -> Option<Matched> {
        let largest = match FormulaParts::new(&recipe) {
            Some(parts) => self.deviation_in(&parts, candidate, given)?,
            None => self.deviation(&self.values()?, &recipe, candidate, given)?,
        };
        if candidate.is_fold_of_rounded() && !largest.may_be_of_a_fold(recipe.len()) {
            return None;
        }
        Some(Matched {
            stored: Stored {
                name: self.name.clone(),
                data_type: self.data_type,
                recipe,
                replaces: None,
                sites: vec![],
            },
            is_exact: largest.is_exact,
            units: largest.units,
            allowed: largest.allowed,
        })
    }

    /// The largest deviation from a formula that is evaluated in parts. All cores share the work.
    fn deviation_in(
        &self,
        parts: &FormulaParts,
        candidate: &FormulaCandidate,
        given: &GivenConstants,
    ) -> Option<LargestDeviation> {
        let ranges = parts.ranges().into_par_iter();
        let deviations = ranges.map(|range| {
            let numbers = self
                .elements
                .places(&self.name, parts.axis(), range.clone());
            self.deviation(&numbers.ok()?, &parts.part(range), candidate, given)
        });
        deviations.try_reduce(|| LargestDeviation::NONE, |one, other| Some(one.and(other)))
    }

    /// The largest deviation of elements from a formula. `None` if the errors do not explain the
    /// difference of some element.
    fn deviation(
        &self,
        numbers: &ArrayD<f64>,
        recipe: &Recipe,
        candidate: &FormulaCandidate,
        given: &GivenConstants,
    ) -> Option<LargestDeviation> {
        let made = value(recipe, self.data_type, given)?;
        let errors = [made.error, candidate.hidden, self.error];
        let parts = numbers.as_slice()?.par_chunks(PART);
        let parts = parts.zip(made.values.as_slice()?.par_chunks(PART));
        let deviations = parts.map(|(numbers, wanted)| {
            LargestDeviation::explained(self.data_type, numbers, wanted, errors)
        });
        deviations.try_reduce(|| LargestDeviation::NONE, |one, other| Some(one.and(other)))
    }
}

/// Whether a number is short: at most [`DIGITS`] binary digits follow its first nonzero digit.
fn is_short(number: f64) -> bool {
    number.to_bits().trailing_zeros() >= 52 - DIGITS
}

/// Transposes a formula as a matrix, and reshapes the result to `shape`. `None` unless exactly two
/// extents of `shape` differ from 1.
fn exchanged(recipe: &Recipe, shape: &[usize]) -> Option<Recipe> {
    let [rows, columns] = shape
        .iter()
        .copied()
        .filter(|&extent| extent != 1)
        .collect::<Vec<_>>()[..]
    else {
        return None;
    };
    recipe
        .reshape(&[columns, rows])?
        .transpose(&[1, 0])?
        .reshape(shape)
}
