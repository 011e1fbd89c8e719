//! Formulas for tensors.
//!
//! Every constant that folding changes or creates is a [`Recipe`]: an expression over constants of
//! the input model, such as Algorithm 1 of the UN paper, `W' = W·diag(γ/√(σ²+ε))`. Planning writes
//! recipes and knows their shapes, without reading a large weight. One evaluator computes them in
//! float64, whole or in parts along an axis. Storing a tensor rounds it once. A large tensor is
//! computed while it is written.
//!
//! ```
//! use unfold::recipe::Recipe;
//!
//! let weight = Recipe::constant("W", &[2, 3]);
//! let scale = Recipe::constant("γ", &[2]).reshape(&[2, 1]).unwrap();
//! let folded = weight.mul(&scale).unwrap();
//! assert_eq!(folded.shape(), [2, 3]);
//! assert_eq!(folded.to_string(), "mul(W, reshape(γ, [2, 1]))");
//! ```

mod broadcast;
mod evaluate;
pub(crate) mod lazy_tensor;
mod numbers;
mod operations;
mod scaled;
mod steps;
#[cfg(test)]
mod testing;
mod text;
mod windows;

use std::sync::Arc;

use broadcast::aligned_extent;
pub(crate) use broadcast::{BroadcastRuns, broadcast};
pub(crate) use evaluate::Read;
pub use evaluate::evaluate;
#[cfg(test)]
pub(crate) use evaluate::part;
#[cfg(feature = "prove")]
pub(crate) use evaluate::with_cut_constants;
#[cfg(all(feature = "prove", feature = "tract"))]
pub(crate) use evaluate::{computed, cut, cut_constant, ends};
pub(crate) use lazy_tensor::{Given, Promise, prepare};
pub(crate) use numbers::Numbers;
use operations::{count, turn};
pub(crate) use steps::{RecipeStep, float_name, float_named};
pub(crate) use windows::Windows;

use crate::hash::{HashMap, HashSet};
use crate::onnx::tensor::DataType;

/// A result of a Softmax or Sigmoid below this counts as 0. The other results add up to nearly 1,
/// and in every float type, adding this result to them changes nothing.
pub(crate) const DECIDED: f64 = 1.0 / (1_u128 << 64) as f64;

/// A formula for a tensor, over constants of a model. Clones share their steps.
#[derive(Debug, Clone)]
pub struct Recipe(Arc<Operation>);

/// One operation of a formula.
#[derive(Debug)]
pub(crate) struct Operation {
    op: Op,
    inputs: Vec<Recipe>,
    shape: Vec<usize>,
}

/// The operation that a step applies to its inputs, which are called `a` and `b` here. Arithmetic
/// broadcasts as in ONNX.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Op {
    /// A constant of the model, by the name of its value.
    Constant(Arc<str>),
    /// Numbers that are not a constant of the model, such as 1 and 0, or an epsilon. The list has
    /// all elements, or one number that all elements equal.
    Literal(Arc<[f64]>),
    /// `a` rounded to an element type, as if it had been stored.
    Round(DataType),
    /// `−a`
    Neg,
    /// `√a`
    Sqrt,
    /// `a + b`
    Add,
    /// `a − b`
    Sub,
    /// `a · b`, element by element.
    Mul,
    /// `a / b`
    Div,
    /// Gives the elements another shape.
    Reshape,
    /// The axes in another order: new axis `i` is old axis `perm[i]`.
    Transpose(Vec<usize>),
    /// Selects places along an axis, in this order. A place that is `None` holds 0.
    Pick {
        /// The axis.
        axis: usize,
        /// The source place of each place of the result.
        places: Arc<[Option<usize>]>,
    },
    /// Repeats the elements along axes of extent 1.
    Expand,
    /// The inputs, concatenated along an axis.
    Concat(usize),
    /// The sum along an axis, which then has extent 1.
    Sum(usize),
    /// The maximum along an axis, which then has extent 1.
    Max(usize),
    /// `eᵃ`
    Exp,
    /// `1/(1 + e⁻ᵃ)`
    Sigmoid,
    /// `eᵃ` divided by the sum of all `eᵃ` along an axis.
    Softmax(usize),
    /// Replaces numbers of a magnitude below this by 0, because they are too small to matter.
    Flush(f64),
    /// Matrix products over the last two axes. The axes before them broadcast.
    Product,
    /// A convolution in groups. A weight `[group, outer, inner, taps]` and values `[group, inner,
    /// places]` give `[group, outer, places of the result]`.
    Conv(Arc<Windows>),
}

impl Recipe {
    /// A constant of the model.
    pub fn constant(name: &str, shape: &[usize]) -> Self {
        Self::new(Op::Constant(name.into()), vec![], shape.to_vec())
    }

    /// A scalar, with `rank` axes of extent 1.
    pub fn number(number: f64, rank: usize) -> Self {
        Self::filled(number, &vec![1; rank])
    }

    /// A tensor whose elements all equal `number`.
    pub fn filled(number: f64, shape: &[usize]) -> Self {
        Self::new(Op::Literal([number].into()), vec![], shape.to_vec())
    }

    /// Numbers that are not a constant of the model, in row-major order. `None` if the shape has
    /// another number of elements.
    pub(crate) fn literal(numbers: &[f64], shape: &[usize]) -> Option<Self> {
        let fits = count(shape) == Some(numbers.len());
        fits.then(|| match numbers {
            [first, rest @ ..]
                if rest
                    .iter()
                    .all(|number| number.to_bits() == first.to_bits()) =>
            {
                Self::filled(*first, shape)
            }
            _ => Self::new(Op::Literal(numbers.into()), vec![], shape.to_vec()),
        })
    }

