//! Einsum: of a value and a weight, as JAX and Keras write their dense layers, and of other operands.
//!
//! `y[o] = Σ x[i]·W[w]`, an index for each letter. What varies along letters of the weight alone can be multiplied into
//! it, from either side. A shift `t` adds `Σ t[i]·W[w]`. With other operands each product has one factor of every
//! operand, so that a number on one is a number on the result.

use super::{Linear, Slots};
use crate::affine::Affine;
use crate::fold::shares::add_up_to_one;
use crate::fold::{At, Rule, Side, Step};
use crate::graph::equation::{Equation, is_once};
use crate::recipe::{Numbers, Recipe};
use crate::refusal::Reason;

/// Einsum, which takes a number into any constant among its operands, and more into the only one beside a value.
pub struct Einsum;

impl Rule for Einsum {
    fn ops(&self) -> &'static [&'static str] {
        &["Einsum"]
    }

    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        if let Some(letters) = Letters::of(at) {
            let operand = 1 - letters.slot;
            let affine = at.only(inputs, operand)?;
            return match letters.check(at, affine, &letters.operand) {
                Ok(()) => Ok(Step::taken(Side::Operand(operand), affine.clone())),
                Err(reason) => letters.passed(at, affine).map(|passed| Step::go_on(0, passed)).ok_or(reason),
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
                    return passed.map(|passed| Step::go_on(0, passed)).ok_or(reason);
                }
            }
        }
        match (0..at.arity()).find(|&slot| at.weight(slot).is_ok()) {
            Some(slot) => {
                let inner = number(&all, at.rank(slot)?)?;
                Ok(Step::taken(Side::Constant(slot), inner))
            }
            None => Ok(Step::go_on(0, all)),
        }
    }

    fn backward(&self, at: &At, _: usize, affine: &Affine) -> Result<Step, Reason> {
        if let Some(letters) = Letters::of(at) {
            return match letters.check(at, affine, &letters.result) {
                Ok(()) => Ok(Step::taken(Side::Result, affine.clone())),
                Err(reason) => letters
                    .pulled(at, affine)
                    .map(|pulled| Step::go_on(1 - letters.slot, pulled))
                    .ok_or(reason),
            };
        }
        let pulled = |slot: usize| Letters::beside(at, 1usize.checked_sub(slot)?)?.pulled(at, affine);
        let one = |slot: usize| number(affine, at.rank(slot).ok()?).ok();
        let on = |slot: usize| Some(vec![(slot, one(slot).or_else(|| pulled(slot))?)]);
        let constants_first = (0..at.arity()).filter(|&slot| at.is_constant(slot));
        let all = constants_first.chain((0..at.arity()).filter(|&slot| !at.is_constant(slot)));
        let ways: Vec<_> = all.filter_map(on).collect();
        if ways.is_empty() { Err(Reason::WrongAxis) } else { Ok(Step { ways, ..Step::default() }) }
    }
}

/// A scale by one number, on a value of another rank.
fn number(affine: &Affine, rank: usize) -> Result<Affine, Reason> {
    let scale: Option<Numbers> = affine.scale.reshape(&vec![1; rank]).filter(|_| affine.is_number());
    scale.map(Affine::scale).ok_or(Reason::WrongAxis)
}

/// The equation of a value and a weight: a letter for each axis.
struct Letters {
    operand: Vec<char>,
    weight: Vec<char>,
    result: Vec<char>,
    /// The input that is the weight.
    slot: usize,
}

impl Letters {
    /// `None` where there are other operands, or the equation says more than which axes are multiplied and added up.
    fn of(at: &At) -> Option<Self> {
        let slot = at.constant_operand()?;
        let letters = Self::beside(at, slot).filter(|_| !at.is_constant(1 - slot))?;
        // An axis of extent 1 may be as long as another one of its letter.
        let extents = at.extents(slot).ok()?;
        let is_whole = letters.weight.iter().zip(&extents).all(|(letter, &count)| {
            let axis = letters.operand.iter().position(|other| other == letter);
            axis.is_none_or(|axis| at.places(1 - slot, axis) == Ok(count))
        });
        is_whole.then_some(letters)
    }

