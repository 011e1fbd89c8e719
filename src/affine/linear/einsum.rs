//! Einsum: of a value and a weight, as JAX and Keras write their dense layers, and of other operands.
//!
//! `y[o] = Σ x[i]·W[w]`, an index for each letter. A scale along letters of the weight alone can be multiplied into it,
//! from either side, and one along letters that are not added up is the same on both sides. A shift `t` adds `Σ t[i]·W[w]`,
//! along whatever letters it varies. With other operands each product has one factor of every operand, so that a number
//! on one is a number on the result.

use crate::affine::Affine;
use crate::affine::fold::{At, Rule, Side, Step};
use crate::affine::linear::{Linear, Slots};
use crate::affine::row_stochastic::add_up_to_one;
use crate::analysis::broadcast::LARGEST;
use crate::ir::equation::{Equation, is_once};
use crate::recipe::{Numbers, Recipe};
use crate::refusal::Reason;

/// Einsum, which takes a number into any constant among its operands, and more into the only one beside a value.
pub struct Einsum;

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
        let pulled =
            |slot: usize| Letters::beside(at, 1usize.checked_sub(slot)?)?.pulled(at, affine);
        let one = |slot: usize| number(affine, at.rank(slot).ok()?).ok();
        let on = |slot: usize| Some(vec![(slot, one(slot).or_else(|| pulled(slot))?)]);
        let constants_first = (0..at.arity()).filter(|&slot| at.is_constant(slot));
        let all = constants_first.chain((0..at.arity()).filter(|&slot| !at.is_constant(slot)));
        let ways: Vec<_> = all.filter_map(on).collect();
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