    /// The number that all elements equal, if the last operation is a literal with one number.
    fn everywhere(&self) -> Option<f64> {
        match self.op() {
            Op::Literal(numbers) if numbers.len() == 1 => Some(numbers[0]),
            _ => None,
        }
    }

    /// Whether the last operation is a literal whose elements all equal `wanted`.
    fn is_number(&self, wanted: f64) -> bool {
        self.everywhere() == Some(wanted)
    }

    fn new(op: Op, inputs: Vec<Recipe>, shape: Vec<usize>) -> Self {
        Self(Arc::new(Operation { op, inputs, shape }))
    }

    /// The extents of the tensor.
    pub fn shape(&self) -> &[usize] {
        &self.0.shape
    }

    /// The rank of the tensor.
    pub fn rank(&self) -> usize {
        self.0.shape.len()
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.0.shape.iter().product()
    }

    /// Whether the tensor has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The last operation.
    pub(crate) fn op(&self) -> &Op {
        &self.0.op
    }

    /// The inputs of the last operation.
    pub(crate) fn inputs(&self) -> &[Recipe] {
        &self.0.inputs
    }

    /// The names of the constants that the recipe reads, each once.
    pub fn constants(&self) -> Vec<&Arc<str>> {
        let names = self.steps().into_iter().filter_map(|step| match step.op() {
            Op::Constant(name) => Some(name),
            _ => None,
        });
        let mut names: Vec<&Arc<str>> = names.collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Replaces each constant by the recipe that `other` returns for it, if any. A recipe of
    /// another shape is ignored.
    pub(crate) fn substituted(&self, other: &dyn Fn(&str) -> Option<Recipe>) -> Self {
        let mut made: HashMap<*const Operation, Recipe> = HashMap::default();
        for step in self.steps() {
            let inputs = step.inputs();
            let is_unchanged = inputs
                .iter()
                .all(|input| made[&input.id()].id() == input.id());
            let now = match step.op() {
                Op::Constant(name) => other(name).filter(|other| other.shape() == step.shape()),
                _ if is_unchanged => None,
                op => {
                    let inputs = inputs.iter().map(|input| made[&input.id()].clone());
                    let shape = step.shape().to_vec();
                    Some(Self::new(op.clone(), inputs.collect(), shape))
                }
            };
            made.insert(step.id(), now.unwrap_or_else(|| step.clone()));
        }
        made.remove(&self.id()).unwrap_or_else(|| self.clone())
    }

    /// All steps of the recipe. Each step occurs once, after the steps that it reads.
    pub(crate) fn steps(&self) -> Vec<&Recipe> {
        self.steps_to(&|_| false)
    }

    /// Like [`Recipe::steps`], but without the inputs of steps for which `is_leaf` is true, unless
    /// other steps read them.
    pub(crate) fn steps_to(&self, is_leaf: &dyn Fn(&Recipe) -> bool) -> Vec<&Recipe> {
        let mut order = vec![];
        let mut seen = HashSet::default();
        // A formula may be as deep as a graph is long, so there is no recursion.
        let mut open = vec![(self, false)];
        while let Some((recipe, ready)) = open.pop() {
            if ready {
                order.push(recipe);
            } else if !recipe.is_shared() || seen.insert(recipe.id()) {
                // A step that is not shared is visited only once, so `seen` need not hold it.
                open.push((recipe, true));
                if is_leaf(recipe) {
                    continue;
                }
                open.extend(recipe.inputs().iter().rev().map(|input| (input, false)));
            }
        }
        order
    }

    /// Whether the step has more than one owner.
    fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// An identifier of the last step. Clones of a recipe have the same identifier. It is valid
    /// while the recipe exists.
    pub(crate) fn id(&self) -> *const Operation {
        Arc::as_ptr(&self.0)
    }
}

impl Recipe {
    /// Whether another recipe has equal steps. `same` decides whether two constants are equal.
    pub(crate) fn is_alike(&self, other: &Self, same: &dyn Fn(&str, &str) -> bool) -> bool {
        let (own, others) = (self.steps(), other.steps());
        let (own_places, other_places) = (places(&own), places(&others));
        own.len() == others.len()
            && own.iter().zip(others).all(|(one, other)| {
                let is_equal = match (one.op(), other.op()) {
                    (Op::Constant(one), Op::Constant(other)) => same(one, other),
                    (one, other) => one == other,
                };
                let own_inputs = one.inputs().iter().map(|input| own_places[&input.id()]);
                let other_inputs = other.inputs().iter().map(|input| other_places[&input.id()]);
                is_equal && one.shape() == other.shape() && own_inputs.eq(other_inputs)
            })
    }
}

/// The index of each step in a list.
fn places(steps: &[&Recipe]) -> HashMap<*const Operation, usize> {
    let places = steps.iter().enumerate();
    places.map(|(place, step)| (step.id(), place)).collect()
}

/// Recipes are equal if they have equal steps on equally named constants.
impl PartialEq for Recipe {
    fn eq(&self, other: &Self) -> bool {
        self.is_alike(other, &|one, other| one == other)
    }
}

impl Drop for Operation {
    /// Drops the steps in a loop, because the default drop recurses as deep as the formula.
    fn drop(&mut self) {
        let mut open = std::mem::take(&mut self.inputs);
        while let Some(recipe) = open.pop() {
            if let Some(mut step) = Arc::into_inner(recipe.0) {
                open.append(&mut step.inputs);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_constant_is_substituted_by_its_own_formula() {
        let twice = |name| {
            Recipe::constant(name, &[3])
                .mul(&Recipe::number(2.0, 1))
                .unwrap()
        };
        let both = twice("b").substituted(&|name| (name == "b").then(|| twice("a")));
        assert_eq!(both.to_string(), "mul(mul(a, 2), 2)");
    }
}
