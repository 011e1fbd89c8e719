//! Finds formulas over the tensors of the first model for tensors that only the second model stores.

use std::collections::HashMap;

use ndarray::ArrayD;
use serde::Serialize;

use super::constants::ComputedConstants;
use super::elements::ElementSet;
use super::formulas;
use super::rounded::{ErrorBound, Rounded};
use crate::FuseOptions;
use crate::affine::plan::Stored;
use crate::analysis::Analysis;
use crate::onnx::Model;
use crate::onnx::tensor::{self, DataType};
use crate::prove::stored_outside;
use crate::recipe::Recipe;

/// A tensor of the second model that holds the rounded values of a formula.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RoundedTensor {
    /// The name of the tensor.
    pub name: String,
    /// The formula, over the values of the first model.
    pub formula: String,
    /// The largest difference between the tensor and the formula, in units in the last place of the element.
    pub units: f64,
    /// The largest difference that the rounding of the formula's operations explains, in the same units.
    pub allowed: f64,
}

/// A tensor with a formula that gives its elements up to rounding.
#[derive(Debug)]
pub(super) struct Matched {
    /// The tensor and its formula.
    pub stored: Stored,
    error: ErrorBound,
    units: f64,
    allowed: f64,
}

impl Matched {
    /// The entry for the verdict. `None` if the evaluation of the formula does not round.
    pub(super) fn rounded(&self) -> Option<RoundedTensor> {
        (!self.error.is_exact()).then(|| RoundedTensor {
            name: self.stored.name.clone(),
            formula: self.stored.recipe.to_string(),
            units: self.units,
            allowed: self.allowed,
        })
    }
}

/// A tensor of the second model.
#[derive(Clone)]
struct Foreign {
    name: String,
    data_type: DataType,
    values: ArrayD<f64>,
}

/// A formula over values of the first model.
struct FormulaCandidate {
    recipe: Recipe,
    /// The first and the last element of its value. No permutation of the axes moves these two.
    ends: [f64; 2],
    error: ErrorBound,
}

impl FormulaCandidate {
    fn new(recipe: Recipe, data_type: DataType, constants: &ComputedConstants) -> Option<Self> {
        let made = value(&recipe, data_type, constants)?;
        let numbers = made.values.as_slice()?;
        let ends = [*numbers.first()?, *numbers.last()?];
        Some(Self {
            recipe,
            ends,
            error: made.error,
        })
    }

    /// Whether a tensor with this first and last element may match the formula.
    fn may_be(&self, ends: [f64; 2]) -> bool {
        let mut pairs = self.ends.iter().zip(ends);
        pairs.all(|(&number, other)| (number - other).abs() <= self.error.at(number))
    }
}

/// Evaluates a recipe, with a bound on the errors.
fn value(recipe: &Recipe, data_type: DataType, constants: &ComputedConstants) -> Option<Rounded> {
    formulas::value(recipe, data_type, &|name| constants.read(name))
}

/// A number is short if at most this many binary digits follow its first nonzero digit.
const DIGITS: u32 = 11;

/// The maximum number of scalars that are combined in pairs.
const SCALARS: usize = 64;

/// The candidates by type and number of elements.
type FormulaCandidates = HashMap<(DataType, usize), Vec<FormulaCandidate>>;

/// Finds formulas for the named tensors of the second model.
///
/// The candidates are the constants that the first model computes, combinations of its scalars, and the tensors that
/// folding it creates. A tensor whose elements the first model stores at other places is not matched with folded
/// tensors, because its elements already have the right images in the field.
pub(super) fn matched(first: &Model, second: &Model, names: &[String]) -> Vec<Matched> {
    let mut open: Vec<Foreign> = names
        .iter()
        .filter_map(|name| foreign(second, name))
        .collect();
    let Ok(analysis) = Analysis::new(first) else {
        return vec![];
    };
    let constants = ComputedConstants::new(&analysis);
    let mut found = take_matched(&mut open, &of_graph(&constants), &constants);
    let (short, mut long) = open.into_iter().partition(Foreign::is_short);
    found.extend(take_matched(&mut long, &of_scalars(&constants), &constants));
    open = [short, long].concat();
    let elements = ElementSet::new(first);
    open.retain(|foreign| !elements.has_all(&foreign.values));
    if !open.is_empty() {
        found.extend(take_matched(
            &mut open,
            &of_folding(first, &constants),
            &constants,
        ));
    }
    found
}

/// Removes the tensors that match a candidate from `open`, and returns the matches.
fn take_matched(
    open: &mut Vec<Foreign>,
    candidates: &FormulaCandidates,
    constants: &ComputedConstants,
) -> Vec<Matched> {
    let mut found = vec![];
    open.retain(|foreign| {
        let key = (foreign.data_type, foreign.values.len());
        let mut candidates = candidates.get(&key).into_iter().flatten();
        let matched = candidates.find_map(|candidate| foreign.matched(candidate, constants));
        let is_open = matched.is_none();
        found.extend(matched);
        is_open
    });
    found
}

