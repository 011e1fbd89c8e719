//! SN: Switchable Normalization (Luo et al., 2018).
//!
//! `γ(x − Σ w_k μ_k)/√(Σ w'_k σ²_k + ε) + β`, equation (3) of the paper, where k runs over the
//! statistics of IN, LN and BN. The statistics of BN and all weights are constants of a trained
//! model.

use std::collections::BTreeSet;

use crate::affine::recognize::batch_invariant::Alike;
use crate::affine::recognize::decomposed_norm::{around, reshaped, scaling};
use crate::affine::recognize::formula::{
    Coefficient, Factor, Formula, Term, degree, is_understood, read,
};
use crate::affine::recognize::region::{ATTEMPTS, Region, divisor, regions};
use crate::affine::recognize::{Normalizer, Site, View};
use crate::analysis::axis_factors::AxisFactor;
use crate::ir::NodeId;

/// Switchable Normalization.
pub(super) struct SwitchableNorm;

/// Terms below this fraction of the largest term are ignored, because they result from rounded
/// weights.
const ROUNDING: f64 = 1e-5;

impl Normalizer for SwitchableNorm {
    fn recognize(&self, view: &View, node: NodeId) -> Option<Site> {
        divisor(view, node)?;
        let alike = Alike::new(view);
        let found = regions(view, &alike, node, |node| is_understood(view, node)).into_iter();
        let found = found.filter(|region| region.nodes.len() > 1).take(ATTEMPTS);
        let mut blends = found.filter(|region| !region.blends_nothing(view));
        blends.find_map(|region| site(view, &alike, &region))
    }
}

fn site(view: &View, alike: &Alike, region: &Region) -> Option<Site> {
    let quotient = read(view, alike, region)?;
    let is_in_place = quotient.atoms.same(&quotient.axes, &quotient.input);
    (is_in_place && mixes(&quotient.numerator.unscaled(), &quotient.square.spread()?))
        .then_some(())?;
    let output = view.graph.only_output(*region.nodes.last()?)?;
    let reshapes = reshaped(view, region.input, output);
    let mut nodes = region.nodes.clone();
    nodes.extend(reshapes.iter().flat_map(|reshapes| reshapes.nodes));
    let result = reshapes.map_or(output, |reshapes| reshapes.output);
    let chain = scaling(view, quotient.divided, result);
    let axis = chain.and_then(|chain| chain.axis());
    let last = view.facts.rank(result)?.checked_sub(1)?;
    let mut site = around(view, "SN", &nodes, result, axis.unwrap_or(last), chain);
    site.nodes.extend(
        view.chain_from(result)
            .iter()
            .flat_map(|chain| &chain.nodes),
    );
    site.nodes.sort_by_key(|&node| view.graph.place(node));
    site.nodes.dedup();
    Some(site)
}

/// Whether a quotient is that of equation (3), with several means and several variances.
fn mixes(numerator: &Formula, square: &Formula) -> bool {
    let x = vec![Factor::Input];
    let (above, below) = (terms(numerator), terms(square));
    let means = above.iter().filter(|&&term| *term != x);
    let means: Option<BTreeSet<_>> = means.map(|term| axes_of_mean(term, &x)).collect();
    let product = [Factor::Input, Factor::Input];
    let variances = below.iter();
    let variances: BTreeSet<_> = variances
        .filter_map(|term| axes_of_mean(term, &product))
        .collect();
    let are_squares = below
        .iter()
        .all(|term| !term.contains(&Factor::Input) && degree(term) == 2);
    above.contains(&&x)
        && means.is_some_and(|means| are_several(&means, numerator))
        && are_squares
        && are_several(&variances, square)
        && ignores_shifts(square).unwrap_or(false)
}

/// The axes over which a term averages `product`. `None` if the term is not a mean of `product`.
fn axes_of_mean<'t>(term: &'t Term, product: &[Factor]) -> Option<&'t BTreeSet<AxisFactor>> {
    match &term[..] {
        [Factor::Mean(over, inner)] if inner == product => Some(over),
        _ => None,
    }
}

/// Whether a formula has several statistics: a mean for each set of axes in `over`, and possibly
/// the statistic of BN, which is a constant for each channel.
fn are_several(over: &BTreeSet<&BTreeSet<AxisFactor>>, formula: &Formula) -> bool {
    let constant = formula.terms.get(&vec![]);
    let has_constants = constant.is_some_and(|constant| !constant.is_uniform());
    !over.is_empty() && over.len() + usize::from(has_constants) > 1
}

/// Whether a formula, like a variance, does not change if all values of `x` are shifted. `None` if
/// this is not known.
fn ignores_shifts(square: &Formula) -> Option<bool> {
    let (largest, derivative) = (largest(square), square.derivative()?);
    let mut coefficients = derivative.terms.values();
    Some(coefficients.all(|coefficient| magnitude(coefficient) <= ROUNDING * largest))
}

/// The terms that are not constant, and whose coefficients are above [`ROUNDING`] times the
/// largest.
fn terms(formula: &Formula) -> Vec<&Term> {
    let largest = largest(formula);
    let counting = formula.terms.iter().filter(|(term, coefficient)| {
        !term.is_empty() && magnitude(coefficient) > ROUNDING * largest
    });
    counting.map(|(term, _)| term).collect()
}

/// The largest magnitude of a coefficient of a term that is not constant.
fn largest(formula: &Formula) -> f64 {
    let terms = formula.terms.iter().filter(|(term, _)| !term.is_empty());
    terms.fold(0.0, |largest, (_, coefficient)| {
        largest.max(magnitude(coefficient))
    })
}

/// The largest magnitude of the numbers of a coefficient.
fn magnitude(coefficient: &Coefficient) -> f64 {
    coefficient
        .numbers()
        .fold(0.0, |largest, number| largest.max(number.abs()))
}
