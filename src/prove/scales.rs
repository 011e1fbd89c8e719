//! Positive factors that operators pass: `f(k·x) = k·f(x)`.
//!
//! An element of the field has no sign. So a factor counts as positive where it is made of numbers that are: those
//! of one element that recipes are made of, one of them, or two, multiplied or divided; or those that one tensor is
//! multiplied by, or a channel of it, one after the other, from some place on.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};

use ndarray::ArrayD;

use super::field;
use super::formula;
use super::operators::Allowance;
use super::random::{Digest, Hash};
use super::sources::Sources;
use crate::affine::plan::Stored;
use crate::prove::field_value::{Elements, FieldValue, slice};
use crate::recipe::{Op, Read, Recipe, evaluate};

/// How many numbers the factors are made of, and how many of them any two of.
const MOST: usize = 4096;
const PAIRED: usize = 64;

/// Of how many parts of a sum.
const PARTS: usize = 16;

/// How many factors there are at most, with those of channels.
const CHANNELS: usize = 1 << 16;

/// How many of its inputs a positive factor passes together; `None` of other operators.
fn passed(op: (&str, &str), inputs: usize) -> Option<usize> {
    match op {
        ("", "Max" | "Min") => Some(inputs),
        // With its bounds, where they are no attributes.
        ("", "Clip") if inputs > 1 => Some(inputs),
        (
            "",
            "Abs" | "GlobalMaxPool" | "LeakyRelu" | "MaxPool" | "PRelu" | "ReduceL1" | "ReduceMax",
        ) => Some(1),
        ("", "ReduceMin" | "Relu") => Some(1),
        _ => None,
    }
}

/// Whether an operator makes each element of one that it reads, so that extents do not matter.
fn is_of_elements(op: (&str, &str)) -> bool {
    matches!(op, ("", "Abs" | "LeakyRelu" | "Relu"))
}

/// Whether a positive factor passes an operator.
pub fn passes(op: (&str, &str)) -> bool {
    passed(op, 2).is_some()
}

/// Whether every element of a value is 0.
fn is_zero(value: &FieldValue) -> bool {
    match value {
        FieldValue::Field(elements) => slice(elements).iter().all(|&element| element == 0),
        _ => false,
    }
}

/// The factors between what the original applies such operators to and what the folded model does.
pub struct Scales {
    positive: HashSet<u32>,
    /// The first elements of values that the original applies one to, by all of them divided by it; none of them is
    /// another one times a positive factor.
    original: RefCell<HashMap<Digest, Vec<u32>>>,
    is_original: Cell<bool>,
}

impl Scales {
    /// The factors that recipes may introduce; `None` without any.
    pub fn new(
        tensors: &[Stored],
        source: &Sources,
        read: Read,
        allowance: &Allowance,
    ) -> Option<Self> {
        let steps = tensors
            .iter()
            .flat_map(|tensor| tensor.recipe.steps())
            .filter(|step| step.len() == 1);
        let mut ids = HashSet::new();
        let own = steps
            .filter(|step| ids.insert(step.id()))
            .take(MOST)
            .filter_map(|step| images(step, read, source, allowance)?.first().copied()?);
        let own: Vec<u32> = own.chain([1]).collect();
        let parts = with_inverses(&own[..own.len().min(PAIRED)]);
        let products = parts
            .iter()
            .flat_map(|&a| parts.iter().map(move |&b| field::mul(a, b)));
        let mut all: HashSet<u32> = products.chain(with_inverses(&own)).collect();
        for tensor in tensors.iter().take(MOST) {
            for of_channels in factors(&tensor.recipe) {
                let numbers = of_channels
                    .iter()
                    .copied()
                    .filter(|factor| factor.len() == 1)
                    .collect();
                for factors in [numbers, of_channels] {
                    let rows = factors
                        .into_iter()
                        .map_while(|factor| images(factor, read, source, allowance));
                    extend(&mut all, &rows.collect::<Vec<_>>());
                }
            }
        }
        (all.len() > 1).then_some(Self {
            positive: all,
            original: RefCell::default(),
            is_original: Cell::new(true),
        })
    }

