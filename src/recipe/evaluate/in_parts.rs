//! Products and sums with an operand that is too large to be computed whole.

use std::ops::Range;

use ndarray::{Array2, ArrayD, Axis};

use super::cut::Cutting;
use super::kernels::{add_times, dot_each, multiply};
use super::stored_part::StoredPart;
use super::{PART, Supply, evaluate_from};
use crate::onnx::value_range::ValueRange;
use crate::recipe::{Op, Recipe, aligned_extent};
use crate::refusal::Refusal;

/// The order in which a product, a convolution or a sum with a large operand is computed in parts. The
/// large operand has several places along the axis that is cut, so each part of the operand is
/// smaller than the whole.
#[derive(Clone, Copy)]
pub(super) enum PartOrder {
    /// Parts of the result along an axis, each computed separately.
    Result(usize),
    /// Parts of the sums: places along the last axis of the left operand and the second-last axis
    /// of the right operand.
    Sums,
}

impl PartOrder {
    /// The order for a step. `None` if the step is computed whole.
    pub(super) fn from_recipe(step: &Recipe) -> Option<Self> {
        let order = match (step.op(), step.inputs()) {
            (Op::Sum(along), [large]) => Self::of_sum(step, large, *along),
            (_, [left, right]) => Self::of_two(step, left, right),
            _ => None,
        };
        order.filter(|order| order.extent(step) > 1)
    }

    /// The order for a sum over an axis, such that the large operand is read from front to back.
    fn of_sum(step: &Recipe, large: &Recipe, along: usize) -> Option<Self> {
        let first = step.shape().iter().position(|&extent| extent > 1)?;
        (large.len() > PART && first < along).then_some(Self::Result(first))
    }

    /// The order for a step with two inputs.
    fn of_two(step: &Recipe, left: &Recipe, right: &Recipe) -> Option<Self> {
        let (most, least) = (left.len().max(right.len()), left.len().min(right.len()));
        if most <= PART || least > most / 2 || step.is_empty() {
            return None;
        }
        let is_left = left.len() == most;
        let large = if is_left { left } else { right };
        match step.op() {
            Op::Product => Some(Self::of_product(step, large, is_left)),
            Op::Conv(_) if is_left => Some(Self::Result(usize::from(step.shape()[0] == 1))),
            _ => None,
        }
    }

    /// The order for a matrix product, such that the large operand is read from front to back and
    /// only once.
    fn of_product(step: &Recipe, large: &Recipe, is_left: bool) -> Self {
        let (rows, columns) = (step.rank() - 2, step.rank() - 1);
        let is_turned = matches!(large.op(), Op::Transpose(_));
        let has_stacks = step.shape()[..rows].iter().any(|&extent| extent > 1);
        let stack = (0..rows).find(|&axis| aligned_extent(large.shape(), step.rank(), axis) > 1);
        match stack {
            Some(axis) => Self::Result(axis),
            None if is_left && (has_stacks || !is_turned) => Self::Result(rows),
            None if !is_left && (has_stacks || is_turned) => Self::Result(columns),
            None => Self::Sums,
        }
    }

    /// The extent of the axis that is cut into parts.
    fn extent(self, step: &Recipe) -> usize {
        match self {
            Self::Result(axis) => step.shape()[axis],
            Self::Sums => step.inputs()[0].shape().last().copied().unwrap_or(1),
        }
    }

    /// The stored constant by which the step multiplies a row. `None` if the step does something
    /// else, or if the elements of the constant are not stored in the order of the parts.
    fn stored(self, step: &Recipe, supply: &dyn Supply) -> Option<StoredPart> {
        let ([_, right], [others @ .., _]) = (step.inputs(), step.shape()) else {
            return None;
        };
        let is_row = others.iter().all(|&extent| extent == 1);
        let last = step.rank() - 1;
        let constant = match (self, right.op(), right.inputs()) {
            _ if !is_row || right.rank() != 2 => return None,
            (Self::Sums, _, _) => right,
            (Self::Result(axis), Op::Transpose(_), [turned]) if axis == last => turned,
            _ => return None,
        };
        StoredPart::from_step(constant, supply)
    }

    pub(super) fn compute(
        self,
        step: &Recipe,
        supply: &dyn Supply,
    ) -> Result<ArrayD<f64>, Refusal> {
        let extent = self.extent(step);
        let largest = step.inputs().iter().map(Recipe::len).max().unwrap_or(1);
        let parts = PartwiseProduct {
            step,
            supply,
            extent,
            places: (PART * extent / largest).max(1),
        };
        match (self, self.stored(step, supply)) {
            (_, Some(stored)) => parts.row_by_stored(self, &stored),
            (Self::Result(axis), None) => parts.of_result(axis),
            (Self::Sums, None) => parts.of_sums(),
        }
    }
}

