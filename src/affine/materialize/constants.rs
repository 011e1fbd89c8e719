//! The constants of a linear operator while folds change them.

use crate::affine::Affine;
use crate::affine::linear::Linear;
use crate::affine::rule::{At, Fold, Side};
use crate::recipe::Recipe;
use crate::refusal::Reason;

/// A constant, with its formula after the folds so far.
#[derive(Default)]
pub(super) struct Changing {
    pub(super) now: Option<Recipe>,
    is_changed: bool,
}

impl Changing {
    pub(super) fn new(recipe: Option<Recipe>) -> Self {
        Changing {
            now: recipe,
            is_changed: false,
        }
    }

    pub(super) fn set(&mut self, recipe: Option<Recipe>) -> Result<(), Reason> {
        self.now = Some(recipe.ok_or(Reason::WrongAxis)?);
        self.is_changed = true;
        Ok(())
    }

    pub(super) fn changed(&self) -> Option<&Recipe> {
        self.now.as_ref().filter(|_| self.is_changed)
    }
}

/// The constants of a linear operator, with their formulas after the folds so far.
pub(super) struct FoldedConstants {
    pub(super) weight: Changing,
    /// The bias of the operator itself.
    pub(super) bias: Changing,
    /// The constant of the Add after the operator.
    pub(super) added: Changing,
}

impl FoldedConstants {
    /// Applies one fold to the constants, to which the earlier folds are already applied. A fold of
    /// rows ([`Side::Rows`]) reads the rows of the layer `beside`, or those of the operator itself
    /// if there is no such layer.
    pub(super) fn take(
        &mut self,
        at: &At,
        rules: &dyn Linear,
        fold: &Fold,
        beside: Option<&FoldedConstants>,
    ) -> Result<(), Reason> {
        let Affine { scale, shift } = &fold.affine;
        let shifts = !fold.affine.has_no_shift();
        let scales = !fold.affine.has_no_scale();
        if let Side::Rows { distance, .. } = fold.side {
            return self.take_rows(&rules.contracted(at)?, distance, &fold.affine, beside);
        }
        let is_result = matches!(fold.side, Side::Result);
        // This fold is on the Add after the operator, so only the constant of the Add changes. If
        // the result of the Add is scaled, a separate fold scales the operator.
        if fold.node != at.node {
            let added = self.added.now.clone().ok_or(Reason::NotConstant)?;
            let scaled = if is_result {
                added.mul(scale.recipe())
            } else {
                Some(added)
            };
            return self
                .added
                .set(scaled.and_then(|scaled| scaled.add(shift.recipe())));
        }
        if let Side::Operand(operand) = fold.side
            && shifts
        {
            let image = rules.image(at, self.weight.now.as_ref(), operand, shift)?;
            let bias = match &self.bias.now {
                Some(bias) => bias.add(&image),
                None => Some(image),
            };
            self.bias.set(bias)?;
        }
        if scales && (self.weight.now.is_some() || !is_result) {
            let weight = self.weight.now.as_ref().ok_or(Reason::NotConstant)?;
            let scaled = rules.scaled(at, weight, fold.side, scale)?;
            if scaled.id() != weight.id() {
                self.weight.set(Some(scaled))?;
            }
        }
        if is_result && (self.bias.now.is_some() || shifts) {
            let bias = self
                .bias
                .now
                .clone()
                .unwrap_or_else(|| Recipe::number(0.0, shift.ndim()));
            let scaled = bias.mul(scale.recipe());
            self.bias
                .set(scaled.and_then(|scaled| scaled.add(shift.recipe())))?;
        }
        Ok(())
    }

    /// Adds rows of the operator, or of the layer `beside`, to other rows of the operator, with a
    /// factor for each row. See [`crate::affine::propagate::modulation`].
    fn take_rows(
        &mut self,
        contracted: &[usize],
        distance: i64,
        affine: &Affine,
        beside: Option<&FoldedConstants>,
    ) -> Result<(), Reason> {
        let moves = RowMoves::new(affine, distance)?;
        let weight = self.weight.now.as_ref().ok_or(Reason::NotConstant)?;
        let axis = (0..weight.rank())
            .find(|axis| !contracted.contains(axis))
            .ok_or(Reason::WrongAxis)?;
        let from = beside
            .and_then(|beside| beside.weight.now.as_ref())
            .unwrap_or(weight);
        let is_whole = weight.shape()[axis] == moves.count && from.shape() == weight.shape();
        let mixed = if is_whole {
            moves.added(weight, from, axis)
        } else {
            None
        };
        self.weight.set(mixed)?;
        let mut shifts = match beside {
            Some(beside) => beside.moved_biases(&moves)?,
            None => {
                self.mix_biases(&moves)?;
                vec![]
            }
        };
        if !affine.shift.are_all(0.0) {
            shifts.push(affine.shift.recipe().clone());
        }
        for shift in shifts {
            self.add_to_bias(&shift)?;
        }
        Ok(())
    }

