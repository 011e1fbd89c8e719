//! SN: Switchable Normalization (Luo et al., 2018).
//!
//! `γ(x − Σ w_k μ_k)/√(Σ w'_k σ²_k + ε) + β`, equation (3) of its paper, where k runs over the
//! statistics of IN, LN and BN. Those of BN, and the weights, are constants of a trained model.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::alike::Alike;
use super::layout::{Atom, Atoms, Axes, MOVE};
use super::region::{ATTEMPTS, Region, divisor, regions};
use super::statistics::{around, reshaped, scaling};
use super::{Normalizer, Site, View};
use crate::graph::at::At;
use crate::graph::facts::extent;
use crate::graph::{NodeId, ValueId};

/// Switchable Normalization.
pub struct SwitchableNorm;

/// Differences that are this small beside the numbers that they come from are rounding of weights.
const ROUNDING: f64 = 1e-5;

impl Normalizer for SwitchableNorm {
    fn recognise(&self, view: &View, node: NodeId) -> Option<Site> {
        divisor(view, node)?;
        let alike = Alike::new(view);
        let found = regions(view, &alike, node).into_iter().take(ATTEMPTS);
        found.into_iter().find_map(|region| site(view, &alike, &region))
    }
}

fn site(view: &View, alike: &Alike, region: &Region) -> Option<Site> {
    let quotient = quotient(view, alike, region)?;
    mixes(&quotient.numerator.sum, &quotient.square).then_some(())?;
    let output = view.graph.only_output(*region.nodes.last()?)?;
    let around_it = reshaped(view, region.input, output);
    let mut nodes = region.nodes.clone();
    nodes.extend(around_it.iter().flat_map(|around_it| around_it.nodes));
    let result = around_it.map_or(output, |around_it| around_it.output);
    let chain = scaling(view, quotient.numerator.value, result);
    let axis = chain.and_then(|chain| chain.axis());
    let last = view.facts.rank(result)?.checked_sub(1)?;
    let mut site = around(view, "SN", &nodes, result, axis.unwrap_or(last), chain);
    site.nodes.extend(view.chain_from(result).iter().flat_map(|chain| &chain.nodes));
    site.nodes.sort_by_key(|&node| view.graph.place(node));
    site.nodes.dedup();
    Some(site)
}

/// Whether a quotient is that of equation (3): more than one mean, and more than one variance.
fn mixes(numerator: &Sum, square: &Sum) -> bool {
    let mean_of = |factor: &Factor, of: &[Factor]| match factor {
        Factor::Mean(over, inner) if inner == of => Some(over.clone()),
        _ => None,
    };
    let mut means = BTreeSet::new();
    for term in numerator.terms.keys().filter(|term| !term.is_empty() && **term != [Factor::Input]) {
        match &term[..] {
            [factor] => match mean_of(factor, &[Factor::Input]) {
                Some(over) => means.insert(over),
                None => return false,
            },
            _ => return false,
        };
    }
    let mut variances = BTreeSet::new();
    for term in square.terms.keys().filter(|term| !term.is_empty()) {
        if term.contains(&Factor::Input) || degree(term) != 2 {
            return false;
        }
        if let [factor] = &term[..] {
            variances.extend(mean_of(factor, &[Factor::Input, Factor::Input]));
        }
    }
    let several =
        |axes: &BTreeSet<_>, sum: &Sum| !axes.is_empty() && axes.len() + usize::from(sum.constant) > 1;
    // A variance does not change when its values are shifted.
    let largest = square.terms.values().fold(0.0f64, |largest, c| largest.max(c.abs()));
    let still = square.derivative().terms.values().all(|c| c.abs() <= ROUNDING * largest);
    numerator.terms.contains_key(&vec![Factor::Input])
        && several(&means, numerator)
        && several(&variances, square)
        && still
}

/// What the terms of a sum are made of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Factor {
    /// `x`.
    Input,
    /// The mean of a product over some axes.
    Mean(BTreeSet<Atom>, Term),
}

/// A product of factors, in order.
type Term = Vec<Factor>;

/// How often `x` is in a product.
fn degree(term: &[Factor]) -> usize {
    let of = |factor: &Factor| match factor {
        Factor::Input => 1,
        Factor::Mean(_, inner) => degree(inner),
    };
    term.iter().map(of).sum()
}

fn times(left: &[Factor], right: &[Factor]) -> Term {
    let mut product = [left, right].concat();
    product.sort();
    product
}

/// The mean of a product over one axis: what does not vary along it is outside.
fn mean(term: &[Factor], along: Atom) -> Term {
    let (outside, inside): (Term, Term) = term
        .iter()
        .cloned()
        .partition(|factor| matches!(factor, Factor::Mean(over, _) if over.contains(&along)));
    let averaged = match &inside[..] {
        [] => return outside,
        [Factor::Mean(over, inner)] => {
            Factor::Mean(over.iter().copied().chain([along]).collect(), inner.clone())
        }
        _ => Factor::Mean([along].into(), inside),
    };
    times(&outside, &[averaged])
}

