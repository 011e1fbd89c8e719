//! Formulas over the tensors of a model that may give the elements of another model's tensors.

use std::collections::{HashMap, HashSet};

use rayon::prelude::*;

use super::constants::{ComputedConstants, GivenConstants};
use super::formulas::value;
use super::hidden_fold::{self, HiddenFold};
use super::rounded::ErrorBound;
use crate::FuseOptions;
use crate::onnx::Model;
use crate::onnx::tensor::{DataType, float_type};
use crate::prove::stored_outside;
use crate::recipe::{Op, Recipe, ends};

/// The maximum number of scalars that are combined in pairs.
const SCALARS: usize = 64;

/// The type and the number of elements of a tensor.
pub(super) type CandidateKey = (DataType, usize);

/// Lists of candidates, by the type and the number of elements of their values.
pub(super) type FormulaCandidates = HashMap<CandidateKey, Vec<FormulaCandidate>>;

/// A formula over values of a model.
pub(super) struct FormulaCandidate {
    pub recipe: Recipe,
    /// The first and the last element of the formula's value. These two elements are the same for
    /// every order of the axes.
    ends: [f64; 2],
    /// The error of the formula's operations at these two elements.
    error: ErrorBound,
    /// The bound on the rounding of an earlier fold, of which neither model holds the operands.
    pub hidden: ErrorBound,
}

impl FormulaCandidate {
    pub(super) fn new(recipe: Recipe, data_type: DataType, given: &GivenConstants) -> Option<Self> {
        let made = value(&ends(&recipe)?, data_type, given)?;
        let &[first, last] = made.values.as_slice()? else {
            return None;
        };
        let ends = [first, last];
        let are_finite = ends.iter().all(|&number| made.error.at(number).is_finite());
        are_finite.then_some(Self {
            recipe,
            ends,
            error: made.error,
            hidden: ErrorBound::EXACT,
        })
    }

    /// The fold that may have computed the candidate in a model of this type.
    fn fold(&self, data_type: DataType) -> HiddenFold {
        HiddenFold {
            data_type,
            are_operands_rounded: self.rounds(),
        }
    }

    /// Whether a fold computed the candidate from the operands of the other model, rounded to a
    /// narrower type.
    pub(super) fn is_fold_of_rounded(&self) -> bool {
        self.rounds() && !self.hidden.is_exact()
    }

    fn rounds(&self) -> bool {
        matches!(self.recipe.op(), Op::Round(_))
    }

    /// Whether a tensor may match the formula, by its type, its first and last element, and the
    /// bound on its error.
    pub(super) fn may_be(&self, data_type: DataType, ends: [f64; 2], error: ErrorBound) -> bool {
        let mut pairs = self.ends.iter().zip(ends);
        pairs.all(|(&number, other)| {
            let bounds = [self.error, self.hidden, error];
            let bounds = bounds.map(|bound| bound.at_element_of(data_type, number));
            (number - other).abs() <= bounds.iter().sum()
        })
    }
}

/// The constants that a graph computes, as candidates. Constants that only rearrange stored
/// elements are left out, because they need no formula.
pub(super) fn of_graph(constants: &ComputedConstants) -> FormulaCandidates {
    let mut candidates = FormulaCandidates::new();
    for (recipe, data_type) in constants.computed() {
        let given = constants.given([&recipe]);
        let key = (data_type, recipe.len());
        let candidate = FormulaCandidate::new(recipe, data_type, &given);
        candidates.entry(key).or_default().extend(candidate);
    }
    candidates
}

/// The reciprocals of the scalars of a graph, and the products and quotients of any two scalars of
/// the same type, except those that are exact.
pub(super) fn of_scalars(constants: &ComputedConstants) -> FormulaCandidates {
    let mut recipes = vec![];
    let scalars = constants.scalars();
    for (number, data_type) in scalars.iter().take(SCALARS) {
        let reciprocal = Recipe::number(1.0, 0).div(number);
        let others = scalars.iter().take(SCALARS);
        let others = others.filter(|(_, other_type)| other_type == data_type);
        let pairs = others.flat_map(|(other, _)| [number.mul(other), number.div(other)]);
        let combined = [reciprocal].into_iter().chain(pairs).flatten();
        recipes.extend(combined.map(|recipe| (recipe, *data_type)));
    }
    let mut candidates = by_key(recipes, constants);
    for candidates in candidates.values_mut() {
        candidates.retain(|candidate| !candidate.error.is_exact());
    }
    candidates
}