    /// A scale of the only operand that carries anything, as one on the other operand, along a letter that is added up.
    fn factor(at: &At, inputs: &[Option<Affine>]) -> Option<(usize, Affine)> {
        let slot = (0..2).find(|&slot| inputs.get(1 - slot).is_some_and(Option::is_some))?;
        let affine = at.only(inputs, 1 - slot).ok().filter(|affine| affine.has_no_shift())?;
        let letters = Self::beside(at, slot)?;
        let [axis] = affine.axes()[..] else { return None };
        let there = letters.weight.iter().position(|letter| *letter == letters.operand[axis])?;
        let (count, mut shape) = (affine.scale.len(), vec![1; letters.weight.len()]);
        shape[there] = count;
        let is_whole =
            [(1 - slot, axis), (slot, there)].iter().all(|&(slot, axis)| at.places(slot, axis) == Ok(count));
        let is_summed = is_whole && !letters.result.contains(&letters.operand[axis]);
        Some((slot, Affine::scale(affine.scale.reshape(&shape).filter(|_| is_summed)?)))
    }

    /// The same for two operands of which this one may vary as well.
    fn beside(at: &At, slot: usize) -> Option<Self> {
        if at.arity() != 2 {
            return None;
        }
        let ranks = [0, 1].map(|slot| at.rank(slot).ok());
        let Equation { operands, result } = Equation::read(at.attr_text("equation", "").ok()?, &ranks)?;
        let [first, second] = <[_; 2]>::try_from(operands).ok()?;
        let (operand, weight) = if slot == 1 { (first, second) } else { (second, first) };
        let are_told = [&operand, &weight, &result].into_iter().all(|letters| is_once(letters));
        if !are_told || ranks.contains(&None) {
            return None;
        }
        let is_summed_in_both = |letter: &char| operand.contains(letter) && weight.contains(letter);
        let is_summed =
            operand.iter().chain(&weight).filter(|letter| !result.contains(letter)).all(is_summed_in_both);
        let is_made = result.iter().all(|letter| operand.contains(letter) || weight.contains(letter));
        (is_summed && is_made).then_some(Self { operand, weight, result, slot })
    }

    /// An affine along letters of the operand that the result has as well, as one on the result: each product has one factor
    /// of the operand.
    fn passed(&self, at: &At, affine: &Affine) -> Option<Affine> {
        moved(affine, &self.operand, &self.result).filter(|_| affine.has_no_shift() || self.mixes(at))
    }

    /// The other way: an affine that is wanted on the result, as one on the operand.
    fn pulled(&self, at: &At, affine: &Affine) -> Option<Affine> {
        moved(affine, &self.result, &self.operand).filter(|_| affine.has_no_shift() || self.mixes(at))
    }

    /// Whether the result takes what is added to the operand along the only letter that is added up: the other operand has
    /// shares.
    fn mixes(&self, at: &At) -> bool {
        let mut summed = self.summed();
        let along = summed.next().filter(|_| summed.next().is_none());
        along.is_some_and(|axis| add_up_to_one(at, self.slot, axis))
    }

    /// The scales of both operands on the result, of this rank, or the affine of one.
    fn product(at: &At, inputs: &[Option<Affine>], rank: usize) -> Option<Affine> {
        let carried = inputs.iter().enumerate().filter_map(|(slot, affine)| Some((slot, affine.as_ref()?)));
        let is_only = inputs.iter().flatten().count() == 1;
        let passed = |(slot, affine): (usize, &Affine)| {
            let letters = Self::beside(at, 1usize.checked_sub(slot)?)?;
            letters.passed(at, affine).filter(|_| is_only || affine.has_no_shift())
        };
        carried.map(passed).try_fold(Affine::identity(rank), |all, affine| Some(all.then(&affine?)))
    }

