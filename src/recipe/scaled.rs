//! The most common large tensors: a weight whose elements are combined with small tensors. They are
//! computed from the stored bytes to the new bytes, without arrays in between. The result equals
//! that of the evaluator bit for bit.

use std::ops::Range;

use multiversion::multiversion;

use super::evaluate::{StoredPart, Supply, evaluate_from};
use super::{Op, Recipe};
use crate::onnx::tensor::DataType;
use crate::onnx::value_range::ValueRange;
use crate::refusal::{Reason, Refusal};

/// The number of elements that are computed at a time. This many elements fit in the first-level
/// cache.
const BLOCK: usize = 1 << 11;

/// The number of elements that are read at a time.
const READ: usize = 1 << 15;

/// The largest number of elements of a small operand.
const SMALL: usize = 1 << 16;

/// A constant, or a part of it along an axis, with a chain of operations on its elements.
#[derive(Debug)]
pub(super) struct Scaled {
    constant: StoredPart,
    steps: Vec<Applied>,
}

/// An element-wise operation. Its right operand is a small tensor that broadcasts to all elements.
#[derive(Debug)]
struct Applied {
    op: Op,
    operand: Vec<f64>,
    /// The range of the magnitudes of the operand.
    magnitudes: ValueRange,
    /// The axes before a run, the last axis first. For each axis, the extent, and the distance
    /// between places along the axis in the operand.
    axes: Vec<(usize, usize)>,
    /// The number of consecutive elements in a run. A run is combined with one element of the
    /// operand, or one by one with consecutive elements of the operand.
    run: usize,
    /// Whether a run is combined with one element of the operand.
    same: bool,
}

impl Scaled {
    /// Reads a recipe that combines a constant, or a range of it along an axis, with small tensors.
    /// `None` for any other recipe. The result is rounded to `data_type`.
    pub(super) fn from_recipe(
        recipe: &Recipe,
        data_type: DataType,
        supply: &dyn Supply,
    ) -> Option<Self> {
        let mut steps = vec![];
        let recipe = without_rounding(recipe, data_type);
        let mut rest = recipe;
        while rest.len() == recipe.len() {
            if let Some(constant) = StoredPart::from_step(rest, supply) {
                steps.reverse();
                return Some(Self { constant, steps });
            }
            match (rest.op(), rest.inputs()) {
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
    pub(super) fn bounds(&self) -> Option<ValueRange> {
        self.bounds_of(self.constant.floats.seen()?)
    }

    /// Like [`Scaled::bounds`], but only for the elements in a range. Reads these elements of the
    /// constant. `None` if an operation does not scale the elements.
    ///
    /// # Errors
    /// The constant cannot be read.
    pub(super) fn bounds_in(&self, range: Range<usize>) -> Result<Option<ValueRange>, Refusal> {
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
    /// The errors of [`Scaled::bounds_in`] and of `take`, or that a product is 0 although no factor
    /// is.
    pub(super) fn each(
        &self,
        range: Range<usize>,
        take: &mut dyn FnMut(&[f64]) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        // If the bounds are known, a product is 0 only if one of its factors is.
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

    /// Reads the elements of the constant in a range, block by block. `take` gets the index of the
    /// first element of each block.
    fn blocks(
        &self,
        range: Range<usize>,
        mut take: impl FnMut(usize, &mut [f64]) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let (mut buffer, mut block) = (vec![], [0.0; BLOCK]);
        for start in range.clone().step_by(READ) {
            let end = range.end.min(start + READ);
            let floats = &self.constant.floats;
            buffer.resize((end - start) * floats.size(), 0);
            self.constant.read(start, &mut buffer)?;
            for at in (start..end).step_by(BLOCK) {
                let numbers = &mut block[..BLOCK.min(end - at)];
                floats.decode(&buffer[(at - start) * floats.size()..], numbers);
                take(at, numbers)?;
            }
        }
        Ok(())
    }
}

/// The recipe without last steps that round it to an element type.
fn without_rounding(recipe: &Recipe, data_type: DataType) -> &Recipe {
    let mut rest = recipe;
    while let (Op::Round(to), [input]) = (rest.op(), rest.inputs())
        && *to == data_type
    {
        rest = input;
    }
    rest
}

impl Applied {
    fn new(op: &Op, operand: &Recipe, shape: &[usize], supply: &dyn Supply) -> Option<Self> {
        let operand = operand
            .align(shape.len())
            .filter(|operand| operand.len() <= SMALL)?;
        let extents = operand.shape().to_vec();
        // Finds the first axis such that, along this and all later axes, the operand has extent 1
        // or the extents of the tensor.
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

    /// Whether the operation maps 0 to 0, and the range of the other magnitudes is known after it.
    fn scales(&self) -> bool {
        match self.op {
            Op::Mul => true,
            Op::Div => !self.operand.contains(&0.0),
            _ => false,
        }
    }

    /// The range of the magnitudes after the operation, if `of` is their range before it. `None` if
    /// the operation does not scale the elements.
    fn bounds(&self, of: ValueRange) -> Option<ValueRange> {
        match self.op {
            _ if !self.scales() => None,
            Op::Div => of.over(self.magnitudes),
            _ => of.times(self.magnitudes),
        }
    }

    /// Applies the operation to the elements that start at index `at`. Returns `false` if a product
    /// became 0 because it is too small for float64. With `is_bounded`, products cannot become so
    /// small, and this is not checked.
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

/// Whether a product is 0 although neither factor is.
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

/// The distance between neighbouring places along an axis in memory, in elements, or 0 if the
/// operand has extent 1 there.
fn stride(extents: &[usize], axis: usize) -> usize {
    match extents[axis] {
        1 => 0,
        _ => extents[axis + 1..].iter().product(),
    }
}
