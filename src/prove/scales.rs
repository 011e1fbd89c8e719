//! What positive factors pass: `f(k·x) = k·f(x)`.
//!
//! An element of the field has no sign. So a factor counts as positive where it is made of numbers that are: those
//! of one element that recipes are made of, one of them, or two, multiplied or divided; or those that one tensor is
//! multiplied by, one after the other, from some place on.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};

use super::field;
use super::formula;
use super::image::{Elements, Image, slice};
use super::operators::Allowance;
use super::random::{Digest, Hash};
use super::sources::Sources;
use crate::fold::plan::Stored;
use crate::recipe::{Op, Read, Recipe, evaluate};

/// How many numbers the factors are made of, and how many of them any two of.
const MOST: usize = 4096;
const PAIRED: usize = 64;

/// How many of its inputs a positive factor passes together; `None` of other operators.
fn passed(op: (&str, &str), inputs: usize) -> Option<usize> {
    match op {
        ("", "Max" | "Min") => Some(inputs),
        // With its bounds, where they are no attributes.
        ("", "Clip") if inputs > 1 => Some(inputs),
        ("", "Abs" | "GlobalMaxPool" | "LeakyRelu" | "MaxPool" | "PRelu" | "ReduceL1" | "ReduceMax") => {
            Some(1)
        }
        ("", "ReduceMin" | "Relu") => Some(1),
        _ => None,
    }
}

/// Whether a positive factor passes an operator.
pub fn passes(op: (&str, &str)) -> bool {
    passed(op, 2).is_some()
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
    /// The factors that recipes may bring; `None` where there are none.
    pub fn new(tensors: &[Stored], source: &Sources, read: Read, allowance: &Allowance) -> Option<Self> {
        let steps = tensors.iter().flat_map(|tensor| tensor.recipe.steps()).filter(|step| step.len() == 1);
        let mut ids = HashSet::new();
        let positive = |step: &Recipe| {
            let number = *evaluate(step, read).ok()?.first()?;
            let image = *formula::value(step, source, allowance).ok()?.first()?;
            (number > 0.0 && number.is_finite() && image != 0).then_some(image)
        };
        let own = steps.filter(|step| ids.insert(step.id())).take(MOST).filter_map(positive);
        let own: Vec<u32> = own.chain([1]).collect();
        let with_inverses = |numbers: &[u32]| -> Vec<u32> {
            numbers
                .iter()
                .copied()
                .chain(numbers.iter().filter_map(|&number| field::inverse(number)))
                .collect()
        };
        let parts = with_inverses(&own[..own.len().min(PAIRED)]);
        let products = parts.iter().flat_map(|&a| parts.iter().map(move |&b| field::mul(a, b)));
        let mut all: HashSet<u32> = products.chain(with_inverses(&own)).collect();
        for tensor in tensors.iter().take(MOST) {
            let images: Vec<u32> = factors(&tensor.recipe).into_iter().map_while(positive).collect();
            // Of those of a row, what lies between any two of its places may have passed something.
            for first in 0..images.len() {
                let mut product = 1;
                for &image in &images[first..] {
                    product = field::mul(product, image);
                    all.extend([Some(product), field::inverse(product)].into_iter().flatten());
                }
            }
        }
        let positive = all;
        let (original, is_original) = (RefCell::default(), Cell::new(true));
        (positive.len() > 1).then_some(Self { positive, original, is_original })
    }

    /// From now on it is the folded model.
    pub fn turn(&self) {
        self.is_original.set(false);
    }

    /// How many factors count as positive.
    pub fn len(&self) -> usize {
        self.positive.len()
    }

    /// The positive factor by which what an operator reads has to be multiplied to be what the original applies it to,
    /// or applied it to before.
    pub fn factor(&self, op: (&str, &str), function: Digest, inputs: &[Option<Image>]) -> Option<u32> {
        let (scaled, others) = inputs.split_at_checked(passed(op, inputs.len())?)?;
        let scaled: Vec<Option<&Elements>> = scaled
            .iter()
            .map(|input| match input {
                Some(Image::Field(elements)) => Some(Some(elements)),
                None => Some(None),
                _ => None,
            })
            .collect::<Option<_>>()?;
        let first =
            *scaled.iter().flatten().flat_map(|elements| slice(elements)).find(|&&element| element != 0)?;
        let part = field::inverse(first)?;
        let mut hash = Hash::new(0, "scaled");
        hash.digest(function);
        for elements in scaled {
            hash.number(elements.is_some().into());
            elements.iter().for_each(|elements| hash.digest(Image::Field(times(elements, part)).digest(0)));
        }
        for other in others {
            hash.number(other.is_some().into());
            other.iter().for_each(|other| hash.digest(other.digest(0)));
        }
        let mut original = self.original.borrow_mut();
        let before = original.entry(hash.finish()).or_default();
        let mut factors = before.iter().map(|&before| field::mul(before, part));
        let factor = factors.find(|factor| self.positive.contains(factor));
        if factor.is_none() && self.is_original.get() {
            before.push(first);
        }
        factor.filter(|&factor| factor != 1)
    }

    /// Whether all that a factor would multiply is 0: so is the result, for `f(k·0) = k·f(0)`.
    pub fn is_nothing(op: (&str, &str), inputs: &[Option<Image>]) -> bool {
        let scaled = passed(op, inputs.len()).and_then(|count| inputs.get(..count));
        let is_zero = |input: &Option<Image>| match input {
            Some(Image::Field(elements)) => slice(elements).iter().all(|&element| element == 0),
            None => true,
            Some(_) => false,
        };
        scaled.is_some_and(|scaled| scaled.iter().all(is_zero))
    }

    /// What the operator reads, multiplied by the factor.
    pub fn scaled(op: (&str, &str), inputs: &[Option<Image>], factor: u32) -> Vec<Option<Image>> {
        let count = passed(op, inputs.len()).unwrap_or_default();
        let scaled = |(slot, input): (usize, &Option<Image>)| match input {
            Some(Image::Field(elements)) if slot < count => Some(Image::Field(times(elements, factor))),
            other => other.clone(),
        };
        inputs.iter().enumerate().map(scaled).collect()
    }
}

/// The numbers that a tensor is multiplied by, the last one first, at most so many as are looked at.
fn factors(recipe: &Recipe) -> Vec<&Recipe> {
    let (mut at, mut factors) = (recipe, vec![]);
    while factors.len() < PAIRED {
        at = match (at.op(), at.inputs()) {
            (Op::Mul, [one, other]) => {
                let (factor, rest) = if one.len() < other.len() { (one, other) } else { (other, one) };
                factors.extend(Some(factor).filter(|factor| factor.len() == 1));
                rest
            }
            (Op::Reshape | Op::Round(_) | Op::Transpose(_) | Op::Neg, [inner]) => inner,
            _ => break,
        };
    }
    factors
}

/// Every element multiplied by a factor.
pub fn times(elements: &Elements, factor: u32) -> Elements {
    elements.mapv(|element| field::mul(element, factor)).into_shared()
}
