//! Tensors that are computed while they are written.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use ndarray::{ArrayD, Axis};
use rayon::prelude::*;

use super::evaluate::{Cutting, PART, Supply, evaluate_from, with_cut_constants};
use super::scaled::Scaled;
use super::{Op, Recipe};
use crate::hash::HashMap;
use crate::onnx::external_data::{Found, Make};
use crate::onnx::tensor::{DataType, Floats, encode_into};
use crate::onnx::value_range::ValueRange;
use crate::refusal::{Reason, Refusal};

/// A sum of more terms than this is costly, so its elements are computed only once and kept.
const COSTLY: usize = 64;

/// The largest number of elements of tensors that [`prepare`] works on at the same time. For its
/// small operands, such as means, a promise may convert a whole weight to float64.
const TOGETHER: usize = 1 << 25;

/// Computes the small operands of promises on all cores, before the promises are computed in parts.
pub(crate) fn prepare(mut promises: &[&Promise]) {
    while !promises.is_empty() {
        let (now, later) = promises.split_at(together(promises));
        now.par_iter().for_each(|promise| {
            promise.scaled();
        });
        promises = later;
    }
}

/// The number of first promises with at most [`TOGETHER`] elements, at least one.
fn together(promises: &[&Promise]) -> usize {
    let mut elements = 0;
    let fitting = promises.iter().take_while(|promise| {
        elements += promise.recipe.len();
        elements <= TOGETHER
    });
    fitting.count().max(1)
}

/// A constant that a promise reads.
#[derive(Debug, Clone)]
pub(crate) enum Given {
    /// A tensor of a model, read in parts.
    Stored(Arc<Floats>),
    /// The result of a computation.
    Computed(Arc<ArrayD<f64>>),
}

impl Given {
    /// All numbers of the constant.
    ///
    /// # Errors
    /// [`Reason::Constant`] if they cannot be read.
    pub(crate) fn all(&self, name: &str) -> Result<ArrayD<f64>, Refusal> {
        match self {
            Given::Stored(floats) => floats.all().map_err(|error| unread(name, &error)),
            Given::Computed(numbers) => Ok(ArrayD::clone(numbers)),
        }
    }

    /// The numbers in a range along an axis, which must be within the constant.
    ///
    /// # Errors
    /// [`Reason::Constant`] if they cannot be read.
    pub(crate) fn places(
        &self,
        name: &str,
        axis: usize,
        range: Range<usize>,
    ) -> Result<ArrayD<f64>, Refusal> {
        match self {
            Given::Stored(floats) => floats
                .places(axis, range)
                .map_err(|error| unread(name, &error)),
            Given::Computed(array) => Ok(array.slice_axis(Axis(axis), range.into()).to_owned()),
        }
    }
}

/// A recipe with its constants, which are in memory or in files. A caller can compute only the part
/// of the tensor that it needs. The numbers of the part equal those in the whole tensor.
#[derive(Debug)]
pub(crate) struct Promise {
    recipe: Recipe,
    data_type: DataType,
    given: HashMap<Arc<str>, Given>,
    /// The axis along which the tensor is cut into parts. One place along it has at most [`PART`]
    /// elements.
    axis: usize,
    /// The number of places along this axis in each part.
    places: usize,
    /// A faster way to compute a large tensor: a stored constant with a chain of operations. `None`
    /// if the recipe is not such a chain. It is made when it is first used, because its small
    /// operands may be means of a large constant.
    scaled: OnceLock<Option<Scaled>>,
}

impl Promise {
    /// Promises the tensor that a recipe computes from these constants, rounded once to an element
    /// type.
    pub(crate) fn new(
        recipe: &Recipe,
        data_type: DataType,
        given: impl IntoIterator<Item = (Arc<str>, Given)>,
    ) -> Self {
        let recipe = with_cut_constants(recipe);
        let axis = (0..recipe.rank())
            .find(|&axis| elements_behind(recipe.shape(), axis) <= PART)
            .unwrap_or(0);
        let places = if recipe.rank() == 0 {
            1
        } else {
            (PART / elements_behind(recipe.shape(), axis).max(1)).max(1)
        };
        let given = given.into_iter().collect();
        Self {
            recipe,
            data_type,
            given,
            axis,
            places,
            scaled: OnceLock::new(),
        }
    }

