//! Einsum of a value and a weight, which is the dense layer of JAX and Keras, and Einsum of other
//! operands.
//!
//! `y[o] = Σ x[i]·W[w]`, where each letter of an operand is an index. A scale along letters of the
//! weight can be multiplied into the weight, from the input or from the result. A scale along
//! letters that are not summed has the same effect on the input and on the result. A shift `t` adds
//! `Σ t[i]·W[w]`, whatever letters it varies along. Each summand is a product of one element of
//! every operand, so a scalar scale of any operand is also a scale of the result.

use crate::affine::Affine;
use crate::affine::linear::{Linear, Slots};
use crate::affine::row_stochastic::add_up_to_one;
use crate::affine::rule::{At, Rule, Side, Step};
use crate::analysis::broadcast::LARGEST;
use crate::ir::equation::{Equation, is_once};
use crate::recipe::{Numbers, Recipe};
use crate::refusal::Reason;

/// Einsum. Any constant operand absorbs a scalar scale. A constant that is the only operand besides
/// a value absorbs other affines too.
pub(super) struct Einsum;

impl Rule for Einsum {
    fn ops(&self) -> &'static [&'static str] {
        &["Einsum"]
    }

    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        if let Some(letters) = Letters::from_node(at) {
            let operand = 1 - letters.slot;
            let affine = at.only(inputs, operand)?;
            return match letters.check(at, affine, Side::Operand(operand)) {
                Ok(()) => Ok(Step::taken(Side::Operand(operand), affine.clone())),
                Err(reason) => letters
                    .passed(at, affine)
                    .map(|passed| Step::pass_on(0, passed))
                    .ok_or(reason),
            };
        }
        if let Some((slot, factor)) = Letters::factor(at, inputs) {
            return Ok(Step::into_factor(slot, factor));
        }
        let rank = at.output_rank(0)?;
        let mut all = Affine::identity(rank);
        for affine in inputs.iter().flatten() {
            match number(affine, rank) {
                Ok(number) => all = all.then(&number),
                Err(reason) => {
                    let passed = Letters::product(at, inputs, rank);
                    return passed.map(|passed| Step::pass_on(0, passed)).ok_or(reason);
                }
            }
        }
        match (0..at.arity()).find(|&slot| at.weight(slot).is_ok()) {
            Some(slot) => {
                let inner = number(&all, at.rank(slot)?)?;
                Ok(Step::taken(Side::Constant(slot), inner))
            }
            None => Ok(Step::pass_on(0, all)),
        }
    }

    fn backward(&self, at: &At, _: usize, affine: &Affine) -> Result<Step, Reason> {
        if let Some(letters) = Letters::from_node(at) {
            return match letters.check(at, affine, Side::Result) {
                Ok(()) => Ok(Step::taken(Side::Result, affine.clone())),
                Err(reason) => letters
                    .pulled(at, affine)
                    .map(|pulled| Step::pass_on(1 - letters.slot, pulled))
                    .ok_or(reason),
            };
        }
        // Constants come first, because a constant absorbs the affine, while a varying operand only
        // passes it on.
        let (constants, varying): (Vec<usize>, Vec<usize>) =
            (0..at.arity()).partition(|&slot| at.is_constant(slot));
        let slots = constants.into_iter().chain(varying);
        let ways: Vec<_> = slots
            .filter_map(|slot| Some(vec![(slot, on_operand(at, slot, affine)?)]))
            .collect();
        if ways.is_empty() {
            Err(Reason::WrongAxis)
        } else {
            Ok(Step {
                ways,
                ..Step::default()
            })
        }
    }
}

/// Converts an affine of the result to one of the operand `slot`. `None` if the affine is not a
/// scalar scale, and the operand lacks a letter along which it varies.
fn on_operand(at: &At, slot: usize, affine: &Affine) -> Option<Affine> {
    let number = at.rank(slot).and_then(|rank| number(affine, rank));
    number
        .ok()
        .or_else(|| Letters::beside(at, other_of_two(slot)?)?.pulled(at, affine))
}

/// Returns the index of the other operand among the first two. `None` if `slot` is a later operand.
fn other_of_two(slot: usize) -> Option<usize> {
    1_usize.checked_sub(slot)
}