/// The tensors that folding the model creates.
pub(super) fn of_folding(model: &Model, constants: &ComputedConstants) -> FormulaCandidates {
    let Ok(plan) = crate::plan(model, &FuseOptions::default()) else {
        return FormulaCandidates::new();
    };
    let tensors = plan.tensors.into_iter();
    let recipes = tensors.map(|tensor| (tensor.recipe, tensor.data_type));
    by_key(recipes.collect(), constants)
}

/// The float tensors that a model stores, if their type and size are in `keys`.
pub(super) fn of_stored(
    model: &Model,
    keys: &[CandidateKey],
    constants: &ComputedConstants,
) -> FormulaCandidates {
    let mut recipes = vec![];
    for (name, tensor) in stored_outside(model) {
        let extents = tensor.dims.iter().map(|&extent| extent as usize);
        let shape: Vec<usize> = extents.collect();
        let Some(data_type) = float_type(&tensor) else {
            continue;
        };
        if keys.contains(&(data_type, shape.iter().product())) {
            recipes.push((Recipe::constant(name, &shape), data_type));
        }
    }
    by_key(recipes, constants)
}

/// The float tensors that a model stores, rounded to each narrower type in `keys`, if their size is
/// in `keys` too.
pub(super) fn of_rounded(
    model: &Model,
    keys: &[CandidateKey],
    constants: &ComputedConstants,
) -> FormulaCandidates {
    let keys: HashSet<CandidateKey> = keys.iter().copied().collect();
    let mut recipes = vec![];
    for (name, tensor) in stored_outside(model) {
        let Some(data_type) = float_type(&tensor) else {
            continue;
        };
        let extents = tensor.dims.iter().map(|&extent| extent as usize);
        let recipe = Recipe::constant(name, &extents.collect::<Vec<_>>());
        for to in [DataType::Float16, DataType::BFloat16, DataType::Float] {
            let is_narrower = to.byte_size(1) < data_type.byte_size(1);
            if is_narrower && keys.contains(&(to, recipe.len())) {
                recipes.push((recipe.rounded(to), to));
            }
        }
    }
    by_key(recipes, constants)
}

/// Sets the hidden error of each candidate to the rounding of a fold into a weight, assuming that
/// such a fold computed the candidate.
pub(super) fn as_folded_weights(candidates: &mut FormulaCandidates) {
    for (&(data_type, _), candidates) in candidates {
        for candidate in candidates {
            candidate.hidden = hidden_fold::of_weight(candidate.fold(data_type));
        }
    }
}

/// Sets the hidden error of each candidate to the rounding of a fold into a bias, assuming that
/// such a fold computed the candidate.
pub(super) fn as_folded_biases(candidates: &mut FormulaCandidates, constants: &ComputedConstants) {
    for (&(data_type, _), candidates) in candidates {
        for candidate in candidates {
            let given = constants.given([&candidate.recipe]);
            let made = value(&candidate.recipe, data_type, &given);
            let fold = candidate.fold(data_type);
            let bias = made.map(|made| hidden_fold::of_bias(fold, &made.values));
            candidate.hidden = bias.unwrap_or(ErrorBound::EXACT);
        }
    }
}

/// The formulas as candidates, except those that cannot be evaluated. All cores share the work.
pub(super) fn by_key(
    recipes: Vec<(Recipe, DataType)>,
    constants: &ComputedConstants,
) -> FormulaCandidates {
    let given = constants.given(recipes.iter().map(|(recipe, _)| recipe));
    let candidates = recipes.into_par_iter().filter_map(|(recipe, data_type)| {
        let key = (data_type, recipe.len());
        let candidate = FormulaCandidate::new(recipe, data_type, &given)?;
        Some((key, candidate))
    });
    let candidates: Vec<(CandidateKey, FormulaCandidate)> = candidates.collect();
    let mut keyed = FormulaCandidates::new();
    for (key, candidate) in candidates {
        keyed.entry(key).or_default().push(candidate);
    }
    keyed
}