    /// The promise as a scaled constant. `None` if it is small, or not one.
    fn scaled(&self) -> Option<&Scaled> {
        if self.recipe.len() <= PART {
            return None;
        }
        let scaled = &self.scaled;
        scaled
            .get_or_init(|| Scaled::from_recipe(&self.recipe, self.data_type, self))
            .as_ref()
    }

    /// The element type.
    pub(crate) fn data_type(&self) -> DataType {
        self.data_type
    }

    /// The extents of the tensor.
    pub(crate) fn shape(&self) -> &[usize] {
        self.recipe.shape()
    }

    /// Whether another promise gives an equal tensor. If the formulas are equal, no constant is
    /// read. Different tensors usually differ early, so only a small part is read.
    pub(crate) fn is(&self, other: &Promise) -> bool {
        self.data_type == other.data_type
            && self.shape() == other.shape()
            && (self.recipe == other.recipe || self.has_bytes_of(other))
    }

    /// Whether all bytes are equal, compared part by part. False if a constant cannot be read.
    fn has_bytes_of(&self, other: &Promise) -> bool {
        let ends: Vec<usize> = self.cuts().into_iter().chain([self.length()]).collect();
        ends.windows(2).all(|ends| {
            let part = self.bytes(ends[0]..ends[1]);
            part.is_some() && part == other.bytes(ends[0]..ends[1])
        })
    }

    /// The bytes of the stored tensor in a range. `None` if a constant cannot be read.
    fn bytes(&self, range: Range<usize>) -> Option<Vec<u8>> {
        let mut bytes = vec![0; range.len()];
        self.make(range, &mut bytes).ok()?;
        Some(bytes)
    }

    /// All numbers, before they are rounded.
    ///
    /// # Errors
    /// A constant cannot be read, or its shape differs from that in the recipe.
    pub(crate) fn numbers(&self) -> Result<ArrayD<f64>, Refusal> {
        evaluate_from(&self.recipe, self)
    }

    /// Whether many of the numbers are sums of many terms, so that the tensor should not be
    /// computed twice.
    pub(crate) fn is_costly(&self) -> bool {
        let mut steps = self.recipe.steps().into_iter();
        steps.any(|step| {
            step.len() > PART / 4 && summed_terms(step).is_some_and(|terms| terms > COSTLY)
        })
    }

    /// The number of parts.
    pub(crate) fn parts(&self) -> usize {
        let shape = self.recipe.shape();
        match shape.get(self.axis) {
            _ if self.recipe.is_empty() => 0,
            _ if self.scaled().is_some() => self.recipe.len().div_ceil(PART),
            Some(extent) => {
                shape[..self.axis].iter().product::<usize>() * extent.div_ceil(self.places)
            }
            None => 1,
        }
    }

    /// The range of all magnitudes except 0, if the promise is a scaled constant whose range is
    /// known.
    pub(crate) fn bounds(&self) -> Option<ValueRange> {
        self.scaled()?.bounds()
    }

    /// The range of all magnitudes except 0 in a part, if the promise is a scaled constant.
    ///
    /// # Errors
    /// The constant cannot be read.
    pub(crate) fn bounds_in(&self, number: usize) -> Result<Option<ValueRange>, Refusal> {
        self.scaled()
            .map_or(Ok(None), |scaled| scaled.bounds_in(self.range(number)))
    }

    /// The range of the elements of a part, if `scaled` is given.
    fn range(&self, number: usize) -> Range<usize> {
        number * PART..self.recipe.len().min((number + 1) * PART)
    }

