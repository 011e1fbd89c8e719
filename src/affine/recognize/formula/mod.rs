//! The values of a site as formulas of its input.
//!
//! A formula is a sum of terms with constant coefficients. Each term is a product of factors: `x`,
//! means, and products with a matrix over tokens. The order of the operators does not change the
//! formula, so a kind is a predicate on the formula.

mod coefficient;
mod read;

use std::collections::{BTreeMap, BTreeSet};

use crate::analysis::axis_factors::{AxisFactor, AxisFactors};

pub(super) use coefficient::Coefficient;
use coefficient::LARGEST;
pub(super) use read::{Mixing, Quotient, is_understood, read};

/// A factor of a term of a formula.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Factor {
    /// `x`.
    Input,
    /// The mean of a product over some axis factors.
    Mean(BTreeSet<AxisFactor>, Term),
    /// The matrix `P` times a product.
    Mixed(Term),
}

/// A product of factors, in ascending order.
pub(super) type Term = Vec<Factor>;

impl Factor {
    /// The degree of the factor in `x`.
    fn degree(&self) -> usize {
        match self {
            Factor::Input => 1,
            Factor::Mean(_, inner) | Factor::Mixed(inner) => degree(inner),
        }
    }

    /// Whether the factor varies along an axis factor. A mean over that axis factor does not.
    fn varies_along(&self, along: AxisFactor) -> bool {
        !matches!(self, Factor::Mean(over, _) if over.contains(&along))
    }

    /// Replaces split axis factors by their parts.
    fn settled(&self, atoms: &AxisFactors) -> Factor {
        match self {
            Factor::Input => Factor::Input,
            Factor::Mean(over, inner) => {
                let over: Vec<AxisFactor> = over.iter().copied().collect();
                Factor::Mean(
                    atoms.leaves(&over).into_iter().collect(),
                    settled(inner, atoms),
                )
            }
            Factor::Mixed(inner) => Factor::Mixed(settled(inner, atoms)),
        }
    }
}

/// The degree of a product in `x`.
pub(super) fn degree(term: &[Factor]) -> usize {
    term.iter().map(Factor::degree).sum()
}

fn settled(term: &[Factor], atoms: &AxisFactors) -> Term {
    product(
        &term
            .iter()
            .map(|factor| factor.settled(atoms))
            .collect::<Term>(),
        &[],
    )
}

fn product(left: &[Factor], right: &[Factor]) -> Term {
    let mut product = [left, right].concat();
    product.sort();
    product
}

/// The mean of a product over one axis factor. Factors that do not vary along it stay outside of
/// the mean.
fn mean(term: &[Factor], along: AxisFactor) -> Term {
    let (inside, outside): (Term, Term) = term
        .iter()
        .cloned()
        .partition(|factor| factor.varies_along(along));
    let averaged = match &inside[..] {
        [] => return outside,
        [Factor::Mean(over, inner)] => {
            Factor::Mean(over.iter().copied().chain([along]).collect(), inner.clone())
        }
        _ => Factor::Mean([along].into(), inside),
    };
    product(&outside, &[averaged])
}

/// `scale · Σ coefficient · product of factors`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Formula {
    /// The coefficient of the whole sum. It is kept apart from the coefficients of the terms, so
    /// that a channel with scale 0 keeps its terms.
    pub scale: Coefficient,
    /// Maps the factors of each term to its coefficient.
    pub terms: BTreeMap<Term, Coefficient>,
}

impl Formula {
    /// A formula with a single term.
    pub(super) fn term(factors: &[Factor], coefficient: Coefficient) -> Self {
        let terms = BTreeMap::from([(factors.to_vec(), coefficient)]);
        Formula {
            scale: Coefficient::number(1.0),
            terms,
        }
    }

    /// The value of a constant formula. `None` if it depends on `x`.
    pub(super) fn constant(&self) -> Option<Coefficient> {
        self.terms
            .keys()
            .all(Vec::is_empty)
            .then(|| self.coefficient(&[]))?
    }

    /// The coefficient of a term, including the scale; 0 if the formula lacks the term.
    pub(super) fn coefficient(&self, factors: &[Factor]) -> Option<Coefficient> {
        match self.terms.get(factors) {
            Some(own) => own.zip(&self.scale, |a, b| a * b),
            None => Some(Coefficient::number(0.0)),
        }
    }

    /// The formula times a constant. `None` if the product is too large.
    pub(super) fn scaled(mut self, by: &Coefficient) -> Option<Self> {
        self.scale = self.scale.zip(by, |a, b| a * b)?;
        Some(self)
    }

    /// The formula without its scale.
    pub(super) fn unscaled(&self) -> Self {
        Formula {
            scale: Coefficient::number(1.0),
            ..self.clone()
        }
    }

