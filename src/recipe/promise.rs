//! Tensors that are computed while they are written.

use std::collections::HashMap;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use ndarray::{ArrayD, Axis};

use super::Recipe;
use super::evaluate::{Cutting, PART, Supply, evaluate_from};
use crate::onnx::external::{Found, Make};
use crate::onnx::tensor::{DataType, Floats, encode_f64};
use crate::refusal::{Reason, Refusal};

/// A constant that a promise is made of.
#[derive(Debug, Clone)]
pub enum Given {
    /// It is in a model, and is read in parts.
    Stored(Floats),
    /// It was computed from others.
    Computed(ArrayD<f64>),
}

/// A recipe with its constants, wherever they are: as much of the tensor is computed as somebody asks for, and has the
/// same numbers as the whole has there.
///
/// ```
/// use std::collections::HashMap;
/// use ndarray::array;
/// use unfold::onnx::external::Make;
/// use unfold::onnx::tensor::DataType;
/// use unfold::recipe::{Given, Promise, Recipe};
///
/// let twice = Recipe::constant("w", &[2]).mul(&Recipe::number(2.0, 1)).unwrap();
/// let given = HashMap::from([("w".to_owned(), Given::Computed(array![1.0, 3.0].into_dyn()))]);
/// let promise = Promise::new(twice, DataType::Float, given);
/// assert_eq!(promise.make(4..8)?, 6.0_f32.to_le_bytes()[..]);
/// # Ok::<(), String>(())
/// ```
#[derive(Debug)]
pub struct Promise {
    recipe: Recipe,
    data_type: DataType,
    given: HashMap<String, Given>,
    /// The axis that parts are cut along: what is behind one place of it is not much.
    axis: usize,
    /// How many places of the axis a part has.
    places: usize,
}

impl Promise {
    /// The tensor that a recipe makes of these constants, rounded once to an element type.
    pub fn new(recipe: Recipe, data_type: DataType, given: HashMap<String, Given>) -> Self {
        let behind = |axis: usize| recipe.shape()[axis + 1..].iter().product::<usize>();
        let axis = (0..recipe.rank()).find(|&axis| behind(axis) <= PART).unwrap_or(0);
        let places = if recipe.rank() == 0 { 1 } else { (PART / behind(axis).max(1)).max(1) };
        Self { recipe, data_type, given, axis, places }
    }

    /// The element type.
    pub fn data_type(&self) -> DataType {
        self.data_type
    }

    /// The extents of the tensor.
    pub fn shape(&self) -> &[usize] {
        self.recipe.shape()
    }

    /// Whether another one is the same tensor. Nothing is read where the formulas say so, and little where the tensors
    /// differ.
    pub fn is(&self, other: &Promise) -> bool {
        let bytes = |promise: &Promise, begin: usize, end: usize| promise.make(begin..end).ok();
        let same_parts = || {
            let ends: Vec<usize> = self.cuts().into_iter().chain([self.length()]).collect();
            ends.windows(2).all(|ends| {
                let part = bytes(self, ends[0], ends[1]);
                part.is_some() && part == bytes(other, ends[0], ends[1])
            })
        };
        self.data_type == other.data_type
            && self.shape() == other.shape()
            && (self.recipe == other.recipe || same_parts())
    }

    /// All numbers, before they are rounded.
    ///
    /// # Errors
    /// Where a constant cannot be read, or is not of the shape that the recipe was written for.
    pub fn numbers(&self) -> Result<ArrayD<f64>, Refusal> {
        evaluate_from(&self.recipe, self)
    }

    /// How many parts there are.
    pub fn parts(&self) -> usize {
        let shape = self.recipe.shape();
        match shape.get(self.axis) {
            _ if self.recipe.is_empty() => 0,
            Some(extent) => shape[..self.axis].iter().product::<usize>() * extent.div_ceil(self.places),
            None => 1,
        }
    }