/// `Σ number · product`, and perhaps a constant that is not the same everywhere.
#[derive(Debug, Clone, Default)]
struct Sum {
    terms: BTreeMap<Term, f64>,
    constant: bool,
}

impl Sum {
    fn of(term: Term, number: f64) -> Sum {
        Sum { terms: BTreeMap::from([(term, number)]), constant: false }
    }

    /// The number that it is, if it is one.
    fn number(&self) -> Option<f64> {
        let number = self.terms.keys().all(Vec::is_empty) && !self.constant;
        number.then(|| self.terms.values().sum())
    }

    fn add(&mut self, term: Term, number: f64) {
        let sum = self.terms.entry(term).or_default();
        // What is left of two numbers that should cancel is their rounding.
        *sum = if (*sum + number).abs() <= ROUNDING * number.abs() { 0.0 } else { *sum + number };
        self.terms.retain(|_, number| *number != 0.0);
    }

    fn plus(mut self, other: &Sum, sign: f64) -> Sum {
        other.terms.iter().for_each(|(term, number)| self.add(term.clone(), sign * number));
        self.constant |= other.constant;
        self
    }

    fn scaled(mut self, by: f64) -> Sum {
        self.terms.values_mut().for_each(|number| *number *= by);
        self
    }

    fn times(&self, other: &Sum) -> Option<Sum> {
        if let Some(number) = other.number() {
            return Some(self.clone().scaled(number));
        }
        if let Some(number) = self.number() {
            return Some(other.clone().scaled(number));
        }
        let mut product = Sum::default();
        for (left, a) in &self.terms {
            for (right, b) in &other.terms {
                product.add(times(left, right), a * b);
            }
        }
        let fits = !self.constant && !other.constant && product.terms.keys().all(|term| degree(term) <= 2);
        fits.then_some(product)
    }

    fn mean(&self, over: &[Atom]) -> Sum {
        let mut averaged = Sum { constant: self.constant, ..Sum::default() };
        for (term, number) in &self.terms {
            averaged.add(over.iter().fold(term.clone(), |term, &along| mean(&term, along)), *number);
        }
        averaged
    }

    /// By a number that is added to all of `x`.
    fn derivative(&self) -> Sum {
        let mut derived = Sum::default();
        for (term, number) in &self.terms {
            for (place, factor) in term.iter().enumerate() {
                let rest = [&term[..place], &term[place + 1..]].concat();
                let inner = match factor {
                    Factor::Input => Sum::of(vec![], 1.0),
                    Factor::Mean(over, inner) => {
                        let over: Vec<Atom> = over.iter().copied().collect();
                        Sum::of(inner.clone(), 1.0).derivative().mean(&over)
                    }
                };
                for (term, part) in inner.terms {
                    derived.add(times(&rest, &term), number * part);
                }
            }
        }
        derived
    }
}

/// What a value of the region is: a sum, or a power of the root of one, and where its elements are.
#[derive(Debug, Clone)]
struct Value {
    sum: Sum,
    power: Power,
    /// Whether it is multiplied by a constant that is not the same everywhere, such as γ.
    scaled: bool,
    value: ValueId,
    axes: Axes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Power {
    One,
    Root,
    InverseRoot,
}

/// The last node of a region: `numerator / √square`.
struct Quotient {
    numerator: Value,
    square: Sum,
}

fn quotient(view: &View, alike: &Alike, region: &Region) -> Option<Quotient> {
    let mut atoms = Atoms::default();
    let whole = atoms.of(&view.facts.shape(region.input)?)?;
    let mut reader = Reader { view, alike, atoms, values: HashMap::new() };
    let x = Sum::of(vec![Factor::Input], 1.0);
    let axes = whole.clone();
    reader.keep(region.input, Value { sum: x, power: Power::One, scaled: false, value: region.input, axes });
    let (&last, before) = region.nodes.split_last()?;
    for &node in before {
        let value = reader.node(node)?;
        reader.keep(view.graph.only_output(node)?, value);
    }
    let (left, right) = (reader.operand(last, 0)?, reader.operand(last, 1)?);
    let (numerator, root) = match (view.graph.op(last), left.power, right.power) {
        ("Div", Power::One, Power::Root) | ("Mul", Power::One, Power::InverseRoot) => (left, right),
        ("Mul", Power::InverseRoot, Power::One) => (right, left),
        _ => return None,
    };
    let axes = reader.atoms.broadcast(&numerator.axes, &root.axes)?;
    let in_place = reader.atoms.same(&axes, &whole) && reader.atoms.same(&numerator.axes, &whole);
    (in_place && !root.scaled).then_some(Quotient { numerator, square: root.sum })
}

struct Reader<'r> {
    view: &'r View<'r>,
    alike: &'r Alike<'r>,
    atoms: Atoms,
    values: HashMap<ValueId, Value>,
}

impl<'r> Reader<'r> {
    fn keep(&mut self, value: ValueId, what: Value) {
        self.values.insert(value, Value { value, ..what });
    }

