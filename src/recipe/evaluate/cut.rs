//! Recipes of a part of a tensor.

use std::ops::Range;

use super::picked_range;
use crate::hash::HashMap;
use crate::recipe::{Op, Operation, Recipe, Windows};

/// The depth to which a cut is pushed into a formula. Deeper steps are computed whole.
const DEEPEST: usize = 1000;

/// Cuts recipes along an axis. A cut is pushed through the operations that commute with it.
#[derive(Default)]
pub(in crate::recipe) struct Cutting {
    made: HashMap<(*const Operation, usize, usize, usize), Recipe>,
    depth: usize,
}

impl Cutting {
    /// Builds the recipe of the part of a tensor in a range along an axis.
    pub(in crate::recipe) fn recipe(
        &mut self,
        recipe: &Recipe,
        axis: usize,
        range: Range<usize>,
    ) -> Recipe {
        if range == (0..recipe.shape()[axis]) {
            return recipe.clone();
        }
        let key = (recipe.id(), axis, range.start, range.end);
        if let Some(made) = self.made.get(&key) {
            return made.clone();
        }
        self.depth += 1;
        let made = if self.depth < DEEPEST {
            self.pushed(recipe, axis, &range)
        } else {
            None
        };
        self.depth -= 1;
        let made = made
            .or_else(|| recipe.pick(axis, range.map(Some)))
            .unwrap_or_else(|| recipe.clone());
        self.made.insert(key, made.clone());
        made
    }

    /// Builds the last operation of a recipe again, on parts of its inputs. `None` if the operation
    /// needs whole inputs.
    fn pushed(&mut self, recipe: &Recipe, axis: usize, range: &Range<usize>) -> Option<Recipe> {
        match recipe.op() {
            Op::Constant(_) | Op::Literal(_) => None,
            Op::Round(_) | Op::Neg | Op::Sqrt | Op::Exp | Op::Sigmoid | Op::Flush(_) => {
                self.function(recipe, axis, range)
            }
            Op::Add | Op::Sub | Op::Mul | Op::Div => self.arithmetic(recipe, axis, range),
            Op::Reshape => self.reshape(recipe, axis, range),
            Op::Transpose(_) | Op::Pick { .. } | Op::Expand | Op::Concat(_) => {
                self.movement(recipe, axis, range)
            }
            Op::Sum(_) | Op::Max(_) | Op::Softmax(_) => self.reduction(recipe, axis, range),
            Op::Product | Op::Conv(_) => self.product(recipe, axis, range),
        }
    }

    /// Cuts an input along its axis that corresponds to an axis of the result, with the last axes
    /// of both aligned. Returns the input itself if it does not vary along that axis.
    fn aligned(
        &mut self,
        input: &Recipe,
        rank: usize,
        axis: usize,
        range: &Range<usize>,
    ) -> Recipe {
        match (axis + input.rank()).checked_sub(rank) {
            Some(own) if input.shape()[own] != 1 => self.recipe(input, own, range.clone()),
            _ => input.clone(),
        }
    }

    fn function(&mut self, recipe: &Recipe, axis: usize, range: &Range<usize>) -> Option<Recipe> {
        let input = self.aligned(recipe.inputs().first()?, recipe.rank(), axis, range);
        match recipe.op() {
            Op::Round(data_type) => Some(input.rounded(*data_type)),
            Op::Neg => Some(input.neg()),
            Op::Sqrt => Some(input.sqrt()),
            Op::Exp => Some(input.exp()),
            Op::Sigmoid => Some(input.sigmoid()),
            Op::Flush(below) => Some(input.flushed(*below)),
            _ => None,
        }
    }

    fn arithmetic(&mut self, recipe: &Recipe, axis: usize, range: &Range<usize>) -> Option<Recipe> {
        let [left, right] = recipe.inputs() else {
            return None;
        };
        let left = self.aligned(left, recipe.rank(), axis, range);
        let right = self.aligned(right, recipe.rank(), axis, range);
        left.zip(recipe.op().clone(), &right)
    }

    /// Cuts a reshape along an axis that it keeps: the input has an axis of equal extent, before
    /// which the product of the extents is equal too. `None` for any other axis.
    fn reshape(&mut self, recipe: &Recipe, axis: usize, range: &Range<usize>) -> Option<Recipe> {
        let input = recipe.inputs().first()?;
        let wanted = before_and_along(recipe, axis);
        let own = (0..input.rank()).find(|&own| before_and_along(input, own) == wanted)?;
        let part = self.recipe(input, own, range.clone());
        part.reshape(&extents_of_part(recipe, axis, range))
    }