    /// Passes the numbers of a part to `take`, block by block, in row-major order and before they
    /// are rounded.
    ///
    /// # Errors
    /// The errors of [`Promise::numbers`] and of `take`.
    pub(crate) fn each(
        &self,
        number: usize,
        take: &mut dyn FnMut(&[f64]) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        match self.scaled() {
            Some(scaled) => scaled.each(self.range(number), take),
            None => take(self.part(number)?.as_slice().unwrap_or_default()),
        }
    }

    /// Computes the numbers of a part, if `scaled` is `None`.
    fn part(&self, number: usize) -> Result<ArrayD<f64>, Refusal> {
        let shape = self.recipe.shape();
        let Some(&extent) = shape.get(self.axis) else {
            return self.numbers();
        };
        let along = extent.div_ceil(self.places);
        let (mut outer, from) = (number / along, number % along * self.places);
        let mut cutting = Cutting::default();
        let mut cut = cutting.recipe(
            &self.recipe,
            self.axis,
            from..extent.min(from + self.places),
        );
        for axis in (0..self.axis).rev() {
            let place = outer % shape[axis];
            outer /= shape[axis];
            cut = cutting.recipe(&cut, axis, place..place + 1);
        }
        evaluate_from(&cut, self)
    }

    /// Reads a whole constant of the promise.
    ///
    /// # Errors
    /// The constant cannot be read, or is unknown.
    pub(crate) fn constant(&self, name: &str) -> Result<ArrayD<f64>, Refusal> {
        self.whole(name)
    }

    /// The index of the first element of a part.
    pub(crate) fn begin(&self, number: usize) -> usize {
        if self.scaled().is_some() {
            return number * PART;
        }
        let shape = self.recipe.shape();
        let Some(&extent) = shape.get(self.axis) else {
            return 0;
        };
        let behind = elements_behind(shape, self.axis);
        let along = extent.div_ceil(self.places);
        (number / along * extent + number % along * self.places) * behind
    }

    /// Encodes the numbers of a block. Writes the bytes that lie in `range` to `into`, which holds
    /// exactly the bytes of `range`.
    fn write_block(
        &self,
        numbers: &[f64],
        block: Range<usize>,
        range: &Range<usize>,
        into: &mut [u8],
        buffer: &mut Vec<u8>,
    ) {
        if block.start >= range.start && block.end <= range.end {
            let into = &mut into[block.start - range.start..block.end - range.start];
            encode_into(self.data_type, numbers, into);
        } else if block.start < range.end && block.end > range.start {
            // The range begins or ends inside of the block.
            buffer.resize(block.len(), 0);
            encode_into(self.data_type, numbers, buffer);
            let (from, to) = (block.start.max(range.start), block.end.min(range.end));
            into[from - range.start..to - range.start]
                .copy_from_slice(&buffer[from - block.start..to - block.start]);
        }
    }

    fn given(&self, name: &str) -> Result<&Given, Refusal> {
        self.given
            .get(name)
            .ok_or_else(|| Refusal::new(Reason::NotConstant, name))
    }
}

impl Supply for Promise {
    fn floats(&self, name: &str) -> Option<&Floats> {
        match self.given.get(name)? {
            Given::Stored(floats) => Some(floats),
            Given::Computed(_) => None,
        }
    }

    fn whole(&self, name: &str) -> Result<ArrayD<f64>, Refusal> {
        self.given(name)?.all(name)
    }

    fn places(&self, name: &str, axis: usize, range: Range<usize>) -> Result<ArrayD<f64>, Refusal> {
        self.given(name)?.places(name, axis, range)
    }
}

/// The product of the extents after an axis.
fn elements_behind(shape: &[usize], axis: usize) -> usize {
    shape[axis + 1..].iter().product()
}

/// The number of terms of each sum of a product or a convolution. `None` for other steps.
fn summed_terms(step: &Recipe) -> Option<usize> {
    match (step.op(), step.inputs()) {
        (Op::Product, [left, _]) => left.shape().last().copied(),
        (Op::Conv(_), [weight, _]) => Some(weight.shape()[2..].iter().product()),
        _ => None,
    }
}