    /// Whether the weight has what an affine varies along, on a value of these letters.
    fn check(&self, at: &At, affine: &Affine, letters: &[char]) -> Result<(), Reason> {
        at.weight(self.slot)?;
        let is_known = affine.rank() == letters.len();
        let is_there = |&axis: &usize| self.weight.contains(&letters[axis]);
        if is_known && affine.axes().iter().all(is_there) { Ok(()) } else { Err(Reason::WrongAxis) }
    }

    /// Letters of the weight that are added up.
    fn summed(&self) -> impl Iterator<Item = usize> {
        (0..self.weight.len()).filter(|&axis| !self.result.contains(&self.weight[axis]))
    }
}

/// An affine over some letters as one over others, which must have those that it varies along.
fn moved(affine: &Affine, from: &[char], to: &[char]) -> Option<Affine> {
    let axes = affine.axes();
    let place = |&axis: &usize| to.iter().position(|letter| Some(letter) == from.get(axis));
    let places: Vec<usize> = axes.iter().map(place).collect::<Option<_>>()?;
    affine.placed(&axes, &places, to.len())
}

/// A recipe over some letters as one over others; along those that it lacks it has extent 1, and so it must along those
/// that go.
fn arranged(recipe: &Recipe, from: &[char], to: &[char]) -> Result<Recipe, Reason> {
    let place = |letter: &char| from.iter().position(|other| other == letter);
    let mut perm: Vec<usize> = to.iter().filter_map(place).collect();
    let shape: Vec<usize> =
        to.iter().map(|letter| place(letter).map_or(1, |axis| recipe.shape()[axis])).collect();
    perm.extend((0..from.len()).filter(|&axis| !to.contains(&from[axis])));
    recipe.transpose(&perm).and_then(|turned| turned.reshape(&shape)).ok_or(Reason::WrongAxis)
}

impl Linear for Einsum {
    fn slots(&self, at: &At) -> Result<Slots, Reason> {
        let letters = Letters::of(at).ok_or_else(|| at.not_linear())?;
        Ok(Slots { weight: Some(letters.slot), bias: None })
    }

    fn scaled(&self, at: &At, weight: &Recipe, side: Side, scale: &Numbers) -> Result<Recipe, Reason> {
        let letters = Letters::of(at).ok_or_else(|| at.not_linear())?;
        let from = if matches!(side, Side::Operand(_)) { &letters.operand } else { &letters.result };
        let scaled = weight.mul(&arranged(scale.recipe(), from, &letters.weight)?);
        scaled.filter(|scaled| scaled.shape() == weight.shape()).ok_or(Reason::WrongAxis)
    }

    fn contracted(&self, at: &At) -> Result<Vec<usize>, Reason> {
        let letters = Letters::of(at).ok_or_else(|| at.not_linear())?;
        Ok(letters.summed().collect())
    }

    fn image(&self, at: &At, weight: Option<&Recipe>, _: usize, shift: &Numbers) -> Result<Recipe, Reason> {
        let letters = Letters::of(at).ok_or_else(|| at.not_linear())?;
        let weight = weight.ok_or(Reason::NotConstant)?;
        let summed: Vec<char> = letters.summed().map(|axis| letters.weight[axis]).collect();
        let all = [&letters.result[..], &summed].concat();
        let shift = arranged(shift.recipe(), &letters.operand, &all)?;
        let mut image = shift.mul(&arranged(weight, &letters.weight, &all)?).ok_or(Reason::WrongAxis)?;
        for axis in letters.result.len()..all.len() {
            image = image.sum(axis).ok_or(Reason::UnknownShape)?;
        }
        image.reshape(&image.shape()[..letters.result.len()]).ok_or(Reason::UnknownShape)
    }

    fn read_bias(&self, _: &At, _: Recipe) -> Result<Recipe, Reason> {
        Err(Reason::NotConstant)
    }

    fn write_bias(&self, _: &At, _: &Recipe) -> Option<Recipe> {
        None
    }
}