/// A scale by one number, on a value of another rank.
fn number(affine: &Affine, rank: usize) -> Result<Affine, Reason> {
    let scale: Option<Numbers> = affine
        .scale
        .reshape(&vec![1; rank])
        .filter(|_| affine.is_number());
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
    fn from_node(at: &At) -> Option<Self> {
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
        let affine = at
            .only(inputs, 1 - slot)
            .ok()
            .filter(|affine| affine.has_no_shift())?;
        let letters = Self::beside(at, slot)?;
        let [axis] = affine.axes()[..] else {
            return None;
        };
        let there = letters
            .weight
            .iter()
            .position(|letter| *letter == letters.operand[axis])?;
        let (count, mut shape) = (affine.scale.len(), vec![1; letters.weight.len()]);
        shape[there] = count;
        let is_whole = [(1 - slot, axis), (slot, there)]
            .iter()
            .all(|&(slot, axis)| at.places(slot, axis) == Ok(count));
        let is_summed = is_whole && !letters.result.contains(&letters.operand[axis]);
        Some((
            slot,
            Affine::scale(affine.scale.reshape(&shape).filter(|_| is_summed)?),
        ))
    }

    /// For two operands, of which this one may vary as well.
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
        let are_told = [&operand, &weight, &result]
            .into_iter()
            .all(|letters| is_once(letters));
        if !are_told || ranks.contains(&None) {
            return None;
        }
        // The operand may be added up along letters of its own.
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

    /// An affine along letters of the operand that the result has as well, as one on the result: each product has one factor
    /// of the operand.
    fn passed(&self, at: &At, affine: &Affine) -> Option<Affine> {
        moved(affine, &self.operand, &self.result)
            .filter(|_| affine.has_no_shift() || self.mixes(at))
    }

    /// The other way: an affine that is wanted on the result, as one on the operand.
    fn pulled(&self, at: &At, affine: &Affine) -> Option<Affine> {
        moved(affine, &self.result, &self.operand)
            .filter(|_| affine.has_no_shift() || self.mixes(at))
    }

    /// Whether a summand of the operand along the only contracted letter passes to the result: the
    /// other operand is row-stochastic.
    fn mixes(&self, at: &At) -> bool {
        let mut summed = self
            .summed()
            .filter(|_| self.summed_alone().next().is_none());
        let along = summed.next().filter(|_| summed.next().is_none());
        along.is_some_and(|axis| add_up_to_one(at, self.slot, axis))
    }

    /// The result for a constant in place of the operand, as a matrix product: rows are the letters
    /// of the operand alone, columns those of the weight alone, and common letters are batch axes.
    fn product_of(&self, constant: &Recipe, weight: &Recipe) -> Option<Recipe> {
        let of = |letters: &[char], wanted: &dyn Fn(&char) -> bool| -> Vec<char> {
            letters.iter().copied().filter(wanted).collect()
        };
        let goes_on = |letter: &char| self.result.contains(letter);
        let batch = of(&self.weight, &|letter| {
            goes_on(letter) && self.operand.contains(letter)
        });
        let summed = of(&self.weight, &|letter| !goes_on(letter));
        let rows = of(&self.operand, &|letter| {
            goes_on(letter) && !self.weight.contains(letter)
        });
        let columns = of(&self.weight, &|letter| {
            goes_on(letter) && !self.operand.contains(letter)
        });
        let left = arranged(
            constant,
            &self.operand,
            &[&batch[..], &rows, &summed].concat(),
        )
        .ok()?;
        let right = arranged(
            weight,
            &self.weight,
            &[&batch[..], &summed, &columns].concat(),
        )
        .ok()?;
        let both = batch.len();
        let (lengths, wide) = (
            &left.shape()[both..both + rows.len()],
            right.shape()[both..].split_at(summed.len()),
        );
        let whole = left.expand(&[&left.shape()[..both], lengths, wide.0].concat())?;
        let size = |extents: &[usize]| extents.iter().product::<usize>();
        let matrix = |recipe: &Recipe, matrix: [usize; 2]| {
            recipe.reshape(&[&recipe.shape()[..both], &matrix].concat())
        };
        let left = matrix(&whole, [size(lengths), size(wide.0)])?;
        let product = left.product(&matrix(&right, [size(wide.0), size(wide.1)])?)?;
        let apart = product.reshape(&[&product.shape()[..both], lengths, wide.1].concat())?;
        arranged(
            &apart,
            &[&batch[..], &rows, &columns].concat(),
            &self.result,
        )
        .ok()
    }

    /// The scales of both operands on the result, of this rank, or the affine of one.
    fn product(at: &At, inputs: &[Option<Affine>], rank: usize) -> Option<Affine> {
        let carried = inputs
            .iter()
            .enumerate()
            .filter_map(|(slot, affine)| Some((slot, affine.as_ref()?)));
        let is_only = inputs.iter().flatten().count() == 1;
        let passed = |(slot, affine): (usize, &Affine)| {
            let letters = Self::beside(at, 1usize.checked_sub(slot)?)?;
            letters
                .passed(at, affine)
                .filter(|_| is_only || affine.has_no_shift())
        };
        carried
            .map(passed)
            .try_fold(Affine::identity(rank), |all, affine| {
                Some(all.then(&affine?))
            })
    }

    /// Whether the weight has what the scale of an affine varies along, and what its shift adds is known and no more than is
    /// worth keeping.
    fn check(&self, at: &At, affine: &Affine, side: Side) -> Result<(), Reason> {
        at.weight(self.slot)?;
        let is_operand = matches!(side, Side::Operand(_));
        let letters = if is_operand {
            &self.operand
        } else {
            &self.result
        };
        let scale = Affine::scale(affine.scale.clone());
        let is_there = |&axis: &usize| self.weight.contains(&letters[axis]);
        if affine.rank() != letters.len() || !scale.axes().iter().all(is_there) {
            return Err(Reason::WrongAxis);
        }
        if affine.has_no_shift() {
            return Ok(());
        }
        if is_operand {
            self.times(at, &affine.shift)?;
        }
        let weight = at.extents(self.slot)?;
        let along = |letter: &char| {
            let there = letters.iter().position(|other| other == letter);
            let own = self
                .weight
                .iter()
                .position(|other| other == letter)
                .filter(|_| is_operand);
            there
                .map_or(1, |axis| affine.shift.shape()[axis])
                .max(own.map_or(1, |axis| weight[axis]))
        };
        match self.result.iter().map(along).fold(1, usize::saturating_mul) {
            size if size > LARGEST => Err(Reason::TooLarge(size)),
            _ => Ok(()),
        }
    }

    /// Letters of the weight that are added up.
    fn summed(&self) -> impl Iterator<Item = usize> {
        (0..self.weight.len()).filter(|&axis| !self.result.contains(&self.weight[axis]))
    }

    /// Letters of the operand that are added up and that the weight does not have.
    fn summed_alone(&self) -> impl Iterator<Item = usize> {
        let goes_on = |letter: &char| self.result.contains(letter) || self.weight.contains(letter);
        (0..self.operand.len()).filter(move |&axis| !goes_on(&self.operand[axis]))
    }

    /// How many places of the operand are added up along which a shift is the same.
    fn times(&self, at: &At, shift: &Numbers) -> Result<f64, Reason> {
        let same = self.summed_alone().filter(|&axis| shift.shape()[axis] == 1);
        same.map(|axis| Ok(at.places(1 - self.slot, axis)? as f64))
            .product()
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
    let shape: Vec<usize> = to
        .iter()
        .map(|letter| place(letter).map_or(1, |axis| recipe.shape()[axis]))
        .collect();
    perm.extend((0..from.len()).filter(|&axis| !to.contains(&from[axis])));
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