/// Converts an affine that multiplies by one scalar to rank `rank`. An error for any other affine.
fn number(affine: &Affine, rank: usize) -> Result<Affine, Reason> {
    let scale: Option<Numbers> = affine
        .scale
        .reshape(&vec![1; rank])
        .filter(|_| affine.is_number());
    scale.map(Affine::scale).ok_or(Reason::WrongAxis)
}

/// The equation of a value and a weight, with a letter for each axis.
struct Letters {
    operand: Vec<char>,
    weight: Vec<char>,
    result: Vec<char>,
    /// The index of the input that is the weight.
    slot: usize,
}

impl Letters {
    /// Reads the equation of a node. `None` if the operands are not one value and one weight, or if
    /// the equation does more than multiply and sum along axes.
    fn from_node(at: &At) -> Option<Self> {
        let slot = at.constant_operand()?;
        let letters = Self::beside(at, slot).filter(|_| !at.is_constant(1 - slot))?;
        // Requires equal extents, because an axis of extent 1 may be broadcast along its letter.
        let extents = at.extents(slot).ok()?;
        let is_whole = letters.weight.iter().zip(&extents).all(|(letter, &count)| {
            let axis = letters.operand.iter().position(|other| other == letter);
            axis.is_none_or(|axis| at.places(1 - slot, axis) == Ok(count))
        });
        is_whole.then_some(letters)
    }

    /// Converts the affine of one operand to one of the other operand. Returns the index of that
    /// other operand, and the affine. `None` unless only one operand has an affine, which scales
    /// along one summed letter.
    fn factor(at: &At, inputs: &[Option<Affine>]) -> Option<(usize, Affine)> {
        let slot = (0..2).find(|&slot| inputs.get(1 - slot).is_some_and(Option::is_some))?;
        let affine = at.only(inputs, 1 - slot).ok()?;
        let letters = Self::beside(at, slot)?;
        let [axis] = affine.axes()[..] else {
            return None;
        };
        let letter = letters.operand[axis];
        let there = position(&letters.weight, letter)?;
        let count = affine.scale.len();
        let is_contracted = !letters.result.contains(&letter);
        let is_whole =
            at.places(1 - slot, axis) == Ok(count) && at.places(slot, there) == Ok(count);
        if !affine.has_no_shift() || !is_contracted || !is_whole {
            return None;
        }
        let mut shape = vec![1; letters.weight.len()];
        shape[there] = count;
        Some((slot, Affine::scale(affine.scale.reshape(&shape)?)))
    }

    /// Reads the equation of a node with two operands, where `slot` takes the place of the weight
    /// but need not be constant. `None` if the equation does more than multiply and sum along axes.
    fn beside(at: &At, slot: usize) -> Option<Self> {
        if at.arity() != 2 {
            return None;
        }
        let ranks = [0, 1].map(|slot| at.rank(slot).ok());
        let Equation { operands, result } =
            Equation::read(at.attr_text("equation", "").ok()?, &ranks)?;
        let [first, second] = <[_; 2]>::try_from(operands).ok()?;
        let (operand, weight) = if slot == 1 {
            (first, second)
        } else {
            (second, first)
        };
        let are_distinct = is_once(&operand) && is_once(&weight) && is_once(&result);
        if !are_distinct || ranks.contains(&None) {
            return None;
        }
        // The operand may have summed letters that the weight lacks, but not the reverse.
        let is_summed = weight
            .iter()
            .all(|letter| result.contains(letter) || operand.contains(letter));
        let is_made = result
            .iter()
            .all(|letter| operand.contains(letter) || weight.contains(letter));
        (is_summed && is_made).then_some(Self {
            operand,
            weight,
            result,
            slot,
        })
    }

    /// Converts an affine of the operand to one of the result, if the result has every letter along
    /// which the affine varies.
    fn passed(&self, at: &At, affine: &Affine) -> Option<Affine> {
        moved(affine, &self.operand, &self.result)
            .filter(|_| affine.has_no_shift() || self.mixes(at))
    }

    /// Converts an affine of the result to one of the operand, if the operand has every letter
    /// along which the affine varies.
    fn pulled(&self, at: &At, affine: &Affine) -> Option<Affine> {
        moved(affine, &self.result, &self.operand)
            .filter(|_| affine.has_no_shift() || self.mixes(at))
    }

    /// Whether a shift of the operand reaches the result unchanged, because the other operand is
    /// row-stochastic along the only contracted letter.
    fn mixes(&self, at: &At) -> bool {
        let mut summed = self
            .summed()
            .filter(|_| self.summed_alone().next().is_none());
        let along = summed.next().filter(|_| summed.next().is_none());
        along.is_some_and(|axis| add_up_to_one(at, self.slot, axis))
    }

