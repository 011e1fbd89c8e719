//! What the values of a site are as formulas of its input.
//!
//! Each is a polynomial of the tokens `x`, their means and their products with `P`, with a
//! coefficient for each channel, so that no order of operations is presupposed.

use std::collections::BTreeMap;

/// What the terms of a formula are made of, with the names of Algorithm 1 of the DTN paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Factor {
    /// `x`.
    Input,
    /// `μ^ln`: the mean of `x` over the channels.
    Mean,
    /// The mean of `x ⊙ x` over the channels: `(σ²)^ln = MeanSquare − Mean²`, equation (4).
    MeanSquare,
    /// `x` averaged over blocks of tokens.
    Pooled,
    /// `x ⊙ x` averaged over blocks of tokens.
    PooledSquare,
    /// `P^h x^h`.
    Inter,
    /// `P^h (x^h ⊙ x^h)`.
    InterSquare,
}

/// A number for each channel; a single one for all of them.
pub type Coefficient = Vec<f64>;

/// Applies an operation channel by channel.
pub fn zip(left: &Coefficient, right: &Coefficient, f: impl Fn(f64, f64) -> f64) -> Coefficient {
    let count = left.len().max(right.len());
    let at = |side: &Coefficient, i: usize| side[if side.len() == 1 { 0 } else { i }];
    (0..count).map(|i| f(at(left, i), at(right, i))).collect()
}

/// `scale · Σ coefficient · product of factors`.
#[derive(Debug, Clone, PartialEq)]
pub struct Formula {
    /// What multiplies all terms.
    pub scale: Coefficient,
    /// The terms, by their factors in order.
    pub terms: BTreeMap<Vec<Factor>, Coefficient>,
}

impl Formula {
    /// A single term.
    pub fn term(factors: &[Factor], coefficient: Coefficient) -> Self {
        Formula { scale: vec![1.0], terms: BTreeMap::from([(factors.to_vec(), coefficient)]) }
    }

    /// The coefficient of a term, with the scale.
    pub fn coefficient(&self, factors: &[Factor]) -> Coefficient {
        self.terms.get(factors).map_or(vec![0.0], |own| zip(own, &self.scale, |a, b| a * b))
    }

    /// The formula times a number for each channel.
    pub fn scaled(mut self, by: &Coefficient) -> Self {
        self.scale = zip(&self.scale, by, |a, b| a * b);
        self
    }

    /// The formula without a common scale: it is in the terms, and what vanishes is left out.
    fn spread(&self) -> Self {
        let mut terms = BTreeMap::new();
        for factors in self.terms.keys() {
            let coefficient = self.coefficient(factors);
            if coefficient.iter().any(|&c| c != 0.0) {
                terms.insert(factors.clone(), coefficient);
            }
        }
        Formula { scale: vec![1.0], terms }
    }

    /// The sum.
    pub fn plus(&self, other: &Formula) -> Self {
        if self.scale != other.scale {
            return self.spread().plus_same(&other.spread());
        }
        self.clone().plus_same(other)
    }

    fn plus_same(mut self, other: &Formula) -> Self {
        for (factors, coefficient) in &other.terms {
            let own = self.terms.entry(factors.clone()).or_insert_with(|| vec![0.0]);
            *own = zip(own, coefficient, |a, b| a + b);
        }
        self.terms.retain(|_, coefficient| coefficient.iter().any(|&c| c != 0.0));
        self
    }

    /// The product, as long as no term has more than two factors.
    pub fn times(&self, other: &Formula) -> Option<Self> {
        // A number for each channel only scales.
        for (number, formula) in [(self, other), (other, self)] {
            if number.terms.keys().all(Vec::is_empty) {
                return Some(formula.clone().scaled(&number.coefficient(&[])));
            }
        }
        let mut product =
            Formula { scale: zip(&self.scale, &other.scale, |a, b| a * b), terms: BTreeMap::new() };
        for (left, a) in &self.terms {
            for (right, b) in &other.terms {
                let mut factors = [&left[..], &right[..]].concat();
                factors.sort();
                let coefficient = zip(a, b, |a, b| a * b);
                let own = product.terms.entry(factors).or_insert_with(|| vec![0.0]);
                *own = zip(own, &coefficient, |a, b| a + b);
            }
        }
        product.terms.keys().all(|factors| factors.len() <= 2).then_some(product)
    }

    /// The formula with every term replaced by another, as a linear operator acts on it.
    pub fn mapped(&self, image: impl Fn(&[Factor]) -> Option<Vec<Factor>>) -> Option<Self> {
        let terms: BTreeMap<_, _> = self
            .terms
            .iter()
            .map(|(factors, coefficient)| Some((image(factors)?, coefficient.clone())))
            .collect::<Option<_>>()?;
        (terms.len() == self.terms.len()).then(|| Formula { scale: self.scale.clone(), terms })
    }