    /// The formula with the opposite sign.
    pub(super) fn negated(mut self) -> Self {
        self.scale = self.scale.map(|a| -a);
        self
    }

    /// Multiplies the coefficients by the scale, and removes terms that are 0. `None` if a
    /// coefficient becomes too large.
    pub(super) fn spread(&self) -> Option<Self> {
        let mut spread = Formula {
            scale: Coefficient::number(1.0),
            terms: BTreeMap::new(),
        };
        for factors in self.terms.keys() {
            spread.add(factors.clone(), self.coefficient(factors)?)?;
        }
        Some(spread.without_vanished())
    }

    fn add(&mut self, factors: Term, coefficient: Coefficient) -> Option<()> {
        let sum = match self.terms.get(&factors) {
            Some(own) => own.zip(&coefficient, |a, b| a + b)?,
            None => coefficient,
        };
        self.terms.insert(factors, sum);
        Some(())
    }

    fn without_vanished(mut self) -> Self {
        self.terms
            .retain(|_, coefficient| coefficient.numbers().any(|c| c != 0.0));
        self
    }

    /// The sum of two formulas. `None` if a coefficient becomes too large.
    pub(super) fn plus(&self, other: &Formula) -> Option<Self> {
        if self.scale != other.scale {
            return self.spread()?.plus_same(&other.spread()?);
        }
        self.clone().plus_same(other)
    }

    fn plus_same(mut self, other: &Formula) -> Option<Self> {
        for (factors, coefficient) in &other.terms {
            self.add(factors.clone(), coefficient.clone())?;
        }
        Some(self.without_vanished())
    }

    /// The product of two formulas. `None` if a term has a degree above 2.
    pub(super) fn times(&self, other: &Formula) -> Option<Self> {
        // A constant factor only changes the scale.
        for (constant, formula) in [(self, other), (other, self)] {
            if let Some(constant) = constant.constant() {
                return formula.clone().scaled(&constant);
            }
        }
        let scale = self.scale.zip(&other.scale, |a, b| a * b)?;
        let mut result = Formula {
            scale,
            terms: BTreeMap::new(),
        };
        for (left, a) in &self.terms {
            for (right, b) in &other.terms {
                result.add(product(left, right), a.zip(b, |a, b| a * b)?)?;
            }
        }
        result
            .terms
            .keys()
            .all(|term| degree(term) <= 2)
            .then_some(result)
    }

    /// Returns the formula itself, or `None` if a coefficient varies along the axis factors
    /// `along`.
    fn constant_along(&self, along: &[AxisFactor]) -> Option<Self> {
        self.mapped(along, |term| Some(term.to_vec()))
    }

    /// Replaces every term by its image under a linear operator along some axis factors. `None` if
    /// a coefficient varies along them.
    fn mapped(
        &self,
        along: &[AxisFactor],
        image: impl Fn(&[Factor]) -> Option<Term>,
    ) -> Option<Self> {
        let mut mapped = Formula {
            scale: self.scale.constant_along(along)?,
            terms: BTreeMap::new(),
        };
        for (factors, coefficient) in &self.terms {
            mapped.add(image(factors)?, coefficient.constant_along(along)?)?;
        }
        Some(mapped.without_vanished())
    }

    /// The mean of the formula over axis factors of `x`. `None` if a coefficient varies along them.
    pub(super) fn mean(&self, over: &[AxisFactor]) -> Option<Self> {
        self.spread()?.mapped(over, |term| {
            let atoms = over.iter();
            Some(atoms.fold(term.to_vec(), |term, &along| mean(&term, along)))
        })
    }

    /// `P` times the formula, along some axis factors. `None` if a term is constant, because `P`
    /// need not preserve constants.
    fn mixed(&self, along: &[AxisFactor]) -> Option<Self> {
        self.mapped(along, |term| {
            (!term.is_empty()).then(|| vec![Factor::Mixed(term.to_vec())])
        })
    }

    /// The derivative with respect to a scalar that is added to all of `x`. `None` if a term
    /// contains `P`, because the derivative is then not known.
    pub(super) fn derivative(&self) -> Option<Self> {
        let mut derived = Formula {
            scale: Coefficient::number(1.0),
            terms: BTreeMap::new(),
        };
        for (term, coefficient) in &self.spread()?.terms {
            for (place, factor) in term.iter().enumerate() {
                let rest = [&term[..place], &term[place + 1..]].concat();
                let one = Coefficient::number(1.0);
                let inner = match factor {
                    Factor::Input => Formula::term(&[], one),
                    Factor::Mean(over, inner) => {
                        let over: Vec<AxisFactor> = over.iter().copied().collect();
                        Formula::term(inner, one).derivative()?.mean(&over)?
                    }
                    Factor::Mixed(_) => return None,
                };
                for (term, part) in inner.terms {
                    derived.add(product(&rest, &term), coefficient.zip(&part, |a, b| a * b)?)?;
                }
            }
        }
        Some(derived.without_vanished())
    }