    /// Computes the result for a constant in place of the operand, as a matrix product. Letters of
    /// the result that only the operand has are the rows, those that only the weight has are the
    /// columns, and those that both have are batch axes.
    fn product_of(&self, constant: &Recipe, weight: &Recipe) -> Option<Recipe> {
        let (kept, summed): (Vec<char>, Vec<char>) = self
            .weight
            .iter()
            .partition(|letter| self.result.contains(letter));
        let (batch, columns): (Vec<char>, Vec<char>) = kept
            .iter()
            .partition(|letter| self.operand.contains(letter));
        let mut rows = self.operand.clone();
        rows.retain(|letter| self.result.contains(letter) && !self.weight.contains(letter));
        let left = arranged(
            constant,
            &self.operand,
            &[&batch[..], &rows, &summed].concat(),
        );
        let right = arranged(
            weight,
            &self.weight,
            &[&batch[..], &summed, &columns].concat(),
        );
        let (left, right) = (left.ok()?, right.ok()?);
        let batches = batch.len();
        let of_rows = &left.shape()[batches..batches + rows.len()];
        let (of_summed, of_columns) = right.shape()[batches..].split_at(summed.len());
        let whole = left.expand(&[&left.shape()[..batches], of_rows, of_summed].concat())?;
        let contracted = of_summed.iter().product();
        let left = matrices(&whole, batches, [of_rows.iter().product(), contracted])?;
        let right_matrices = matrices(&right, batches, [contracted, of_columns.iter().product()])?;
        let product = left.product(&right_matrices)?;
        let apart =
            product.reshape(&[&product.shape()[..batches], of_rows, of_columns].concat())?;
        arranged(
            &apart,
            &[&batch[..], &rows, &columns].concat(),
            &self.result,
        )
        .ok()
    }

    /// Composes the scales of both operands into an affine of the result. A shift is possible only
    /// if one of the operands has no affine. `None` if an affine does not pass to the result.
    fn product(at: &At, inputs: &[Option<Affine>], rank: usize) -> Option<Affine> {
        let is_only = inputs.iter().flatten().count() == 1;
        let mut product = Affine::identity(rank);
        for (slot, affine) in inputs.iter().enumerate() {
            let Some(affine) = affine else { continue };
            if !is_only && !affine.has_no_shift() {
                return None;
            }
            let letters = Self::beside(at, other_of_two(slot)?)?;
            product = product.then(&letters.passed(at, affine)?);
        }
        Some(product)
    }

    /// Checks that the weight has all letters along which the scale of an affine varies, and that
    /// the image of the shift is known and not too large.
    fn check(&self, at: &At, affine: &Affine, side: Side) -> Result<(), Reason> {
        at.weight(self.slot)?;
        let is_operand = matches!(side, Side::Operand(_));
        let letters = if is_operand {
            &self.operand
        } else {
            &self.result
        };
        let axes = Affine::scale(affine.scale.clone()).axes();
        if affine.rank() != letters.len()
            || !axes
                .iter()
                .all(|&axis| self.weight.contains(&letters[axis]))
        {
            return Err(Reason::WrongAxis);
        }
        if affine.has_no_shift() {
            return Ok(());
        }
        if is_operand {
            self.times(at, &affine.shift)?;
        }
        let weight = at.extents(self.slot)?;
        let mut size: usize = 1;
        for &letter in &self.result {
            let of_shift = position(letters, letter).map_or(1, |axis| affine.shift.shape()[axis]);
            let of_weight = position(&self.weight, letter).map_or(1, |axis| weight[axis]);
            let extent = if is_operand {
                of_shift.max(of_weight)
            } else {
                of_shift
            };
            size = size.saturating_mul(extent);
        }
        if size > LARGEST {
            Err(Reason::TooLarge(size))
        } else {
            Ok(())
        }
    }

    /// The axes of the weight whose letters are summed.
    fn summed(&self) -> impl Iterator<Item = usize> {
        (0..self.weight.len()).filter(|&axis| !self.result.contains(&self.weight[axis]))
    }

    /// The axes of the operand whose letters are summed and absent from the weight.
    fn summed_alone(&self) -> impl Iterator<Item = usize> {
        (0..self.operand.len()).filter(|&axis| {
            let letter = &self.operand[axis];
            !self.result.contains(letter) && !self.weight.contains(letter)
        })
    }