    fn movement(&mut self, recipe: &Recipe, axis: usize, range: &Range<usize>) -> Option<Recipe> {
        let inputs = recipe.inputs();
        match recipe.op() {
            Op::Transpose(perm) => {
                let part = self.recipe(inputs.first()?, perm[axis], range.clone());
                part.transpose(perm)
            }
            Op::Pick {
                axis: along,
                places,
            } if *along == axis => {
                let (input, places) = (inputs.first()?, &places[range.clone()]);
                match consecutive(places) {
                    Some(range) => Some(self.recipe(input, axis, range)),
                    None => input.pick(axis, places.iter().copied()),
                }
            }
            Op::Pick {
                axis: along,
                places,
            } => {
                let part = self.recipe(inputs.first()?, axis, range.clone());
                part.pick(*along, places.iter().copied())
            }
            Op::Expand => {
                let part = self.aligned(inputs.first()?, recipe.rank(), axis, range);
                part.expand(&extents_of_part(recipe, axis, range))
            }
            Op::Concat(along) if *along != axis => {
                let parts = inputs
                    .iter()
                    .map(|input| self.recipe(input, axis, range.clone()));
                Recipe::concat(*along, &parts.collect::<Vec<Recipe>>())
            }
            _ => None,
        }
    }

    fn reduction(&mut self, recipe: &Recipe, axis: usize, range: &Range<usize>) -> Option<Recipe> {
        let input = recipe.inputs().first()?;
        match recipe.op() {
            Op::Sum(along) | Op::Max(along) | Op::Softmax(along) if *along == axis => None,
            Op::Sum(along) => self.recipe(input, axis, range.clone()).sum(*along),
            Op::Max(along) => self.recipe(input, axis, range.clone()).max(*along),
            Op::Softmax(along) => self.recipe(input, axis, range.clone()).softmax(*along),
            _ => None,
        }
    }

    fn product(&mut self, recipe: &Recipe, axis: usize, range: &Range<usize>) -> Option<Recipe> {
        let [left, right] = recipe.inputs() else {
            return None;
        };
        let rank = recipe.rank();
        match recipe.op() {
            Op::Product if axis + 1 == rank => {
                left.product(&self.aligned(right, rank, axis, range))
            }
            Op::Product if axis + 2 == rank => self.aligned(left, rank, axis, range).product(right),
            Op::Product => {
                let left = self.aligned(left, rank, axis, range);
                left.product(&self.aligned(right, rank, axis, range))
            }
            // Both operands have the axis of groups, but only the weight has the axis of outer
            // channels.
            Op::Conv(windows) if axis == 0 => {
                let values = self.recipe(right, 0, range.clone());
                let weight = self.recipe(left, axis, range.clone());
                weight.conv(&values, Windows::clone(windows))
            }
            Op::Conv(windows) if axis == 1 => {
                let weight = self.recipe(left, axis, range.clone());
                weight.conv(right, Windows::clone(windows))
            }
            _ => None,
        }
    }
}

/// Builds the recipe of a tensor such that a range that its last step takes along an axis is taken
/// of its constants instead. Only the parts of constants and operands that count are computed then.
pub(crate) fn with_cut_constants(recipe: &Recipe) -> Recipe {
    match (picked_range(recipe), recipe.inputs()) {
        (Some((axis, range)), [input]) => Cutting::default().recipe(input, axis, range),
        _ => recipe.clone(),
    }
}

/// Builds the recipe of the part of a tensor in a range along an axis.
#[cfg(all(feature = "prove", feature = "tract"))]
pub(crate) fn cut(recipe: &Recipe, axis: usize, range: Range<usize>) -> Recipe {
    Cutting::default().recipe(recipe, axis, range)
}

/// The range of places that a step picks. `None` if a place is missing, or does not follow the one
/// before it.
pub(super) fn consecutive(places: &[Option<usize>]) -> Option<Range<usize>> {
    let first = (*places.first()?)?;
    let mut numbered = places.iter().enumerate();
    let are_consecutive = numbered.all(|(at, place)| *place == Some(first + at));
    are_consecutive.then(|| first..first + places.len())
}

/// Builds the recipe of the first and the last element of a tensor in row-major order, as a vector.
/// `None` if the tensor is empty.
#[cfg(all(feature = "prove", feature = "tract"))]
pub(crate) fn ends(recipe: &Recipe) -> Option<Recipe> {
    if recipe.is_empty() {
        return None;
    }
    let mut cutting = Cutting::default();
    let (mut first, mut last) = (recipe.clone(), recipe.clone());
    for (axis, &extent) in recipe.shape().iter().enumerate() {
        first = cutting.recipe(&first, axis, 0..1);
        last = cutting.recipe(&last, axis, extent - 1..extent);
    }
    Recipe::concat(0, &[first.reshape(&[1])?, last.reshape(&[1])?])
}

/// The product of the extents before an axis, and the extent of the axis.
fn before_and_along(recipe: &Recipe, axis: usize) -> (usize, usize) {
    let shape = recipe.shape();
    (shape[..axis].iter().product(), shape[axis])
}

/// The extents of the part of a tensor in a range along an axis.
fn extents_of_part(recipe: &Recipe, axis: usize, range: &Range<usize>) -> Vec<usize> {
    let mut shape = recipe.shape().to_vec();
    shape[axis] = range.len();
    shape
}