    /// From now on it is the folded model.
    pub fn turn(&self) {
        self.is_original.set(false);
    }

    /// How many factors count as positive.
    pub fn len(&self) -> usize {
        self.positive.len()
    }

    /// The positive factor between an operator's inputs and the inputs of the same operator in the
    /// original, or of an earlier one.
    pub fn factor(
        &self,
        op: (&str, &str),
        function: Digest,
        inputs: &[Option<FieldValue>],
    ) -> Option<u32> {
        let (scaled, others) = inputs.split_at_checked(passed(op, inputs.len())?)?;
        let scaled: Vec<Option<&Elements>> = scaled
            .iter()
            .map(|input| match input {
                Some(FieldValue::Field(elements)) => Some(Some(elements)),
                None => Some(None),
                _ => None,
            })
            .collect::<Option<_>>()?;
        let first = *scaled
            .iter()
            .flatten()
            .flat_map(|elements| slice(elements))
            .find(|&&element| element != 0)?;
        let part = field::inverse(first)?;
        let mut hash = Hash::new(0, "scaled");
        hash.digest(function);
        for elements in scaled {
            hash.number(elements.is_some().into());
            elements.iter().for_each(|elements| {
                let divided = times(elements, part);
                let divided = if is_of_elements(op) {
                    in_a_row(divided)
                } else {
                    divided
                };
                hash.digest(FieldValue::Field(divided).digest(0));
            });
        }
        for other in others {
            hash.number(other.is_some().into());
            other.iter().for_each(|other| hash.digest(other.digest(0)));
        }
        let factor = field::mul(self.first(hash.finish(), first), part);
        Some(factor).filter(|&factor| factor != 1)
    }

    /// The first element of a lane of the original that equals this lane up to a positive factor,
    /// or of an earlier one; the lane's own first element, where there is none. The digest
    /// identifies the operator, and all elements divided by the first.
    pub fn first(&self, divided: Digest, first: u32) -> u32 {
        let mut original = self.original.borrow_mut();
        let before = original.entry(divided).or_default();
        let part = field::inverse(first);
        let found = part.and_then(|part| {
            let mut before = before.iter().copied();
            before.find(|&before| self.positive.contains(&field::mul(before, part)))
        });
        if found.is_none() && self.is_original.get() {
            before.push(first);
        }
        found.unwrap_or(first)
    }

    /// Whether all that a factor would multiply is 0: so is the result, for `f(k·0) = k·f(0)`.
    pub fn is_nothing(op: (&str, &str), inputs: &[Option<FieldValue>]) -> bool {
        let scaled = passed(op, inputs.len()).and_then(|count| inputs.get(..count));
        scaled.is_some_and(|scaled| scaled.iter().flatten().all(is_zero))
    }

    /// The operator's inputs, multiplied by the factor.
    pub fn scaled(
        op: (&str, &str),
        inputs: &[Option<FieldValue>],
        factor: u32,
    ) -> Vec<Option<FieldValue>> {
        let count = passed(op, inputs.len()).unwrap_or_default();
        let mut inputs = inputs.to_vec();
        for input in inputs.iter_mut().take(count).flatten() {
            if let FieldValue::Field(elements) = input {
                *elements = times(elements, factor);
            }
        }
        inputs
    }
}

/// Numbers, and their inverses.
fn with_inverses(numbers: &[u32]) -> Vec<u32> {
    let inverses = numbers.iter().filter_map(|&number| field::inverse(number));
    numbers.iter().copied().chain(inverses).collect()
}

