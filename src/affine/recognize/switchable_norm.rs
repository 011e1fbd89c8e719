//! SN: Switchable Normalization (Luo et al., 2018).
//!
//! `γ(x − Σ w_k μ_k)/√(Σ w'_k σ²_k + ε) + β`, equation (3) of its paper, where k runs over the
//! statistics of IN, LN and BN. The statistics of BN and all weights are constants of a trained
//! model.

use std::collections::BTreeSet;

use crate::affine::recognize::batch_invariant::Alike;
use crate::affine::recognize::formula::{
    Coefficient, Factor, Formula, Term, degree, is_understood, read,
};
use crate::affine::recognize::region::{ATTEMPTS, Region, divisor, regions};
use crate::affine::recognize::statistics::{around, reshaped, scaling};
use crate::affine::recognize::{Normalizer, Site, View};
use crate::ir::NodeId;

/// Switchable Normalization.
pub struct SwitchableNorm;

/// Terms whose numbers are this small beside those of others are rounding of weights.
const ROUNDING: f64 = 1e-5;

impl Normalizer for SwitchableNorm {
    fn recognise(&self, view: &View, node: NodeId) -> Option<Site> {
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
    let in_place = quotient.atoms.same(&quotient.axes, &quotient.input);
    (in_place && mixes(&quotient.numerator.unscaled(), &quotient.square.spread()?)).then_some(())?;
    let output = view.graph.only_output(*region.nodes.last()?)?;
    let around_it = reshaped(view, region.input, output);
    let mut nodes = region.nodes.clone();
    nodes.extend(around_it.iter().flat_map(|around_it| around_it.nodes));
    let result = around_it.map_or(output, |around_it| around_it.output);
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

/// Whether a quotient is that of equation (3): more than one mean, and more than one variance.
fn mixes(numerator: &Formula, square: &Formula) -> bool {
    let x = vec![Factor::Input];
    // Over what a product is averaged, where a term is such a mean.
    let mean_of = |term: &Term, of: &[Factor]| match &term[..] {
        [Factor::Mean(over, inner)] if inner == of => Some(over.clone()),
        _ => None,
    };
    let (above, below) = (terms(numerator), terms(square));
    let means: Option<BTreeSet<_>> = above
        .iter()
        .filter(|&&term| *term != x)
        .map(|term| mean_of(term, &x))
        .collect();
    let variances: BTreeSet<_> = below
        .iter()
        .filter_map(|term| mean_of(term, &[Factor::Input, Factor::Input]))
        .collect();
    let squares = below
        .iter()
        .all(|term| !term.contains(&Factor::Input) && degree(term) == 2);
    // The statistics of BN are a number for each channel.
    let several = |over: &BTreeSet<_>, formula: &Formula| {
        let constant = formula
            .terms
            .get(&vec![])
            .is_some_and(|constant| !constant.is_uniform());
        !over.is_empty() && over.len() + usize::from(constant) > 1
    };
    // A variance does not change when its values are shifted.
    let still = || {
        let (largest, derivative) = (largest(square), square.derivative()?);
        Some(
            derivative
                .terms
                .values()
                .all(|c| magnitude(c) <= ROUNDING * largest),
        )
    };
    above.contains(&&x)
        && means.is_some_and(|means| several(&means, numerator))
        && squares
        && several(&variances, square)
        && still().unwrap_or(false)
}

/// The terms that are no constants and that count.
fn terms(formula: &Formula) -> Vec<&Term> {
    let largest = largest(formula);
    let counts = |(term, coefficient): &(&Term, &Coefficient)| {
        !term.is_empty() && magnitude(coefficient) > ROUNDING * largest
    };
    formula
        .terms
        .iter()
        .filter(counts)
        .map(|(term, _)| term)
        .collect()
}

/// The largest number before a term that is no constant.
fn largest(formula: &Formula) -> f64 {
    let terms = formula.terms.iter().filter(|(term, _)| !term.is_empty());
    terms.fold(0.0, |largest, (_, coefficient)| {
        largest.max(magnitude(coefficient))
    })
}

fn magnitude(coefficient: &Coefficient) -> f64 {
    coefficient
        .numbers()
        .fold(0.0, |largest, number| largest.max(number.abs()))
}