    /// The number of times that each element of the shift occurs in the sum. This is the product of
    /// the extents of the summed letters that the weight lacks and along which the shift is
    /// constant.
    fn times(&self, at: &At, shift: &Numbers) -> Result<f64, Reason> {
        let same = self.summed_alone().filter(|&axis| shift.shape()[axis] == 1);
        same.map(|axis| Ok(at.places(1 - self.slot, axis)? as f64))
            .product()
    }
}

/// The axis that a letter denotes.
fn position(letters: &[char], letter: char) -> Option<usize> {
    letters.iter().position(|&other| other == letter)
}

/// Reshapes a recipe to a stack of matrices after its batch axes.
fn matrices(recipe: &Recipe, batches: usize, matrix: [usize; 2]) -> Option<Recipe> {
    recipe.reshape(&[&recipe.shape()[..batches], &matrix].concat())
}

/// Rearranges an affine from the letters `from` to the letters `to`. `None` if `to` lacks a letter
/// along which the affine varies.
fn moved(affine: &Affine, from: &[char], to: &[char]) -> Option<Affine> {
    let axes = affine.axes();
    let places = axes.iter().map(|&axis| position(to, *from.get(axis)?));
    let places: Vec<usize> = places.collect::<Option<_>>()?;
    affine.placed(&axes, &places, to.len())
}

/// Rearranges a recipe from the letters `from` to the letters `to`. A letter that `from` lacks gets
/// extent 1. A letter that `to` lacks must have extent 1.
fn arranged(recipe: &Recipe, from: &[char], to: &[char]) -> Result<Recipe, Reason> {
    let places: Vec<Option<usize>> = to.iter().map(|&letter| position(from, letter)).collect();
    let extents = places
        .iter()
        .map(|place| place.map_or(1, |axis| recipe.shape()[axis]));
    let shape: Vec<usize> = extents.collect();
    let dropped = (0..from.len()).filter(|&axis| !to.contains(&from[axis]));
    let perm: Vec<usize> = places.into_iter().flatten().chain(dropped).collect();
    recipe
        .transpose(&perm)
        .and_then(|turned| turned.reshape(&shape))
        .ok_or(Reason::WrongAxis)
}

impl Linear for Einsum {
    fn slots(&self, at: &At) -> Result<Slots, Reason> {
        let letters = Letters::from_node(at).ok_or_else(|| at.not_linear())?;
        Ok(Slots {
            weight: Some(letters.slot),
            bias: None,
        })
    }

    fn scaled(
        &self,
        at: &At,
        weight: &Recipe,
        side: Side,
        scale: &Numbers,
    ) -> Result<Recipe, Reason> {
        let letters = Letters::from_node(at).ok_or_else(|| at.not_linear())?;
        let from = if matches!(side, Side::Operand(_)) {
            &letters.operand
        } else {
            &letters.result
        };
        let scaled = weight.mul(&arranged(scale.recipe(), from, &letters.weight)?);
        scaled
            .filter(|scaled| scaled.shape() == weight.shape())
            .ok_or(Reason::WrongAxis)
    }

    fn contracted(&self, at: &At) -> Result<Vec<usize>, Reason> {
        let letters = Letters::from_node(at).ok_or_else(|| at.not_linear())?;
        Ok(letters.summed().collect())
    }

    fn image(
        &self,
        at: &At,
        weight: Option<&Recipe>,
        _: usize,
        shift: &Numbers,
    ) -> Result<Recipe, Reason> {
        let letters = Letters::from_node(at).ok_or_else(|| at.not_linear())?;
        let weight = weight.ok_or(Reason::NotConstant)?;
        let times = Recipe::number(letters.times(at, shift)?, 0);
        let mut summed = shift.recipe().mul(&times).ok_or(Reason::UnknownShape)?;
        for axis in letters
            .summed_alone()
            .filter(|&axis| shift.shape()[axis] != 1)
        {
            summed = summed.sum(axis).ok_or(Reason::UnknownShape)?;
        }
        letters.product_of(&summed, weight).ok_or(Reason::WrongAxis)
    }

    fn read_bias(&self, _: &At, _: Recipe) -> Result<Recipe, Reason> {
        Err(Reason::NotConstant)
    }

    fn write_bias(&self, _: &At, _: &Recipe) -> Option<Recipe> {
        None
    }
}