/// Any run of factors of a row may pass an operator: their products, and the inverses.
fn extend(all: &mut HashSet<u32>, rows: &[Vec<Option<u32>>]) {
    for first in 0..rows.len() {
        let mut products = vec![Some(1)];
        for row in &rows[first..] {
            match multiplied(&products, row).filter(|next| all.len() + 2 * next.len() <= CHANNELS) {
                Some(next) if next.iter().any(Option::is_some) => products = next,
                _ => break,
            }
            let inverses = products
                .iter()
                .flatten()
                .map(|&product| field::inverse(product));
            let found: Vec<u32> = products.iter().copied().chain(inverses).flatten().collect();
            all.extend(found);
        }
    }
}

/// The images of numbers, `None` where one is not positive; nothing where they cannot be had.
fn images(
    step: &Recipe,
    read: Read,
    source: &Sources,
    allowance: &Allowance,
) -> Option<Vec<Option<u32>>> {
    let (numbers, elements) = (
        evaluate(step, read).ok()?,
        formula::value(step, source, allowance).ok()?,
    );
    let pairs = numbers.iter().zip(slice(&elements));
    let images = pairs.map(|(&number, &image)| {
        let is_positive = number > 0.0 && number.is_finite() && image != 0;
        is_positive.then_some(image)
    });
    Some(images.collect())
}

/// The products of two rows of as many numbers, or of one with each of them.
fn multiplied(one: &[Option<u32>], other: &[Option<u32>]) -> Option<Vec<Option<u32>>> {
    let (short, long) = if one.len() < other.len() {
        (one, other)
    } else {
        (other, one)
    };
    let fits = short.len() == 1 || short.len() == long.len();
    let pairs = long.iter().zip(short.iter().cycle());
    fits.then(|| pairs.map(|(&a, &b)| Some(field::mul(a?, b?))).collect())
}

/// The numbers that a tensor is multiplied by, alone or one for each channel, the last ones first, at most so many as are
/// looked at: for each part of a sum those of all of it, and its own.
fn factors(recipe: &Recipe) -> Vec<Vec<&Recipe>> {
    let (mut open, mut parts) = (vec![(recipe, vec![])], vec![]);
    while let Some((at, mut factors)) = open.pop() {
        match (at.op(), at.inputs()) {
            (Op::Mul, [one, other]) if factors.len() < PAIRED => {
                let (factor, rest) = if one.len() < other.len() {
                    (one, other)
                } else {
                    (other, one)
                };
                multiplied_by(factor, &mut factors);
                open.push((rest, factors));
            }
            (Op::Reshape | Op::Round(_) | Op::Transpose(_) | Op::Neg, [inner]) => {
                open.push((inner, factors))
            }
            (Op::Add | Op::Sub, [one, other]) if open.len() + parts.len() < PARTS => {
                open.extend([(one, factors.clone()), (other, factors)]);
            }
            _ => {
                // Of one vector times another one each may be what passed.
                let is_alike = factors
                    .last()
                    .is_some_and(|last: &&Recipe| last.len() == at.len());
                factors.extend(Some(at).filter(|_| is_alike));
                parts.push(factors);
            }
        }
    }
    parts
}

/// All elements along one axis.
fn in_a_row(elements: Elements) -> Elements {
    let row: Vec<u32> = slice(&elements).to_vec();
    ArrayD::from_shape_vec(vec![row.len()], row)
        .expect("as many elements")
        .into_shared()
}

/// The factors that one is the product of, the last ones first.
fn multiplied_by<'r>(factor: &'r Recipe, factors: &mut Vec<&'r Recipe>) {
    let mut open = vec![factor];
    while let Some(factor) = open.pop().filter(|_| factors.len() < PAIRED) {
        match (factor.op(), factor.inputs()) {
            (Op::Mul, [first, last]) => open.extend([first, last]),
            (Op::Reshape, [inner]) => open.push(inner),
            _ => factors.extend(Some(factor).filter(|factor| factor.len() <= MOST)),
        }
    }
}

/// Every element multiplied by a factor.
pub fn times(elements: &Elements, factor: u32) -> Elements {
    elements
        .mapv(|element| field::mul(element, factor))
        .into_shared()
}
