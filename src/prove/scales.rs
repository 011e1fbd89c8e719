//! Positive factors that pass through operators: `f(k·x) = k·f(x)`.
//!
//! An element of the field has no sign. So a factor counts as positive only if it is built from
//! positive numbers in recipes: a scalar, a product or quotient of two scalars, or a product of
//! successive factors of a tensor or its channels in a recipe.

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

/// The maximum number of scalars in recipes that are used as factors (`MOST`), and the number of
/// those scalars that are also multiplied by each other and by each other's inverses (`PAIRED`).
const MOST: usize = 4096;
const PAIRED: usize = 64;

/// The maximum number of terms of a recipe's sums in which factors are searched for.
const PARTS: usize = 16;

/// The maximum number of factors that count as positive, including those of single channels.
const CHANNELS: usize = 1 << 16;

/// The number of inputs, counted from the first, that a positive factor must multiply so that it
/// multiplies the result. `None` if a factor does not pass the operator.
fn passed(op: (&str, &str), inputs: usize) -> Option<usize> {
    match op {
        ("", "Max" | "Min") => Some(inputs),
        // If the bounds are inputs, the factor multiplies them too. Bounds in attributes cannot be
        // multiplied.
        ("", "Clip") if inputs > 1 => Some(inputs),
        (
            "",
            "Abs" | "GlobalMaxPool" | "LeakyRelu" | "MaxPool" | "PRelu" | "ReduceL1" | "ReduceMax",
        ) => Some(1),
        ("", "DynamicQuantizeLinear" | "ReduceMin" | "Relu") => Some(1),
        _ => None,
    }
}

/// The index of the result that the factor multiplies. For a quantization this is its scale,
/// because the quantized integers do not depend on the factor.
pub(super) fn multiplied_result(op: (&str, &str)) -> usize {
    usize::from(op == ("", "DynamicQuantizeLinear"))
}

/// Whether each element of the result depends on only one element of the input. Inputs of such an
/// operator that have equal elements in the same order count as equal, even if their extents
/// differ.
fn is_of_elements(op: (&str, &str)) -> bool {
    matches!(op, ("", "Abs" | "LeakyRelu" | "Relu"))
}

/// Whether a positive factor passes an operator.
pub(super) fn passes(op: (&str, &str)) -> bool {
    passed(op, 2).is_some()
}

/// Whether every element of a value is 0.
fn is_zero(value: &FieldValue) -> bool {
    match value {
        FieldValue::Field(elements) => slice(elements).iter().all(|&element| element == 0),
        _ => false,
    }
}

/// The positive factors that may turn an operand in the folded model into the corresponding operand
/// in the original.
pub(super) struct Scales {
    positive: HashSet<u32>,
    /// The first nonzero elements of operands in the original, by the digest of the operand divided
    /// by this element. No two elements under a digest differ by a known positive factor.
    original: RefCell<HashMap<Digest, Vec<u32>>>,
    is_original: Cell<bool>,
}

impl Scales {
    /// The factors that recipes may introduce. `None` if there are none.
    pub(super) fn new(
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

    /// Switches from the original to the folded model.
    pub(super) fn turn(&self) {
        self.is_original.set(false);
    }

    /// The number of factors that count as positive.
    pub(super) fn len(&self) -> usize {
        self.positive.len()
    }

    /// Finds the positive factor that turns these inputs into the inputs of a node with the same
    /// function in the original, or earlier in the same graph. `None` if the factor is 1 or does
    /// not exist.
    pub(super) fn factor(
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

    /// Finds a lane of the original that equals this lane up to a positive factor, and returns that
    /// lane's first element. Otherwise returns `first`, the lane's own first element. `divided`
    /// identifies the operator and all elements of the lane divided by the first one.
    pub(super) fn first(&self, divided: Digest, first: u32) -> u32 {
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

    /// Whether all inputs that a factor would multiply are 0. Then the result is 0 too, since
    /// `f(k·0) = k·f(0)`. False for a DynamicQuantizeLinear, because the factor multiplies its
    /// second result.
    pub(super) fn is_nothing(op: (&str, &str), inputs: &[Option<FieldValue>]) -> bool {
        let scaled = passed(op, inputs.len()).and_then(|count| inputs.get(..count));
        multiplied_result(op) == 0
            && scaled.is_some_and(|scaled| scaled.iter().flatten().all(is_zero))
    }

    /// The inputs of an operator, of which those that a factor must multiply are multiplied by
    /// `factor`.
    pub(super) fn scaled(
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

/// Numbers and their inverses.
fn with_inverses(numbers: &[u32]) -> Vec<u32> {
    let inverses = numbers.iter().filter_map(|&number| field::inverse(number));
    numbers.iter().copied().chain(inverses).collect()
}

/// Adds the product of every sequence of successive factors, and its inverse, because an operator
/// may meet the factors of any such sequence together.
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

/// The images of the elements of a step. An element that is not positive is `None`. The whole
/// result is `None` if the images cannot be computed.
fn images(
    step: &Recipe,
    read: Read,
    source: &Sources,
    allowance: &Allowance,
) -> Option<Vec<Option<u32>>> {
    let (numbers, elements) = (
        evaluate(step, read).ok()?,
        formula::value(step, source, allowance).ok()?.images()?,
    );
    let pairs = numbers.iter().zip(slice(&elements));
    let images = pairs.map(|(&number, &image)| {
        let is_positive = number > 0.0 && number.is_finite() && image != 0;
        is_positive.then_some(image)
    });
    Some(images.collect())
}

/// The element-wise products of two rows of equal length, or the products of a single element with
/// each element of a row. A product is `None` if a factor is. The whole result is `None` if the
/// lengths differ and neither is 1.
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

/// The factors that a recipe applies to a tensor or its channels, the last ones first, at most
/// `PAIRED`. A sum gives one list for each term: the factors of the sum, then the factors of the
/// term.
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
                // In a product of two vectors of equal length, either vector may be the factor, so
                // both are listed.
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

/// The elements as a vector.
fn in_a_row(elements: Elements) -> Elements {
    let row: Vec<u32> = slice(&elements).to_vec();
    ArrayD::from_shape_vec(vec![row.len()], row)
        .expect("as many elements")
        .into_shared()
}

/// Adds the factors of a product to `factors`, the last one first. Leaves out factors with more
/// than `MOST` elements.
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

/// All elements, multiplied by a factor.
pub(super) fn times(elements: &Elements, factor: u32) -> Elements {
    elements
        .mapv(|element| field::mul(element, factor))
        .into_shared()
}
