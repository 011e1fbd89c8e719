//! The values of a site as formulas of its input.
//!
//! Each formula is a sum of products of `x`, of means and of products with a matrix over tokens,
//! with constant coefficients, so that the order of operations does not matter. A kind is a
//! predicate on the formula.

mod coefficient;
mod read;

use std::collections::{BTreeMap, BTreeSet};

use crate::analysis::layout::{AxisFactor, AxisFactors};

pub use coefficient::Coefficient;
use coefficient::LARGEST;
pub use read::{Mixing, Quotient, is_understood, read};

/// The factors of the terms of a formula.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Factor {
    /// `x`.
    Input,
    /// The mean of a product over some atoms.
    Mean(BTreeSet<AxisFactor>, Term),
    /// `P` times a product.
    Mixed(Term),
}

/// A product of factors, in order.
pub type Term = Vec<Factor>;

impl Factor {
    /// How often `x` is in it.
    fn degree(&self) -> usize {
        match self {
            Factor::Input => 1,
            Factor::Mean(_, inner) | Factor::Mixed(inner) => degree(inner),
        }
    }

    /// Whether it varies along an atom: a mean over this atom does not.
    fn varies_along(&self, along: AxisFactor) -> bool {
        !matches!(self, Factor::Mean(over, _) if over.contains(&along))
    }

    /// The factor in atoms that are not split any further.
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

/// How often `x` is in a product.
pub fn degree(term: &[Factor]) -> usize {
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

/// The mean of a product over one atom: factors that do not vary along it are outside.
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
pub struct Formula {
    /// The factor of all terms. It may be 0 for a channel whose terms are still known.
    pub scale: Coefficient,
    /// The terms, by their factors.
    pub terms: BTreeMap<Term, Coefficient>,
}

impl Formula {
    /// A single term.
    pub fn term(factors: &[Factor], coefficient: Coefficient) -> Self {
        let terms = BTreeMap::from([(factors.to_vec(), coefficient)]);
        Formula {
            scale: Coefficient::number(1.0),
            terms,
        }
    }

    /// The constant that it is, if it is one.
    pub fn constant(&self) -> Option<Coefficient> {
        self.terms
            .keys()
            .all(Vec::is_empty)
            .then(|| self.coefficient(&[]))?
    }

    /// The coefficient of a term, with the scale.
    pub fn coefficient(&self, factors: &[Factor]) -> Option<Coefficient> {
        match self.terms.get(factors) {
            Some(own) => own.zip(&self.scale, |a, b| a * b),
            None => Some(Coefficient::number(0.0)),
        }
    }

    /// The formula times a constant.
    pub fn scaled(mut self, by: &Coefficient) -> Option<Self> {
        self.scale = self.scale.zip(by, |a, b| a * b)?;
        Some(self)
    }

    /// The formula without its scale.
    pub fn unscaled(&self) -> Self {
        Formula {
            scale: Coefficient::number(1.0),
            ..self.clone()
        }
    }

    /// The formula with another sign.
    pub fn negated(mut self) -> Self {
        self.scale = self.scale.map(|a| -a);
        self
    }

    /// The formula with its scale in the coefficients, and without terms that vanish.
    pub fn spread(&self) -> Option<Self> {
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

    /// The sum.
    pub fn plus(&self, other: &Formula) -> Option<Self> {
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

    /// The product, as long as no term has `x` more than twice.
    pub fn times(&self, other: &Formula) -> Option<Self> {
        // A constant only scales.
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

    /// The formula, if no coefficient varies along these atoms.
    fn constant_along(&self, along: &[AxisFactor]) -> Option<Self> {
        self.mapped(along, |term| Some(term.to_vec()))
    }

    /// The formula with every term replaced by its image, as a linear operator acts on it along some
    /// atoms; `None` where the coefficients vary along them, too.
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

    /// The mean over atoms of `x`.
    pub fn mean(&self, over: &[AxisFactor]) -> Option<Self> {
        self.spread()?.mapped(over, |term| {
            let atoms = over.iter();
            Some(atoms.fold(term.to_vec(), |term, &along| mean(&term, along)))
        })
    }

    /// `P` times the formula along some atoms; `None` where a term has no `x`, and `P` would do more
    /// than blend.
    fn mixed(&self, along: &[AxisFactor]) -> Option<Self> {
        self.mapped(along, |term| {
            (!term.is_empty()).then(|| vec![Factor::Mixed(term.to_vec())])
        })
    }

    /// The derivative by a number that is added to all of `x`; `None` where it is not known.
    pub fn derivative(&self) -> Option<Self> {
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

    /// The formula in atoms that are not split any further.
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

    /// `x` along two atoms of 3 and 2 places.
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
        // It does not change when its values are shifted, as the mean of their squares does.
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
        // The square of a mean is no mean of squares.
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
