//! Constant factors of the terms of a formula.

use std::collections::BTreeSet;

use ndarray::Axis;

use crate::analysis::axis_factors::{AxisFactor, AxisFactors};
use crate::recipe::Numbers;

/// A coefficient with more numbers is not computed. Networks have fewer channels.
pub(super) const LARGEST: usize = 1 << 15;

/// One number for each place along some axis factors. The coefficient is constant along all other
/// axis factors.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Coefficient {
    /// The axis factors, in ascending order.
    along: Vec<AxisFactor>,
    numbers: Numbers,
}

impl Coefficient {
    /// A coefficient with one number for all places.
    pub(crate) fn number(number: f64) -> Self {
        Coefficient {
            along: vec![],
            numbers: Numbers::number(number, 0),
        }
    }

    /// Builds a coefficient that has one number for each place along the axis factors `along`. The
    /// last factor varies fastest in `numbers`. `None` if the extents of the factors are unknown or
    /// do not fit the numbers, or if a factor occurs twice.
    pub(crate) fn new(
        along: &[AxisFactor],
        numbers: &Numbers,
        atoms: &AxisFactors,
    ) -> Option<Self> {
        let extents: Vec<usize> = along
            .iter()
            .map(|&atom| atoms.extent(atom))
            .collect::<Option<_>>()?;
        let numbers = numbers.reshape(&extents)?;
        let mut order: Vec<usize> = (0..along.len()).collect();
        order.sort_by_key(|&i| along[i]);
        let along: Vec<AxisFactor> = order.iter().map(|&i| along[i]).collect();
        let once = along.windows(2).all(|pair| pair[0] != pair[1]);
        once.then_some(Coefficient {
            along,
            numbers: numbers.transpose(&order)?,
        })
    }

    /// The numbers, with one axis for each axis factor of `order`. An axis along which they do not
    /// vary has extent 1. `None` if they vary along another axis factor.
    fn arranged(&self, order: &[AxisFactor]) -> Option<Numbers> {
        let (mut own, mut extents) = (vec![], vec![]);
        for atom in order {
            match self.along.binary_search(atom) {
                Ok(place) => {
                    own.push(place);
                    extents.push(self.numbers.shape()[place]);
                }
                Err(_) => extents.push(1),
            }
        }
        (own.len() == self.along.len()).then_some(())?;
        self.numbers.transpose(&own)?.reshape(&extents)
    }

    /// A number for each place along the axis factors `order`, the last of which varies fastest.
    /// `None` if the coefficient varies along another axis factor.
    pub(crate) fn along(&self, order: &[AxisFactor], atoms: &AxisFactors) -> Option<Numbers> {
        let extents: Vec<usize> = order
            .iter()
            .map(|&atom| atoms.extent(atom))
            .collect::<Option<_>>()?;
        self.arranged(order)?
            .expand(&extents)?
            .reshape(&[extents.iter().product()])
    }

    /// Combines the numbers of two coefficients place by place. `None` if the result would be too
    /// large.
    pub(crate) fn zip(
        &self,
        other: &Coefficient,
        f: impl Fn(&Numbers, &Numbers) -> Numbers,
    ) -> Option<Coefficient> {
        if self.along == other.along {
            return Some(Coefficient {
                along: self.along.clone(),
                numbers: f(&self.numbers, &other.numbers),
            });
        }
        let along: BTreeSet<AxisFactor> = self.along.iter().chain(&other.along).copied().collect();
        let along: Vec<AxisFactor> = along.into_iter().collect();
        let (left, right) = (self.arranged(&along)?, other.arranged(&along)?);
        let extents = left
            .shape()
            .iter()
            .zip(right.shape())
            .map(|(&a, &b)| a.max(b));
        let count = extents
            .into_iter()
            .try_fold(1usize, |count, extent| count.checked_mul(extent))?;
        (count <= LARGEST && left.broadcasts_with(&right)).then(|| Coefficient {
            along,
            numbers: f(&left, &right),
        })
    }

    /// Applies a function to all numbers.
    pub(crate) fn map(&self, f: impl Fn(&Numbers) -> Numbers) -> Coefficient {
        Coefficient {
            along: self.along.clone(),
            numbers: f(&self.numbers),
        }
    }

    /// All numbers.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = f64> {
        self.numbers.iter().copied()
    }

    /// Whether all numbers are equal.
    pub(crate) fn is_uniform(&self) -> bool {
        self.numbers
            .first()
            .is_none_or(|&first| self.numbers.iter().all(|&number| number == first))
    }

    /// The coefficient without the axis factors `over`. `None` if it varies along any of them.
    pub(crate) fn constant_along(&self, over: &[AxisFactor]) -> Option<Coefficient> {
        let mut constant = self.clone();
        for atom in over {
            let Ok(place) = constant.along.binary_search(atom) else {
                continue;
            };
            let first = constant.numbers.index_axis(Axis(place), 0);
            constant
                .numbers
                .axis_iter(Axis(place))
                .all(|other| other == first)
                .then_some(())?;
            constant.along.remove(place);
            let extents = first.shape().to_vec();
            constant.numbers = constant.numbers.pick(place, [Some(0)])?.reshape(&extents)?;
        }
        Some(constant)
    }

    /// Replaces split axis factors by their parts.
    pub(crate) fn settled(&self, atoms: &AxisFactors) -> Option<Coefficient> {
        let leaves = atoms.leaves(&self.along);
        if leaves == self.along {
            Some(self.clone())
        } else {
            Self::new(&leaves, &self.numbers, atoms)
        }
    }
}