    /// Replaces split axis factors by their parts.
    fn settled(&self, atoms: &AxisFactors) -> Option<Self> {
        let mut result = Formula {
            scale: self.scale.settled(atoms)?,
            terms: BTreeMap::new(),
        };
        for (term, coefficient) in &self.terms {
            result.add(settled(term, atoms), coefficient.settled(atoms)?)?;
        }
        Some(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::Numbers;
    use ndarray::{ArrayD, IxDyn, arr1};
    use tract_onnx::tract_hir::internal::TDim;

    /// `x` along two axis factors of extents 3 and 2.
    fn input() -> (Formula, AxisFactors, [AxisFactor; 2]) {
        let mut atoms = AxisFactors::default();
        let axes = atoms
            .axes(&vec![Some(TDim::from(3)), Some(TDim::from(2))])
            .unwrap();
        (
            Formula::term(&[Factor::Input], Coefficient::number(1.0)),
            atoms,
            [axes[0][0], axes[1][0]],
        )
    }

    #[test]
    fn mean_of_centred_squares_equals_the_variance_formula() {
        let (x, _, [_, c]) = input();
        let mean = x.mean(&[c]).unwrap();
        let centred = x.plus(&mean.clone().negated()).unwrap();
        let variance = centred.times(&centred).unwrap().mean(&[c]).unwrap();
        let square = x.times(&x).unwrap().mean(&[c]).unwrap();
        let expected = square.plus(&mean.times(&mean).unwrap().negated()).unwrap();
        assert_eq!(variance.spread(), expected.spread());
        assert_eq!(variance.terms.len(), 2);
        // The variance does not change if all values are shifted, but the mean of their squares
        // does.
        assert!(variance.derivative().unwrap().terms.is_empty());
        assert_eq!(
            square.derivative(),
            mean.scaled(&Coefficient::number(2.0)).unwrap().spread()
        );
    }

    #[test]
    fn means_over_successive_axes_equal_one_mean() {
        let (x, _, [t, c]) = input();
        let square = x.times(&x).unwrap();
        let step_by_step = square.mean(&[c]).unwrap().mean(&[t]);
        assert_eq!(step_by_step, square.mean(&[t, c]));
        // The square of a mean is not a mean of squares.
        let mean = x.mean(&[c]).unwrap();
        assert_ne!(mean.times(&mean).unwrap().mean(&[t]), square.mean(&[t, c]));
    }

    #[test]
    fn channel_scale_passes_a_token_mean_only() {
        let (x, atoms, [t, c]) = input();
        let gamma = Coefficient::new(
            &[c],
            &Numbers::literal(arr1(&[1.0, 2.0]).into_dyn()),
            &atoms,
        )
        .unwrap();
        let scaled = x.clone().scaled(&gamma).unwrap();
        assert_eq!(scaled.mean(&[c]), None);
        assert_eq!(
            scaled.mean(&[t]).unwrap(),
            x.mean(&[t])
                .unwrap()
                .scaled(&gamma)
                .unwrap()
                .spread()
                .unwrap()
        );
    }

    #[test]
    fn coefficient_is_laid_out_along_the_requested_factors() {
        let (_, mut atoms, [t, c]) = input();
        let both = ArrayD::from_shape_fn(IxDyn(&[2, 3]), |i| (10 * i[0] + i[1]) as f64);
        let both = Coefficient::new(&[c, t], &Numbers::literal(both), &atoms).unwrap();
        let by_token = both.along(&[c, t], &atoms).unwrap();
        assert_eq!(
            *by_token,
            arr1(&[0.0, 1.0, 2.0, 10.0, 11.0, 12.0]).into_dyn()
        );
        let by_channel = both.along(&[t, c], &atoms).unwrap();
        assert_eq!(
            *by_channel,
            arr1(&[0.0, 10.0, 1.0, 11.0, 2.0, 12.0]).into_dyn()
        );
        assert_eq!(both.along(&[t], &atoms), None);
        let free = atoms.free(TDim::from(3));
        let other = Coefficient::new(
            &free,
            &Numbers::literal(arr1(&[5.0, 6.0, 7.0]).into_dyn()),
            &atoms,
        )
        .unwrap();
        atoms.broadcast(&vec![vec![t]], &vec![free]).unwrap();
        let sum = both
            .zip(&other.settled(&atoms).unwrap(), |a, b| a + b)
            .unwrap();
        let sum = sum.along(&[c, t], &atoms).unwrap();
        assert_eq!(*sum, arr1(&[5.0, 7.0, 9.0, 15.0, 17.0, 19.0]).into_dyn());
    }
}