/// The constants that a graph computes. Constants that are only moved elements need no formula.
fn of_graph(constants: &ComputedConstants) -> FormulaCandidates {
    let mut candidates = FormulaCandidates::new();
    for (value, data_type) in constants.computed() {
        if let Some(candidate) = FormulaCandidate::new(value, data_type, constants) {
            let key = (data_type, candidate.recipe.len());
            candidates.entry(key).or_default().push(candidate);
        }
    }
    candidates
}

/// The reciprocals of the scalars of a graph, and the products and quotients of two scalars.
fn of_scalars(constants: &ComputedConstants) -> FormulaCandidates {
    let mut candidates = FormulaCandidates::new();
    let scalars = constants.scalars();
    for (number, data_type) in scalars.iter().take(SCALARS) {
        let reciprocal = Recipe::number(1.0, 0).div(number);
        let others = scalars.iter().take(SCALARS);
        let others = others.filter(|(_, other_type)| other_type == data_type);
        let pairs = others.flat_map(|(other, _)| [number.mul(other), number.div(other)]);
        for recipe in [reciprocal].into_iter().chain(pairs).flatten() {
            let candidate = FormulaCandidate::new(recipe, *data_type, constants);
            let candidate = candidate.filter(|candidate| candidate.error != ErrorBound::EXACT);
            candidates
                .entry((*data_type, 1))
                .or_default()
                .extend(candidate);
        }
    }
    candidates
}

/// The tensors that folding the model creates.
fn of_folding(model: &Model, constants: &ComputedConstants) -> FormulaCandidates {
    let mut candidates = FormulaCandidates::new();
    let Ok(plan) = crate::plan(model, &FuseOptions::default()) else {
        return candidates;
    };
    for Stored {
        recipe, data_type, ..
    } in plan.tensors
    {
        if let Some(candidate) = FormulaCandidate::new(recipe, data_type, constants) {
            let key = (data_type, candidate.recipe.len());
            candidates.entry(key).or_default().push(candidate);
        }
    }
    candidates
}

/// Reads a tensor of a model. `None` if it is empty or has an element that is not finite.
fn foreign(model: &Model, name: &str) -> Option<Foreign> {
    let tensor = stored_outside(model)
        .into_iter()
        .find(|(other, _)| *other == name)?
        .1;
    let values = tensor::read_f64(&tensor, model.externals()).ok()?;
    let data_type = tensor::data_type(&tensor).ok()?;
    let is_finite = values.iter().all(|number| number.is_finite());
    (is_finite && !values.is_empty()).then(|| Foreign {
        name: name.to_owned(),
        data_type,
        values,
    })
}

impl Foreign {
    /// Whether all elements have few binary digits, like ¼ and 8. Rounding rarely gives such numbers.
    fn is_short(&self) -> bool {
        let mut numbers = self.values.iter();
        numbers.all(|number| number.to_bits().trailing_zeros() >= 52 - DIGITS)
    }

    /// Matches the tensor with a candidate, in the tensor's shape or with two axes exchanged.
    fn matched(
        &self,
        candidate: &FormulaCandidate,
        constants: &ComputedConstants,
    ) -> Option<Matched> {
        let numbers = self.values.as_slice()?;
        if !candidate.may_be([*numbers.first()?, *numbers.last()?]) {
            return None;
        }
        let recipe = candidate.recipe.reshape(self.values.shape())?;
        self.agreeing(recipe, constants).or_else(|| {
            self.agreeing(
                exchanged(&candidate.recipe, self.values.shape())?,
                constants,
            )
        })
    }

    /// Matches the tensor with a formula of the same shape, if rounding explains the difference of each element.
    fn agreeing(&self, recipe: Recipe, constants: &ComputedConstants) -> Option<Matched> {
        let made = value(&recipe, self.data_type, constants)?;
        let (mut units, mut allowed) = (0.0_f64, 0.0_f64);
        for (&number, &wanted) in self.values.iter().zip(&made.values) {
            let (difference, bound) = ((number - wanted).abs(), made.error.at(wanted));
            if difference > bound {
                return None;
            }
            let unit = unit_in_the_last_place(self.data_type, number);
            units = units.max(difference / unit);
            allowed = allowed.max(bound / unit);
        }
        Some(Matched {
            stored: Stored {
                name: self.name.clone(),
                data_type: self.data_type,
                recipe,
                replaces: None,
                sites: vec![],
            },
            error: made.error,
            units,
            allowed,
        })
    }
}

/// Transposes a formula as a matrix, and reshapes it to `shape`. `None` if `shape` is not that of a matrix, apart from
/// extents of 1.
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

/// The distance from a number to the next larger magnitude of its type.
fn unit_in_the_last_place(data_type: DataType, number: f64) -> f64 {
    let bits = match data_type {
        DataType::Float16 => 10,
        DataType::BFloat16 => 7,
        DataType::Double => 52,
        _ => 23,
    };
    let magnitude = number.abs().max(data_type.least_normal());
    (magnitude.log2().floor() - f64::from(bits)).exp2()
}