    /// The mean over the channels; `None` where the terms are weighted channel by channel, or hold
    /// what differs from channel to channel otherwise.
    pub fn averaged(&self) -> Option<Self> {
        use Factor::{Input, Mean, MeanSquare};
        let mut averaged = Formula { scale: vec![1.0], terms: BTreeMap::new() };
        for (factors, coefficient) in &self.spread().terms {
            let same = coefficient.iter().all(|&c| c == coefficient[0]);
            let image = match factors[..] {
                [] | [Mean] | [Mean, Mean] | [MeanSquare] => factors.clone(),
                [Input] => vec![Mean],
                [Input, Input] => vec![MeanSquare],
                [Input, Mean] => vec![Mean, Mean],
                _ => return None,
            };
            let one = same.then(|| Formula::term(&image, vec![coefficient[0]]))?;
            averaged = averaged.plus(&one);
        }
        Some(averaged)
    }
}

/// `(x − a·μ^ln − b·Px) / √(c·(σ²)^ln + d·(P(x⊙x) − Px⊙Px) + e)`, times `scale`: lines 10 to 13 of
/// Algorithm 1, with a number for each channel.
#[derive(Debug, Clone, PartialEq)]
pub struct Normalized {
    /// What the quotient is multiplied by.
    pub scale: Vec<f64>,
    /// Weight of the mean over channels.
    pub intra_mean: Vec<f64>,
    /// Weight of the mean over tokens.
    pub inter_mean: Vec<f64>,
    /// Weight of the variance over channels.
    pub intra_variance: Vec<f64>,
    /// Weight of the variance over tokens.
    pub inter_variance: Vec<f64>,
    /// What is added to the variance.
    pub epsilon: Vec<f64>,
}

impl Normalized {
    /// `numerator / √square`, if it is of that form.
    pub fn of(numerator: &Formula, square: &Formula, channels: usize) -> Option<Self> {
        use Factor::{Input, Inter, InterSquare, Mean, MeanSquare};
        let only = |formula: &Formula, known: &[&[Factor]]| {
            formula.spread().terms.keys().all(|factors| known.contains(&&factors[..]))
        };
        let fits = only(numerator, &[&[Input], &[Mean], &[Inter]])
            && only(square, &[&[], &[MeanSquare], &[Mean, Mean], &[InterSquare], &[Inter, Inter]]);
        let whole = |coefficient: Coefficient| zip(&coefficient, &vec![0.0; channels], |c, _| c);
        let weight = |formula: &Formula, factors: &[Factor]| whole(formula.coefficient(factors));
        // Within the common scale, which may be 0 for a channel, nothing is divided by it.
        let inner = Formula { scale: vec![1.0], ..numerator.clone() };
        let own = weight(&inner, &[Input]);
        let share = |factors: &[Factor]| zip(&weight(&inner, factors), &own, |c, own| -c / own);
        let variance = |square_of: &[Factor], of_square: &[Factor]| {
            let (mean, squares) = (weight(square, square_of), weight(square, of_square));
            let opposite = |(a, b): (&f64, &f64)| (a + b).abs() <= 1e-12 * b.abs();
            mean.iter().zip(&squares).all(opposite).then_some(squares)
        };
        let normalized = Normalized {
            scale: zip(&whole(numerator.scale.clone()), &own, |scale, own| scale * own),
            intra_mean: share(&[Mean]),
            inter_mean: share(&[Inter]),
            intra_variance: variance(&[Mean, Mean], &[MeanSquare])?,
            inter_variance: variance(&[Inter, Inter], &[InterSquare])?,
            epsilon: weight(square, &[]),
        };
        let Normalized { scale, intra_mean, inter_mean, intra_variance, inter_variance, epsilon } =
            &normalized;
        let finite = [scale, intra_mean, inter_mean].into_iter().flatten().all(|c| c.is_finite());
        let positive =
            [intra_variance, inter_variance].into_iter().flatten().all(|&c| c >= 0.0 && c.is_finite());
        let above = epsilon.iter().all(|&e| e > 0.0 && e.is_finite());
        (fits && finite && positive && above).then_some(normalized)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Factor::{Input, Mean, MeanSquare};

    #[test]
    fn the_mean_of_centred_squares_is_the_variance() {
        let x = Formula::term(&[Input], vec![1.0]);
        let mean = x.averaged().unwrap();
        let centred = x.plus(&mean.scaled(&vec![-1.0]));
        let variance = centred.times(&centred).unwrap().averaged().unwrap();
        assert_eq!(variance.coefficient(&[MeanSquare]), [1.0]);
        assert_eq!(variance.coefficient(&[Mean, Mean]), [-1.0]);
        assert_eq!(variance.terms.len(), 2);
    }

    #[test]
    fn a_scale_for_each_channel_does_not_pass_a_mean() {
        let x = Formula::term(&[Input], vec![1.0, 2.0]);
        assert_eq!(x.averaged(), None);
    }

    #[test]
    fn a_channel_scaled_by_zero_keeps_its_statistics() {
        let x = Formula::term(&[Input], vec![1.0]);
        let numerator = x.plus(&Formula::term(&[Mean], vec![-0.5])).scaled(&vec![0.0, 3.0]);
        let square = Formula::term(&[], vec![1e-5]);
        let normalized = Normalized::of(&numerator, &square, 2).unwrap();
        assert_eq!(normalized.scale, [0.0, 3.0]);
        assert_eq!(normalized.intra_mean, [0.5, 0.5]);
    }
}