    fn at(&self, node: NodeId) -> At<'r> {
        self.view.at(node)
    }

    /// What an input of a node is; a constant may be there too.
    fn operand(&self, node: NodeId, slot: usize) -> Option<Value> {
        let value = self.view.graph.input(node, slot)?;
        if let Some(known) = self.values.get(&value) {
            return Some(known.clone());
        }
        let array = self.alike.read(value)?;
        let first = array.iter().copied().next()?;
        let alike = array.iter().all(|&number| number == first);
        let sum = if alike { Sum::of(vec![], first) } else { Sum { constant: true, ..Sum::default() } };
        let axes = vec![vec![]; array.ndim()];
        Some(Value { sum, power: Power::One, scaled: false, value, axes })
    }

    /// A sum that nothing multiplies.
    fn plain(&self, node: NodeId, slot: usize) -> Option<Value> {
        self.operand(node, slot).filter(|value| value.power == Power::One && !value.scaled)
    }

    fn node(&mut self, node: NodeId) -> Option<Value> {
        match self.view.graph.op(node) {
            "Cast" => self.operand(node, 0),
            op if MOVE.contains(&op) => {
                let value = self.operand(node, 0)?;
                Some(Value { axes: self.atoms.moved(&self.at(node), &value.axes)?, ..value })
            }
            "Expand" => {
                let value = self.operand(node, 0)?;
                let rank = self.view.facts.rank(self.view.graph.only_output(node)?)?;
                let missing = rank.checked_sub(value.axes.len())?;
                Some(Value { axes: [vec![vec![]; missing], value.axes.clone()].concat(), ..value })
            }
            "Add" => self.sum(node, 1.0),
            "Sub" => self.sum(node, -1.0),
            "Mul" => self.product(node),
            "Div" => self.division(node),
            "Neg" => {
                let value = self.plain(node, 0)?;
                Some(Value { sum: value.sum.clone().scaled(-1.0), ..value })
            }
            "Pow" => {
                let value = self.plain(node, 0)?;
                match self.view.scalar(self.view.graph.input(node, 1)?)? {
                    2.0 => Some(Value { sum: value.sum.times(&value.sum)?, ..value }),
                    0.5 => Some(Value { power: Power::Root, ..value }),
                    -0.5 => Some(Value { power: Power::InverseRoot, ..value }),
                    _ => None,
                }
            }
            "Sqrt" => Some(Value { power: Power::Root, ..self.plain(node, 0)? }),
            "Reciprocal" => inverse(self.operand(node, 0)?),
            "ReduceMean" | "ReduceSum" => self.mean(node),
            _ => None,
        }
    }

    fn sum(&self, node: NodeId, sign: f64) -> Option<Value> {
        let (left, right) = (self.plain(node, 0)?, self.plain(node, 1)?);
        let axes = self.atoms.broadcast(&left.axes, &right.axes)?;
        Some(Value { sum: left.sum.plus(&right.sum, sign), axes, ..right })
    }

    fn product(&self, node: NodeId) -> Option<Value> {
        let (left, right) = (self.plain(node, 0)?, self.plain(node, 1)?);
        let axes = self.atoms.broadcast(&left.axes, &right.axes)?;
        let varies = |value: &Value| value.sum.terms.is_empty() && value.sum.constant;
        match (varies(&left), varies(&right)) {
            (true, false) => Some(Value { scaled: true, axes, ..right }),
            (false, true) => Some(Value { scaled: true, axes, ..left }),
            _ => Some(Value { sum: left.sum.times(&right.sum)?, axes, ..right }),
        }
    }

    /// By a number, or 1 by a root.
    fn division(&self, node: NodeId) -> Option<Value> {
        let (above, below) = (self.plain(node, 0)?, self.operand(node, 1)?);
        if below.power != Power::One {
            return (above.sum.number() == Some(1.0)).then(|| inverse(below)).flatten();
        }
        let by = below.sum.number().filter(|_| !below.scaled)?.recip();
        let axes = self.atoms.broadcast(&above.axes, &below.axes)?;
        by.is_finite().then(|| Value { sum: above.sum.clone().scaled(by), axes, ..above })
    }

    fn mean(&self, node: NodeId) -> Option<Value> {
        let (at, value) = (self.at(node), self.plain(node, 0)?);
        let (over, axes) = self.atoms.reduced(&at, &value.axes)?;
        let mut sum = value.sum.mean(&over);
        if self.view.graph.op(node) == "ReduceSum" {
            let (shape, reduced) = (at.shape(0).ok()?, at.reduction(value.axes.len()).ok()?.0);
            let count = reduced.iter().map(|&axis| extent(&shape[axis])).product::<Option<usize>>()?;
            sum = sum.scaled(count as f64);
        }
        Some(Value { sum, axes, ..value })
    }
}

fn inverse(value: Value) -> Option<Value> {
    (value.power == Power::Root).then_some(Value { power: Power::InverseRoot, ..value })
}