/// The refusal for a constant that cannot be read.
pub(crate) fn unread(name: &str, error: &dyn std::fmt::Display) -> Refusal {
    Refusal::new(Reason::Constant(error.to_string()), name)
}

impl Make for Promise {
    fn length(&self) -> usize {
        self.data_type.byte_size(self.recipe.len()).unwrap_or(0)
    }

    fn make(&self, range: Range<usize>, into: &mut [u8]) -> Found<()> {
        let size = self.data_type.byte_size(1).unwrap_or(1);
        let (mut bytes, begins) = (vec![], self.cuts());
        let first = begins
            .partition_point(|&begin| begin <= range.start)
            .saturating_sub(1);
        let parts = begins
            .iter()
            .enumerate()
            .skip(first)
            .take_while(|(_, begin)| **begin < range.end);
        for (number, &begin) in parts {
            let mut at = begin;
            let made = self.each(number, &mut |numbers| {
                let block = at..at + numbers.len() * size;
                at = block.end;
                self.write_block(numbers, block, &range, into, &mut bytes);
                Ok(())
            });
            made.map_err(|refusal| refusal.to_string())?;
        }
        Ok(())
    }

    fn cuts(&self) -> Vec<usize> {
        let size = self.data_type.byte_size(1).unwrap_or(1);
        (0..self.parts())
            .map(|number| self.begin(number) * size)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use ndarray::array;

    use super::*;
    use crate::onnx::external_data::Externals;
    use crate::onnx::tensor::{self, encode_f64};
    use crate::recipe::evaluate;
    use crate::recipe::testing::{read, recipes};

    #[test]
    fn promised_parts_equal_slices_of_the_whole() {
        for recipe in recipes() {
            let names = recipe.constants();
            let given = names
                .into_iter()
                .map(|name| (name.clone(), Given::Computed(Arc::new(read(name).unwrap()))));
            let mut promise = Promise::new(&recipe, DataType::Float, given);
            let whole = evaluate(&recipe, &read).unwrap();
            let whole = encode_f64(DataType::Float, &whole.view()).unwrap();
            for axis in 0..recipe.rank() {
                for places in 1..=recipe.shape()[axis] {
                    (promise.axis, promise.places) = (axis, places);
                    let cuts = promise.cuts();
                    assert!(cuts.is_sorted() && cuts.len() == promise.parts());
                    for from in [0, whole.len() / 3, whole.len() - 1] {
                        for to in [from + 1, whole.len() / 2, whole.len()] {
                            let range = from..to.max(from);
                            let mut made = vec![0; range.len()];
                            promise.make(range.clone(), &mut made).unwrap();
                            assert_eq!(
                                made,
                                whole[range.clone()],
                                "{recipe} {axis} {places} {range:?}"
                            );
                        }
                    }
                }
            }
        }
    }

    /// The promise of a recipe over stored constants, and the result of the evaluator over arrays.
    fn both_ways(
        recipe: &Recipe,
        data_type: DataType,
        tensors: &[(&str, ArrayD<f64>)],
    ) -> (Promise, ArrayD<f64>) {
        let stored = |array: &ArrayD<f64>| {
            let tensor = tensor::make("", data_type, &array.view()).unwrap();
            Floats::new(&tensor, &Externals::none()).unwrap()
        };
        let given = tensors
            .iter()
            .map(|(name, array)| (Arc::from(*name), Given::Stored(Arc::new(stored(array)))));
        let read = |name: &str| {
            Ok(
                stored(&tensors.iter().find(|(own, _)| *own == name).unwrap().1)
                    .all()
                    .unwrap(),
            )
        };
        (
            Promise::new(recipe, data_type, given),
            evaluate(recipe, &read).unwrap(),
        )
    }

    fn numbers(shape: &[usize], seed: usize) -> ArrayD<f64> {
        let number = |at: usize| ((at * 7919 + seed * 104_729) % 2003) as f64 / 1001.0 - 1.0 + 1e-3;
        ArrayD::from_shape_vec(shape, (0..shape.iter().product()).map(number).collect()).unwrap()
    }

    #[test]
    fn fast_scaled_weight_equals_the_evaluator_bit_for_bit() {
        for data_type in [
            DataType::Float,
            DataType::Float16,
            DataType::BFloat16,
            DataType::Double,
        ] {
            for (shape, vectors) in [
                (&[260, 300][..], [&[260, 1][..], &[300][..]]),
                (&[300, 260], [&[1, 260], &[1, 1]]),
                (&[64, 128, 3, 3], [&[1, 128, 1, 1], &[64, 1, 1, 1]]),
                (&[2, 3, 70, 200], [&[3, 1, 200], &[2, 1, 70, 1]]),
                (&[70_000], [&[1], &[1]]),
            ] {
                let tensors = [
                    ("w", numbers(shape, 1)),
                    ("a", numbers(vectors[0], 2)),
                    ("b", numbers(vectors[1], 3)),
                ];
                let [w, a, b] = tensors
                    .each_ref()
                    .map(|(name, array)| Recipe::constant(name, array.shape()));
                let (flat, square) = ([shape.iter().product()], a.mul(&a).unwrap());
                for recipe in [
                    w.mul(&a).unwrap(),
                    b.mul(&w.div(&a).unwrap()).unwrap().sub(&square).unwrap(),
                    w.reshape(&flat)
                        .unwrap()
                        .mul(&Recipe::number(3.0, 1))
                        .unwrap()
                        .reshape(shape)
                        .unwrap(),
                ] {
                    let (promise, expected) = both_ways(&recipe, data_type, &tensors);
                    assert!(promise.scaled().is_some(), "{recipe}");
                    let mut made = vec![0; promise.length()];
                    promise.make(0..made.len(), &mut made).unwrap();
                    assert!(
                        made == encode_f64(data_type, &expected.view()).unwrap(),
                        "{recipe} {data_type}"
                    );
                }
            }
        }
    }

    #[test]
    fn cut_of_a_scaled_weight_equals_the_evaluator_bit_for_bit() {
        for data_type in [DataType::Float, DataType::Float16] {
            let tensors = [
                ("w", numbers(&[3, 400, 300], 1)),
                ("a", numbers(&[400, 1], 2)),
                ("b", numbers(&[300], 3)),
            ];
            let [w, a, b] = tensors
                .each_ref()
                .map(|(name, array)| Recipe::constant(name, array.shape()));
            let scaled = w.mul(&a).unwrap().mul(&b).unwrap().rounded(data_type);
            for (axis, range) in [(0, 1..3), (1, 7..260), (2, 100..200), (2, 0..299)] {
                let places = range.clone().map(Some);
                for recipe in [
                    scaled.pick(axis, places.clone()).unwrap(),
                    w.pick(axis, places.clone()).unwrap(),
                    w.pick(axis, places).unwrap().rounded(data_type),
                ] {
                    let (promise, expected) = both_ways(&recipe, data_type, &tensors);
                    assert!(promise.scaled().is_some(), "{axis} {range:?}");
                    let mut made = vec![0; promise.length()];
                    promise.make(0..made.len(), &mut made).unwrap();
                    let expected = encode_f64(data_type, &expected.view()).unwrap();
                    assert!(made == expected, "{axis} {range:?} {data_type}");
                    // A range that begins and ends inside of runs.
                    let part = 4002..made.len() - 6;
                    let mut made = vec![0; part.len()];
                    promise.make(part.clone(), &mut made).unwrap();
                    assert!(made == expected[part], "{axis} {range:?} {data_type}");
                }
            }
        }
    }

    #[test]
    fn bounds_of_a_scaled_weight_enclose_it() {
        let stored = [
            ("w", numbers(&[260, 300], 1)),
            ("a", numbers(&[260, 1], 2)),
            ("b", numbers(&[300], 3)),
        ];
        let [w, a, b] = stored
            .each_ref()
            .map(|(name, array)| Recipe::constant(name, array.shape()));
        let bound = |recipe: Recipe, tensors: &[(&str, ArrayD<f64>)]| {
            let (promise, expected) = both_ways(&recipe, DataType::Float, tensors);
            let parts: Vec<_> = (0..promise.parts())
                .map(|part| promise.bounds_in(part).unwrap())
                .collect();
            assert_eq!(promise.bounds(), None, "nobody has read all of it");
            let all = parts
                .into_iter()
                .try_fold(ValueRange::NONE, |all, part| Some(all.and(part?)));
            if let Some(all) = all {
                let within = |number: &f64| (all.least()..=all.largest()).contains(&number.abs());
                assert!(
                    expected
                        .iter()
                        .all(|number| *number == 0.0 || within(number)),
                    "{recipe}"
                );
            }
            all
        };
        for recipe in [w.mul(&a), w.div(&a), w.div(&a).and_then(|row| row.mul(&b))] {
            assert!(bound(recipe.unwrap(), &stored).is_some());
        }
        assert_eq!(bound(w.sub(&a).unwrap(), &stored), None);
        let mut with_zero = stored.clone();
        with_zero[1].1[[7, 0]] = 0.0;
        assert!(bound(w.mul(&a).unwrap(), &with_zero).is_some());
        assert_eq!(bound(w.div(&a).unwrap(), &with_zero), None);
    }

    #[test]
    fn fast_vector_product_equals_the_evaluator_bit_for_bit() {
        for (rows, columns) in [(300, 301), (299, 1000), (70_001, 1), (1, 70_001)] {
            let tensors = [
                ("w", numbers(&[rows, columns], 1)),
                ("t", numbers(&[1, rows], 2)),
            ];
            let [w, t] = tensors
                .each_ref()
                .map(|(name, array)| Recipe::constant(name, array.shape()));
            let turned = [
                ("w", numbers(&[columns, rows], 1)),
                ("t", numbers(&[1, rows], 2)),
            ];
            let of_turned = t
                .product(&Recipe::constant("w", &[columns, rows]).turned().unwrap())
                .unwrap();
            let before = w.turned().unwrap().product(&t.turned().unwrap()).unwrap();
            // A row with batch axes, as tokens have them.
            let stacked = t.reshape(&[1, 1, rows]).unwrap();
            let of_stacked = stacked.product(&w).unwrap();
            let of_stacked_turned = stacked
                .product(&Recipe::constant("w", &[columns, rows]).turned().unwrap())
                .unwrap();
            for (recipe, tensors) in [
                (t.product(&w).unwrap(), &tensors),
                (of_turned, &turned),
                (before, &tensors),
                (of_stacked, &tensors),
                (of_stacked_turned, &turned),
            ] {
                let (promise, expected) = both_ways(&recipe, DataType::Float, tensors);
                let made = promise.numbers().unwrap();
                assert!(made == expected, "{recipe}");
                // An independent computation: one sum, in the order of the rows.
                let (w, t) = (
                    &tensors[0].1.mapv(|w| f64::from(w as f32)),
                    &tensors[1].1.mapv(|t| f64::from(t as f32)),
                );
                let w = if w.shape() == [rows, columns] {
                    w.view()
                } else {
                    w.t()
                };
                let last = w.index_axis(Axis(1), columns - 1);
                let sum = last.iter().zip(t).fold(0.0, |sum, (w, t)| sum + w * t);
                assert_eq!(made.iter().last(), Some(&sum));
            }
        }
    }

    #[test]
    fn a_part_of_a_promise_is_computed_alone() {
        let twice = Recipe::constant("w", &[2])
            .mul(&Recipe::number(2.0, 1))
            .unwrap();
        let given = [(
            "w".into(),
            Given::Computed(Arc::new(array![1.0, 3.0].into_dyn())),
        )];
        let promise = Promise::new(&twice, DataType::Float, given);
        let mut second = [0; 4];
        promise.make(4..8, &mut second).unwrap();
        assert_eq!(second, 6.0_f32.to_le_bytes());
    }
}
