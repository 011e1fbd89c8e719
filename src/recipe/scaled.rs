//! The most common of the large tensors, a weight and small tensors that are applied to its elements: from the bytes
//! that are stored to those that will be without arrays in between, and bit for bit what the evaluator gives.

use std::ops::Range;

use multiversion::multiversion;

use super::evaluate::{Supply, evaluate_from};
use super::{Op, Recipe};
use crate::onnx::tensor::{DataType, Floats};
use crate::onnx::value_range::ValueRange;
use crate::refusal::{Reason, Refusal};

/// How many numbers are in the works at a time: they stay in the nearest cache.
const BLOCK: usize = 1 << 11;

/// How many are read at a time.
const READ: usize = 1 << 15;

/// Beyond this many elements an operand is not small.
const SMALL: usize = 1 << 16;

/// A constant with a chain of operations on its elements.
#[derive(Debug)]
pub(super) struct Scaled {
    floats: Floats,
    steps: Vec<Applied>,
}

/// One operation on all elements, each with an element of a small tensor on its right.
#[derive(Debug)]
struct Applied {
    op: Op,
    operand: Vec<f64>,
    /// How small and how large the operand is.
    magnitudes: ValueRange,
    /// The axes before a run, the last one first: their extents, and how far their places are apart in the operand.
    axes: Vec<(usize, usize)>,
    /// How many elements in a row meet one element of the operand, or as many in a row.
    run: usize,
    /// Whether a run meets one.
    same: bool,
}

impl Scaled {
    /// The recipe in this form; `None` if it has another one.
    pub fn from_recipe(recipe: &Recipe, supply: &dyn Supply) -> Option<Self> {
        let mut steps = vec![];
        let mut rest = recipe;
        while rest.len() == recipe.len() {
            match (rest.op(), rest.inputs()) {
                (Op::Constant(name), _) => {
                    let floats = supply
                        .floats(name)
                        .filter(|floats| floats.shape() == rest.shape())?;
                    steps.reverse();
                    return Some(Self {
                        floats: floats.clone(),
                        steps,
                    });
                }
                (Op::Reshape, [input]) => rest = input,
                (op @ (Op::Add | Op::Mul), [small, large]) if small.len() < large.len() => {
                    steps.push(Applied::new(op, small, rest.shape(), supply)?);
                    rest = large;
                }
                (op @ (Op::Add | Op::Sub | Op::Mul | Op::Div), [large, small]) => {
                    steps.push(Applied::new(op, small, rest.shape(), supply)?);
                    rest = large;
                }
                _ => return None,
            }
        }
        None
    }

    /// The range of all magnitudes except 0, if the range of the constant is known.
    pub fn bounds(&self) -> Option<ValueRange> {
        self.bounds_of(self.floats.seen()?)
    }

    /// As [`Scaled::bounds`], of the elements of a range, whose constant is looked at.
    ///
    /// # Errors
    /// Where the constant cannot be read.
    pub fn bounds_in(&self, range: Range<usize>) -> Result<Option<ValueRange>, Refusal> {
        if !self.steps.iter().all(Applied::scales) {
            return Ok(None);
        }
        let mut seen = ValueRange::NONE;
        self.blocks(range, |_, numbers| {
            seen = seen.and(ValueRange::from_numbers(numbers));
            Ok(())
        })?;
        Ok(self.bounds_of(seen))
    }

    fn bounds_of(&self, constant: ValueRange) -> Option<ValueRange> {
        self.steps
            .iter()
            .try_fold(constant, |bounds, step| step.bounds(bounds))
    }

    /// Computes the elements of a range, block by block.
    ///
    /// # Errors
    /// As [`Scaled::bounds_in`], where a product is 0 though no factor is, and what taking them says.
    pub fn each(
        &self,
        range: Range<usize>,
        take: &mut dyn FnMut(&[f64]) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        // Where all lie between bounds, no product is 0 but of one.
        let is_bounded = self.bounds().is_some();
        self.blocks(range, |at, numbers| {
            match self
                .steps
                .iter()
                .all(|step| step.apply(numbers, at, is_bounded))
            {
                true => take(numbers),
                false => Err(Refusal::new(Reason::Underflow(DataType::Double.name()), "")),
            }
        })
    }

    /// Reads the constant's elements of a range, block by block, each with the place of its first.
    fn blocks(
        &self,
        range: Range<usize>,
        mut take: impl FnMut(usize, &mut [f64]) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let (mut buffer, mut block) = (vec![], [0.0; BLOCK]);
        for start in range.clone().step_by(READ) {
            let end = range.end.min(start + READ);
            let read = self.floats.read_bytes(start..end, &mut buffer);
            read.map_err(|error| Refusal::new(Reason::Constant(error.to_string()), ""))?;
            for at in (start..end).step_by(BLOCK) {
                let numbers = &mut block[..BLOCK.min(end - at)];
                self.floats
                    .decode(&buffer[(at - start) * self.floats.size()..], numbers);
                take(at, numbers)?;
            }
        }
        Ok(())
    }
}

