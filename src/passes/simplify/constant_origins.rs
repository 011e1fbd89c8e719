//! The origins of stored tensors, to decide whether two tensors were computed by equal formulas.

use std::cell::OnceCell;

use crate::hash::HashMap;
use crate::onnx::Model;
use crate::onnx::proto::{NodeProto, TensorProto};
use crate::passes::simplify::cse;
use crate::recipe::{Op, Recipe};

/// Every float type represents all integers up to this one.
const WHOLE: f64 = 256.0;

/// The origins of the stored tensors of a model.
#[derive(Default)]
pub(crate) struct ConstantOrigins<'o> {
    /// The recipes of stored tensors by name, over constants of the original model.
    recipes: HashMap<&'o str, &'o Recipe>,
    /// The constants of the original model. `None` if all tensors are original.
    original: Option<StoredTensors<'o>>,
}

impl<'o> ConstantOrigins<'o> {
    pub(crate) fn new(recipes: HashMap<&'o str, &'o Recipe>, original: &'o Model) -> Self {
        ConstantOrigins {
            recipes,
            original: Some(StoredTensors::new(original)),
        }
    }

    fn recipe(&self, name: &str) -> Option<&'o Recipe> {
        self.recipes.get(name).copied()
    }

    fn stored(&self, name: &str) -> Option<&'o TensorProto> {
        self.original.as_ref()?.get(name)
    }

    /// Whether a tensor was stored by folding, and is not a constant of the original model.
    pub(super) fn is_new(&self, name: &str) -> bool {
        self.recipe(name)
            .is_some_and(|recipe| constant_name(recipe) != Some(name))
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
            // One of the tensors may be a constant that was stored again.
            (Some(recipe), None) => {
                constant_name(recipe).is_some_and(|name| self.are_stored_alike(name, other, model))
            }
            (None, Some(recipe)) => {
                constant_name(recipe).is_some_and(|name| self.are_stored_alike(one, name, model))
            }
        }
    }

    /// The recipe of a tensor. `None` if it has no recipe, or if the recipe is an array of small
    /// integers, because these are exact in every type, and so equal any constant with the same
    /// elements.
    fn inexact_recipe(&self, name: &str) -> Option<&Recipe> {
        self.recipe(name)
            .filter(|recipe| !is_small_and_whole(recipe))
    }

    /// Whether two names are equal, or name small tensors of the original model with equal
    /// elements.
    fn are_stored_alike(&self, one: &str, other: &str, model: &Model) -> bool {
        if one == other {
            return true;
        }
        match (self.stored(one), self.stored(other)) {
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

/// The name of the constant, if a recipe is a constant without any operation.
fn constant_name(recipe: &Recipe) -> Option<&str> {
    if let Op::Constant(name) = recipe.op() {
        Some(name)
    } else {
        None
    }
}

/// The constants of a model by name, indexed at the first look-up.
struct StoredTensors<'m> {
    model: &'m Model,
    by_name: OnceCell<HashMap<&'m str, &'m TensorProto>>,
}

impl<'m> StoredTensors<'m> {
    fn new(model: &'m Model) -> Self {
        StoredTensors {
            model,
            by_name: OnceCell::new(),
        }
    }

    fn get(&self, name: &str) -> Option<&'m TensorProto> {
        self.by_name.get_or_init(|| self.index()).get(name).copied()
    }

    fn index(&self) -> HashMap<&'m str, &'m TensorProto> {
        let graph = self.model.graph();
        let initializers = graph.initializer.iter();
        let named = initializers.map(|tensor| (tensor.name(), tensor));
        named
            .chain(graph.node.iter().filter_map(value_of_constant))
            .collect()
    }
}

/// The output and the tensor of a Constant. `None` for another node, or for a Constant without a
/// tensor attribute.
fn value_of_constant(node: &NodeProto) -> Option<(&str, &TensorProto)> {
    if node.op() != ("", "Constant") {
        return None;
    }
    Some((node.output.first()?.as_str(), node.attr_t("value").ok()??))
}
