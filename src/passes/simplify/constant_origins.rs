//! The origins of stored tensors: whether two of them were computed in equal ways.

use crate::onnx::Model;
use crate::onnx::proto::TensorProto;
use crate::passes::simplify::cse;
use crate::recipe::{Op, Recipe};

/// Every float type represents all integers up to this one.
const WHOLE: f64 = 256.0;

/// Where the stored tensors of a model come from.
pub(crate) struct ConstantOrigins<'o> {
    /// The recipe of a stored tensor, over constants of the original model.
    pub recipe: &'o dyn Fn(&str) -> Option<&'o Recipe>,
    /// A tensor of the original model.
    pub stored: &'o dyn Fn(&str) -> Option<&'o TensorProto>,
}

impl ConstantOrigins<'_> {
    /// The origins in a model whose tensors are all original.
    pub(crate) const ORIGINAL: ConstantOrigins<'static> = ConstantOrigins {
        recipe: &|_| None,
        stored: &|_| None,
    };

    /// Whether a tensor was stored by folding, and is not a constant of the original model.
    pub(super) fn is_new(&self, name: &str) -> bool {
        (self.recipe)(name).is_some_and(|recipe| constant_name(recipe) != Some(name))
    }

    /// Whether two tensors were computed in equal ways.
    pub(super) fn are_computed_alike(&self, one: &str, other: &str, model: &Model) -> bool {
        match (self.inexact_recipe(one), self.inexact_recipe(other)) {
            // Equal operations on equal tensors give equal results, if the tensors are used without
            // rounding.
            (Some(one), Some(other)) => one.is_alike(other, &|one: &str, other: &str| {
                self.are_stored_alike(one, other, model)
            }),
            (None, None) => true,
            // A constant that was stored again.
            (Some(recipe), None) => {
                constant_name(recipe).is_some_and(|name| self.are_stored_alike(name, other, model))
            }
            (None, Some(recipe)) => {
                constant_name(recipe).is_some_and(|name| self.are_stored_alike(one, name, model))
            }
        }
    }

    /// The recipe of a tensor. Small integers have none, because they are exact in every type, and
    /// equal any constant of these numbers.
    fn inexact_recipe(&self, name: &str) -> Option<&Recipe> {
        (self.recipe)(name).filter(|recipe| !is_small_and_whole(recipe))
    }

    /// Whether two tensors of the original model have equal elements.
    fn are_stored_alike(&self, one: &str, other: &str, model: &Model) -> bool {
        if one == other {
            return true;
        }
        match ((self.stored)(one), (self.stored)(other)) {
            (Some(one), Some(other)) => cse::are_alike(one, other, model),
            _ => false,
        }
    }
}

/// Whether a recipe is an array of integers that every float type represents.
fn is_small_and_whole(recipe: &Recipe) -> bool {
    let Op::Literal(numbers) = recipe.op() else {
        return false;
    };
    numbers
        .iter()
        .all(|number| number.fract() == 0.0 && number.abs() <= WHOLE)
}

/// The name of the constant, if a recipe is only a constant.
fn constant_name(recipe: &Recipe) -> Option<&str> {
    if let Op::Constant(name) = recipe.op() {
        Some(name)
    } else {
        None
    }
}