impl Applied {
    fn new(op: &Op, operand: &Recipe, shape: &[usize], supply: &dyn Supply) -> Option<Self> {
        let operand = operand
            .align(shape.len())
            .filter(|operand| operand.len() <= SMALL)?;
        let extents = operand.shape().to_vec();
        // From the first axis on behind which the operand is one number, or has all places.
        let first = (0..=shape.len())
            .find(|&axis| is_one_number(&extents[axis..]) || extents[axis..] == shape[axis..])?;
        let operand: Vec<f64> = evaluate_from(&operand, supply).ok()?.into_iter().collect();
        Some(Self {
            op: op.clone(),
            magnitudes: ValueRange::from_numbers(&operand),
            operand,
            axes: (0..first)
                .rev()
                .map(|axis| (shape[axis], stride(&extents, axis)))
                .collect(),
            run: shape[first..].iter().product(),
            same: is_one_number(&extents[first..]),
        })
    }

    /// Whether it keeps a 0, and the magnitudes of all others follow from theirs.
    fn scales(&self) -> bool {
        match self.op {
            Op::Mul => true,
            Op::Div => !self.operand.contains(&0.0),
            _ => false,
        }
    }

    /// The range after the operation.
    fn bounds(&self, of: ValueRange) -> Option<ValueRange> {
        match self.op {
            _ if !self.scales() => None,
            Op::Div => of.over(self.magnitudes),
            _ => of.times(self.magnitudes),
        }
    }

    /// Does it to the elements from one on. Says whether no product became 0 only because nothing is so small, unless that is
    /// known not to be.
    fn apply(&self, numbers: &mut [f64], mut at: usize, is_bounded: bool) -> bool {
        let mut kept = true;
        let mut rest = numbers;
        while !rest.is_empty() {
            let (mut row, within) = (at / self.run, at % self.run);
            let (run, others) = rest.split_at_mut(rest.len().min(self.run - within));
            let mut place = 0;
            for &(extent, stride) in &self.axes {
                place += row % extent * stride;
                row /= extent;
            }
            at += run.len();
            kept &= match self.same {
                true => by_one(&self.op, run, self.operand[place], is_bounded),
                false => by_each(&self.op, run, &self.operand[place + within..], is_bounded),
            };
            rest = others;
        }
        kept
    }
}

/// Whether a product is 0 though neither factor is.
#[inline(always)]
fn vanished(product: f64, a: f64, b: f64) -> bool {
    (product == 0.0) & (a != 0.0) & (b != 0.0)
}

#[multiversion(targets = "simd")]
fn by_one(op: &Op, numbers: &mut [f64], other: f64, is_bounded: bool) -> bool {
    let mut lost = false;
    match op {
        Op::Add => numbers.iter_mut().for_each(|number| *number += other),
        Op::Sub => numbers.iter_mut().for_each(|number| *number -= other),
        Op::Div => numbers.iter_mut().for_each(|number| *number /= other),
        _ if is_bounded => numbers.iter_mut().for_each(|number| *number *= other),
        _ => {
            for number in numbers {
                let product = *number * other;
                lost |= vanished(product, *number, other);
                *number = product;
            }
        }
    }
    !lost
}

#[multiversion(targets = "simd")]
fn by_each(op: &Op, numbers: &mut [f64], others: &[f64], is_bounded: bool) -> bool {
    let mut lost = false;
    let pairs = numbers.iter_mut().zip(others);
    match op {
        Op::Add => pairs.for_each(|(number, other)| *number += other),
        Op::Sub => pairs.for_each(|(number, other)| *number -= other),
        Op::Div => pairs.for_each(|(number, other)| *number /= other),
        _ if is_bounded => pairs.for_each(|(number, other)| *number *= other),
        _ => {
            for (number, &other) in pairs {
                let product = *number * other;
                lost |= vanished(product, *number, other);
                *number = product;
            }
        }
    }
    !lost
}

fn is_one_number(extents: &[usize]) -> bool {
    extents.iter().all(|&extent| extent == 1)
}

/// The distance between places along an axis, 0 where the operand is constant along it.
fn stride(extents: &[usize], axis: usize) -> usize {
    match extents[axis] {
        1 => 0,
        _ => extents[axis + 1..].iter().product(),
    }
}
