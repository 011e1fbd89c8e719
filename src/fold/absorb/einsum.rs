//! Einsum: of a value and a weight, as JAX and Keras write their dense layers, and of other operands.
//!
//! `y[o] = Σ x[i]·W[w]`, an index for each letter. What varies along letters of the weight alone can be multiplied into
//! it, from either side. A shift `t` adds `Σ t[i]·W[w]`. With other operands each product has one factor of every
//! operand, so that a number on one is a number on the result.

use super::{Linear, Slots};
use crate::affine::Affine;
use crate::fold::{At, Rule, Side, Step};
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
            letters.check(at, affine, &letters.operand)?;
            return Ok(Step::taken(Side::Operand(operand), affine.clone()));
        }
        let rank = at.output_rank(0)?;
        let mut all = Affine::identity(rank);
        for affine in inputs.iter().flatten() {
            all = all.then(&number(affine, rank)?);
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
            letters.check(at, affine, &letters.result)?;
            return Ok(Step::taken(Side::Result, affine.clone()));
        }
        let on = |slot: usize| Some(vec![(slot, number(affine, at.rank(slot).ok()?).ok()?)]);
        let constants_first = (0..at.arity()).filter(|&slot| at.is_constant(slot));
        let all = constants_first.chain((0..at.arity()).filter(|&slot| !at.is_constant(slot)));
        let ways: Vec<_> = all.filter_map(on).collect();
        if ways.is_empty() { Err(Reason::WrongAxis) } else { Ok(Step { ways, ..Step::default() }) }
    }
}

/// A scale by one number, on a value of another rank.
fn number(affine: &Affine, rank: usize) -> Result<Affine, Reason> {
    let is_number = affine.scale.len() == 1 && affine.has_no_shift();
    let scale: Option<Numbers> = affine.scale.reshape(&vec![1; rank]).filter(|_| is_number);
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
        let slot = [1, 0].into_iter().find(|&slot| at.is_constant(slot))?;
        if at.arity() != 2 || at.is_constant(1 - slot) {
            return None;
        }
        let equation: String =
            at.attr_text("equation", "").ok()?.chars().filter(|letter| !letter.is_whitespace()).collect();
        let (operands, result) = equation.split_once("->")?;
        let (first, second) = operands.split_once(',')?;
        let (operand, weight) = if slot == 1 { (first, second) } else { (second, first) };
        let letters = Self {
            operand: read(operand, at.rank(1 - slot).ok()?)?,
            weight: read(weight, at.rank(slot).ok()?)?,
            result: read(result, at.output_rank(0).ok()?)?,
            slot,
        };
        let Self { operand, weight, result, .. } = &letters;
        let is_summed_in_both = |letter: &char| operand.contains(letter) && weight.contains(letter);
        let is_summed =
            operand.iter().chain(weight).filter(|letter| !result.contains(letter)).all(is_summed_in_both);
        let is_made = result.iter().all(|letter| operand.contains(letter) || weight.contains(letter));
        // An axis of extent 1 may be as long as another one of its letter.
        let extents = at.extents(slot).ok()?;
        let is_whole = weight.iter().zip(&extents).all(|(letter, &count)| {
            let axis = operand.iter().position(|other| other == letter);
            axis.is_none_or(|axis| at.places(1 - slot, axis) == Ok(count))
        });
        (is_summed && is_made && is_whole).then_some(letters)
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

/// The letters of an operand, each there once.
fn read(text: &str, rank: usize) -> Option<Vec<char>> {
    let letters: Vec<char> = text.chars().collect();
    let is_once = |(place, letter): (usize, &char)| !letters[..place].contains(letter);
    let is_plain = letters.iter().all(char::is_ascii_alphabetic);
    (is_plain && letters.len() == rank && letters.iter().enumerate().all(is_once)).then_some(letters)
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