    /// Returns the moved rows of each bias: the bias of the operator, and the constant of the Add
    /// after the operator.
    fn moved_biases(&self, moves: &RowMoves) -> Result<Vec<Recipe>, Reason> {
        let biases = [&self.bias.now, &self.added.now].into_iter().flatten();
        biases
            .map(|bias| moves.moved_bias(bias).ok_or(Reason::WrongAxis))
            .collect()
    }

    /// Adds to each bias its own rows, moved and scaled.
    fn mix_biases(&mut self, moves: &RowMoves) -> Result<(), Reason> {
        for bias in [&mut self.bias, &mut self.added] {
            if let Some(now) = &bias.now {
                let mixed = moves.mixed_bias(now);
                bias.set(mixed)?;
            }
        }
        Ok(())
    }

    /// Adds a shift to the constant of the Add after the operator if there is one, or else to the
    /// bias of the operator.
    fn add_to_bias(&mut self, shift: &Recipe) -> Result<(), Reason> {
        let bias = if self.added.now.is_some() {
            &mut self.added
        } else {
            &mut self.bias
        };
        let now = bias
            .now
            .clone()
            .unwrap_or_else(|| Recipe::number(0.0, shift.rank()));
        bias.set(now.add(shift))
    }
}

/// A move of all rows by the same distance, with one factor for each row.
struct RowMoves {
    count: usize,
    factors: Recipe,
    /// For each row, the index of the row that is moved there, if any.
    sources: Vec<Option<usize>>,
}

impl RowMoves {
    fn new(affine: &Affine, distance: i64) -> Result<Self, Reason> {
        let count = affine.scale.len();
        let factors = affine.scale.recipe().reshape(&[count]);
        Ok(RowMoves {
            count,
            factors: factors.ok_or(Reason::WrongAxis)?,
            sources: (0..count)
                .map(|row| source_of_row(row, distance, count))
                .collect(),
        })
    }

    /// Moves the rows along an axis of a recipe, and multiplies them by their factors.
    fn moved(&self, recipe: &Recipe, axis: usize) -> Option<Recipe> {
        let mut shape = vec![1; recipe.rank()];
        shape[axis] = self.count;
        let factors = self.factors.reshape(&shape)?;
        recipe
            .pick(axis, self.sources.iter().copied())?
            .mul(&factors)
    }

    /// Adds the moved rows of `from` to a recipe.
    fn added(&self, recipe: &Recipe, from: &Recipe, axis: usize) -> Option<Recipe> {
        recipe.add(&self.moved(from, axis)?)
    }

    /// Moves the rows of a bias, which lie along its last axis.
    fn moved_bias(&self, bias: &Recipe) -> Option<Recipe> {
        let bias = self.with_all_rows(bias)?;
        self.moved(&bias, bias.rank() - 1)
    }

    /// Adds the moved rows of a bias to the bias.
    fn mixed_bias(&self, bias: &Recipe) -> Option<Recipe> {
        let bias = self.with_all_rows(bias)?;
        self.added(&bias, &bias, bias.rank() - 1)
    }

    /// Expands the last axis of a bias to one element for each row.
    fn with_all_rows(&self, bias: &Recipe) -> Option<Recipe> {
        let mut shape = bias.shape().to_vec();
        *shape.last_mut()? = self.count;
        bias.expand(&shape)
    }
}

/// The index `row + distance`. `None` if it is before the first row or after the last.
fn source_of_row(row: usize, distance: i64, count: usize) -> Option<usize> {
    let source = i64::try_from(row).ok()?.checked_add(distance)?;
    usize::try_from(source)
        .ok()
        .filter(|&source| source < count)
}