    /// The numbers of a part, in row-major order, before they are rounded.
    ///
    /// # Errors
    /// As [`Promise::numbers`].
    pub fn part(&self, number: usize) -> Result<ArrayD<f64>, Refusal> {
        let shape = self.recipe.shape();
        let Some(&extent) = shape.get(self.axis) else { return self.numbers() };
        let along = extent.div_ceil(self.places);
        let (mut outer, from) = (number / along, number % along * self.places);
        let mut cutting = Cutting::default();
        let mut cut = cutting.recipe(&self.recipe, self.axis, from..extent.min(from + self.places));
        for axis in (0..self.axis).rev() {
            let place = outer % shape[axis];
            outer /= shape[axis];
            cut = cutting.recipe(&cut, axis, place..place + 1);
        }
        evaluate_from(&cut, self)
    }

    /// All of a constant that it is made of.
    ///
    /// # Errors
    /// Where it cannot be read, or is none of those that were given.
    pub fn constant(&self, name: &str) -> Result<ArrayD<f64>, Refusal> {
        self.whole(name)
    }

    /// Where a part begins, in elements.
    fn begin(&self, number: usize) -> usize {
        let shape = self.recipe.shape();
        let Some(&extent) = shape.get(self.axis) else { return 0 };
        let behind = shape[self.axis + 1..].iter().product::<usize>();
        let along = extent.div_ceil(self.places);
        (number / along * extent + number % along * self.places) * behind
    }

    fn given(&self, name: &str) -> Result<&Given, Refusal> {
        self.given.get(name).ok_or_else(|| Refusal::new(Reason::NotConstant, name))
    }
}

impl Supply for Promise {
    fn whole(&self, name: &str) -> Result<ArrayD<f64>, Refusal> {
        match self.given(name)? {
            Given::Stored(floats) => floats.all().map_err(|error| unread(name, &error)),
            Given::Computed(array) => Ok(array.clone()),
        }
    }

    fn places(&self, name: &str, axis: usize, range: Range<usize>) -> Result<ArrayD<f64>, Refusal> {
        match self.given(name)? {
            Given::Stored(floats) => floats.places(axis, range).map_err(|error| unread(name, &error)),
            Given::Computed(array) => Ok(array.slice_axis(Axis(axis), range.into()).to_owned()),
        }
    }
}

fn unread(name: &str, error: &dyn std::fmt::Display) -> Refusal {
    Refusal::new(Reason::Constant(error.to_string()), name)
}

impl Make for Promise {
    fn length(&self) -> usize {
        self.data_type.byte_size(self.recipe.len()).unwrap_or(0)
    }

    fn make(&self, range: Range<usize>) -> Found<Bytes> {
        let begins = self.cuts();
        let first = begins.partition_point(|&begin| begin <= range.start).saturating_sub(1);
        let mut made = BytesMut::with_capacity(range.len());
        for (number, &begin) in
            begins.iter().enumerate().skip(first).take_while(|(_, begin)| **begin < range.end)
        {
            let numbers = self.part(number).map_err(|refusal| refusal.to_string())?;
            let bytes = encode_f64(self.data_type, &numbers.view()).map_err(|error| error.to_string())?;
            let from = range.start.saturating_sub(begin);
            let to = bytes.len().min(range.end - begin);
            if from == 0 && to == range.len() {
                return Ok(bytes.slice(..to));
            }
            made.extend_from_slice(&bytes[from..to]);
        }
        Ok(made.freeze())
    }

    fn cuts(&self) -> Vec<usize> {
        let size = self.data_type.byte_size(1).unwrap_or(1);
        (0..self.parts()).map(|number| self.begin(number) * size).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::evaluate;
    use crate::recipe::testing::{read, recipes};

    #[test]
    fn any_part_is_what_the_whole_has_there() {
        for recipe in recipes() {
            let names = recipe.constants();
            let given = names.iter().map(|&name| (name.to_owned(), Given::Computed(read(name).unwrap())));
            let mut promise = Promise::new(recipe.clone(), DataType::Float, given.collect());
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
                            let made = promise.make(range.clone()).unwrap();
                            assert_eq!(made, whole[range.clone()], "{recipe} {axis} {places} {range:?}");
                        }
                    }
                }
            }
        }
    }
}