/// A step that is computed in parts.
struct PartwiseProduct<'s> {
    step: &'s Recipe,
    supply: &'s dyn Supply,
    /// The extent of the axis that is cut into parts.
    extent: usize,
    /// The number of places along this axis in each part.
    places: usize,
}

impl PartwiseProduct<'_> {
    fn operands(&self) -> [&Recipe; 2] {
        let [left, right] = self.step.inputs() else {
            unreachable!("a product has two operands")
        };
        [left, right]
    }

    fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        let (extent, places) = (self.extent, self.places);
        (0..extent)
            .step_by(places)
            .map(move |from| from..extent.min(from + places))
    }

    /// Computes the product of a row and a stored constant.
    fn row_by_stored(&self, order: PartOrder, stored: &StoredPart) -> Result<ArrayD<f64>, Refusal> {
        let [left, right] = self.operands();
        let row = evaluate_from(left, self.supply)?;
        let row = row.as_slice().unwrap_or_default();
        let mut result = ArrayD::zeros(self.step.shape());
        let sums = result.as_slice_mut().unwrap_or_default();
        // The number of elements of the constant for each place of the axis.
        let behind = right.len() / self.extent;
        let mut buffer = vec![];
        let mut numbers = vec![0.0; self.places * behind];
        let floats = &stored.floats;
        let mut seen = ValueRange::NONE;
        for range in self.ranges() {
            let numbers = &mut numbers[..range.len() * behind];
            buffer.resize(numbers.len() * floats.size(), 0);
            stored.read(range.start * behind, &mut buffer)?;
            seen = seen.and(floats.magnitudes(&buffer));
            floats.decode(&buffer, numbers);
            match order {
                PartOrder::Sums => {
                    for (&factor, numbers) in row[range].iter().zip(numbers.chunks_exact(behind)) {
                        add_times(factor, numbers, sums);
                    }
                }
                PartOrder::Result(_) => dot_each(row, numbers, &mut sums[range]),
            }
        }
        // Records the range of the constant's magnitudes, so that scaling need not read the
        // constant again.
        if stored.is_whole {
            floats.see(seen);
        }
        Ok(result)
    }

    /// Computes the result part by part along an axis.
    fn of_result(&self, axis: usize) -> Result<ArrayD<f64>, Refusal> {
        let mut cutting = Cutting::default();
        let mut result = ArrayD::zeros(self.step.shape());
        for range in self.ranges() {
            let recipe = cutting.recipe(self.step, axis, range.clone());
            let part = evaluate_from(&recipe, self.supply)?;
            result
                .slice_axis_mut(Axis(axis), range.into())
                .assign(&part);
        }
        Ok(result)
    }

    /// Computes the sums of one matrix product from parts of its operands.
    fn of_sums(&self) -> Result<ArrayD<f64>, Refusal> {
        let [left, right] = self.operands();
        let [.., rows, columns] = *self.step.shape() else {
            unreachable!("a matrix has two axes")
        };
        let mut cutting = Cutting::default();
        let mut result = ArrayD::zeros(self.step.shape());
        let mut sums = result
            .view_mut()
            .into_shape_with_order((rows, columns))
            .expect("one matrix");
        for range in self.ranges() {
            let part = cutting.recipe(left, left.rank() - 1, range.clone());
            let of_left = self.matrix(&part, rows)?;
            let part = cutting.recipe(right, right.rank() - 2, range.clone());
            let of_right = self.matrix(&part, range.len())?;
            multiply(of_left.view(), of_right.view(), &mut sums);
        }
        Ok(result)
    }

    /// Computes a recipe as one matrix with this number of rows.
    fn matrix(&self, recipe: &Recipe, rows: usize) -> Result<Array2<f64>, Refusal> {
        let array = evaluate_from(recipe, self.supply)?;
        let columns = array.len() / rows.max(1);
        Ok(array
            .into_shape_with_order((rows, columns))
            .expect("one matrix"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::evaluate;

    #[test]
    fn sums_of_a_large_constant_match_the_definition() {
        let shape = [3, 200, 150];
        let number = |place: usize| (place as f64).sin();
        let constant = ArrayD::from_shape_fn(&shape[..], |place| {
            number((place[0] * shape[1] + place[1]) * shape[2] + place[2])
        });
        let sum = Recipe::constant("W", &shape).sum(2).unwrap();
        assert!(matches!(
            PartOrder::from_recipe(&sum),
            Some(PartOrder::Result(0))
        ));
        let sums = evaluate(&sum, &|_| Ok(constant.clone())).unwrap();
        assert_eq!(sums.shape(), [3, 200, 1]);
        for (row, &sum) in sums.iter().enumerate() {
            let expected: f64 = (0..shape[2]).map(|at| number(row * shape[2] + at)).sum();
            assert!((sum - expected).abs() < 1e-12, "{row}: {sum} {expected}");
        }
    }
}
