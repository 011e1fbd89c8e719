//! Small arrays whose values planning needs, with the recipes that compute them.

use std::ops::{Add, Deref, Div, Mul, Neg, Sub};
use std::sync::{Arc, OnceLock};

use ndarray::{ArrayD, Axis, IxDyn, Zip};

use super::evaluate::compute;
use super::{Op, Recipe, broadcast, turn};

/// Numbers that are known while planning, such as the scale of a normalizer, with their recipe.
///
/// Each operation applies to the numbers and to the recipe, so that the recipe always computes the
/// numbers. They can be used like an array.
#[derive(Debug, Clone)]
pub(crate) struct Numbers {
    recipe: Recipe,
    /// The values. Copies share one array, because there are about as many `Numbers` as nodes, and
    /// most are passed on unchanged.
    values: Arc<ArrayD<f64>>,
    /// Whether the rounding of a sum may have made different numbers equal.
    is_blurred: bool,
}

/// The ratio of two summands below which float64 keeps fewer digits of the smaller one than float32
/// has.
const BLURRED: f64 = 1.0 / (1_u64 << 29) as f64;

/// The neutral elements of addition and multiplication, which most affines contain.
const NEUTRAL: [f64; 2] = [0.0, 1.0];

/// The elements of [`NEUTRAL`] as arrays of each rank up to 7, which all affines share.
static SHARED: [[OnceLock<Numbers>; 8]; 2] = [const { [const { OnceLock::new() }; 8] }; 2];

impl Numbers {
    /// The numbers of a constant of the model, by the name of its value.
    pub(crate) fn constant(name: &str, values: ArrayD<f64>) -> Self {
        let values = values.as_standard_layout().into_owned();
        Self {
            recipe: Recipe::constant(name, values.shape()),
            values: values.into(),
            is_blurred: false,
        }
    }

    /// Marks the numbers as possibly equal only because of limited precision.
    pub(crate) fn blurred(self) -> Self {
        Self {
            is_blurred: true,
            ..self
        }
    }

    /// A scalar, with `rank` axes of extent 1.
    pub(crate) fn number(number: f64, rank: usize) -> Self {
        let place = NEUTRAL
            .iter()
            .position(|neutral| neutral.to_bits() == number.to_bits());
        match place.and_then(|place| SHARED[place].get(rank)) {
            Some(shared) => shared
                .get_or_init(|| Self::from_recipe(Recipe::number(number, rank), &[]))
                .clone(),
            None => Self::from_recipe(Recipe::number(number, rank), &[]),
        }
    }

    /// Numbers that are not a constant of the model.
    pub(crate) fn literal(values: ArrayD<f64>) -> Self {
        let values = values.as_standard_layout().into_owned();
        let numbers: Vec<f64> = values.iter().copied().collect();
        let recipe = Recipe::literal(&numbers, values.shape()).expect("a shape of its own");
        Self {
            recipe,
            values: values.into(),
            is_blurred: false,
        }
    }

    /// The formula of the numbers.
    pub(crate) fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    fn from_recipe(recipe: Recipe, inputs: &[&Numbers]) -> Self {
        let values = compute(
            &recipe,
            inputs.iter().map(|input| input.view().into()).collect(),
        );
        Self {
            recipe,
            values: values.into(),
            is_blurred: inputs.iter().any(|input| input.is_blurred),
        }
    }

    /// Computes a recipe whose last step has only these numbers as its input. Returns the numbers
    /// unchanged if the recipe is their own recipe.
    fn step(&self, recipe: Option<Recipe>) -> Option<Self> {
        let recipe = recipe?;
        Some(if recipe.id() == self.recipe.id() {
            self.clone()
        } else {
            Self::from_recipe(recipe, &[self])
        })
    }

    /// Whether the recipe is a literal whose elements all equal `wanted`.
    pub(crate) fn is_number(&self, wanted: f64) -> bool {
        self.recipe.is_number(wanted)
    }

    /// Whether all numbers are exactly equal to `wanted`, and not only because of limited
    /// precision.
    pub(crate) fn are_all(&self, wanted: f64) -> bool {
        !self.is_blurred && Zip::from(&*self.values).all(|&number| number == wanted)
    }

    /// Whether all numbers are finite.
    pub(crate) fn are_finite(&self) -> bool {
        Zip::from(&*self.values).all(|number| number.is_finite())
    }

    /// Whether one of the numbers is `−0`, whose bits differ from those of 0.
    fn has_signed_zero(&self) -> bool {
        self.values
            .iter()
            .any(|number| *number == 0.0 && number.is_sign_negative())
    }

    /// The square root of each number.
    pub(crate) fn sqrt(&self) -> Self {
        Self::from_recipe(self.recipe.sqrt(), &[self])
    }

    /// `e` to the power of each number.
    pub(crate) fn exp(&self) -> Self {
        Self::from_recipe(self.recipe.exp(), &[self])
    }

    /// The logistic function of each number.
    pub(crate) fn sigmoid(&self) -> Self {
        Self::from_recipe(self.recipe.sigmoid(), &[self])
    }

    /// Replaces numbers of a magnitude below `below` by 0.
    pub(crate) fn flushed(&self, below: f64) -> Self {
        match self
            .values
            .iter()
            .any(|number| *number != 0.0 && number.abs() < below)
        {
            true => Self::from_recipe(self.recipe.flushed(below), &[self]),
            false => self.clone(),
        }
    }

    /// The softmax along an axis. `None` if there is no such axis.
    pub(crate) fn softmax(&self, axis: usize) -> Option<Self> {
        self.step(self.recipe.softmax(axis))
    }

    /// The maximum along an axis, which then has extent 1. `None` if there is no such axis.
    pub(crate) fn largest(&self, axis: usize) -> Option<Self> {
        self.step(self.recipe.max(axis))
    }

    /// Matrix products over the last two axes. `None` if the extents do not fit.
    pub(crate) fn product(&self, other: &Numbers) -> Option<Self> {
        Some(Self::from_recipe(
            self.recipe.product(&other.recipe)?,
            &[self, other],
        ))
    }

    /// The numbers in another shape. `None` if the shape has a different number of elements.
    pub(crate) fn reshape(&self, shape: &[usize]) -> Option<Self> {
        if shape == self.shape() {
            return Some(self.clone());
        }
        // The values are reshaped without evaluating the new recipe: recipes merge movements in a
        // row, so the last step of the new recipe may not read these numbers.
        let values = self.values.to_shape(shape).ok()?.into_owned().into();
        Some(Self {
            recipe: self.recipe.reshape(shape)?,
            values,
            ..*self
        })
    }

    /// The axes in another order. `None` if `perm` is not a permutation of the axes.
    pub(crate) fn transpose(&self, perm: &[usize]) -> Option<Self> {
        let recipe = self.recipe.transpose(perm)?;
        let values = self
            .values
            .view()
            .permuted_axes(perm)
            .as_standard_layout()
            .into_owned()
            .into();
        Some(Self {
            recipe,
            values,
            ..*self
        })
    }

    /// Swaps the last two axes. `None` below rank 2.
    pub(crate) fn turned(&self) -> Option<Self> {
        self.transpose(&turn(self.ndim())?)
    }

    /// Selects places along an axis, with 0 for a place that is `None`. Returns `None` if a place
    /// is past the end.
    pub(crate) fn pick(
        &self,
        axis: usize,
        places: impl IntoIterator<Item = Option<usize>>,
    ) -> Option<Self> {
        self.step(self.recipe.pick(axis, places))
    }

    /// Repeats the elements along axes of extent 1 up to this shape. `None` if the rank differs, or
    /// if any other axis would change.
    pub(crate) fn expand(&self, shape: &[usize]) -> Option<Self> {
        self.step(self.recipe.expand(shape))
    }

    /// The sum along an axis, which then has extent 1. `None` if there is no such axis.
    pub(crate) fn sum(&self, axis: usize) -> Option<Self> {
        self.step(self.recipe.sum(axis))
    }

    /// Concatenates arrays along an axis. `None` if they differ along another axis.
    pub(crate) fn concat(axis: usize, parts: &[Numbers]) -> Option<Self> {
        if let [only] = parts {
            return Some(only.clone());
        }
        let recipes: Vec<Recipe> = parts.iter().map(|part| part.recipe.clone()).collect();
        Some(Self::from_recipe(
            Recipe::concat(axis, &recipes)?,
            &parts.iter().collect::<Vec<_>>(),
        ))
    }

    /// Adds axes of extent 1 before the first axis, up to rank `rank`, as broadcasting does. `None`
    /// if there are more than `rank` axes already.
    pub(crate) fn align(&self, rank: usize) -> Option<Self> {
        let missing = rank.checked_sub(self.ndim())?;
        self.reshape(&[&vec![1; missing][..], self.shape()].concat())
    }

    /// Whether the shapes broadcast. This fails only in models with contradictory shapes.
    pub(crate) fn broadcasts_with(&self, other: &Numbers) -> bool {
        broadcast(self.shape(), other.shape()).is_some()
    }

    /// Reduces every axis along which all numbers have equal bits to extent 1, unless they may be
    /// equal only because of limited precision.
    pub(crate) fn compact(mut self) -> Self {
        if self.is_blurred {
            return self;
        }
        for axis in 0..self.ndim() {
            let mut lanes = self.values.axis_iter(Axis(axis));
            let [Some(first), Some(second)] = [lanes.next(), lanes.next()] else {
                continue;
            };
            // Compares one pair of numbers before all others, since the two differ in most cases.
            let first_two = first.first().zip(second.first());
            if first_two.is_none_or(|(a, b)| have_same_bits(a, b))
                && self
                    .values
                    .axis_iter(Axis(axis))
                    .all(|lane| Zip::from(&first).and(&lane).all(have_same_bits))
            {
                self = self.pick(axis, [Some(0)]).unwrap_or(self);
            }
        }
        self
    }
}

impl Deref for Numbers {
    type Target = ArrayD<f64>;

    fn deref(&self) -> &ArrayD<f64> {
        &self.values
    }
}

/// Numbers are equal if their values are, whatever their recipes are.
impl PartialEq for Numbers {
    fn eq(&self, other: &Self) -> bool {
        self.values == other.values
    }
}

impl Neg for &Numbers {
    type Output = Numbers;

    fn neg(self) -> Numbers {
        Numbers::from_recipe(self.recipe.neg(), &[self])
    }
}

fn have_same_bits(a: &f64, b: &f64) -> bool {
    a.to_bits() == b.to_bits()
}

fn varies(numbers: &ArrayD<f64>) -> bool {
    numbers.iter().any(|number| Some(number) != numbers.first())
}

/// Whether `a` is so small compared with `b` that rounding `a + b` may lose `a`.
fn is_lost(a: f64, b: f64) -> bool {
    a != 0.0 && a.abs() < BLURRED * b.abs()
}

/// Whether `a + b` may round the sums of different numbers to one number, because some summand is
/// too small compared with the other summand.
fn blurs(a: &ArrayD<f64>, b: &ArrayD<f64>) -> bool {
    let shape = broadcast(a.shape(), b.shape()).unwrap_or_default();
    let [Some(wide), Some(other)] = [a, b].map(|numbers| numbers.broadcast(IxDyn(&shape))) else {
        return false;
    };
    (varies(a) || varies(b))
        && Zip::from(wide)
            .and(other)
            .any(|&a, &b| is_lost(a, b) || is_lost(b, a))
}

macro_rules! arithmetic {
    ($($trait:ident $method:ident $sign:tt),*) => {$(
        /// # Panics
        /// If the shapes do not broadcast.
        impl $trait for &Numbers {
            type Output = Numbers;

            fn $method(self, other: &Numbers) -> Numbers {
                let recipe = self.recipe.$method(&other.recipe).expect("shapes that broadcast");
                // An operation without effect adds no step to the recipe. It still turns −0 into 0,
                // so that `compact` finds equal zeros.
                let same = [self, other].into_iter().find(|numbers| {
                    recipe.id() == numbers.recipe.id() && !numbers.has_signed_zero()
                });
                if let Some(same) = same {
                    return Numbers { is_blurred: self.is_blurred || other.is_blurred, ..same.clone() };
                }
                let values = Arc::new(&*self.values $sign &*other.values);
                let adds = matches!(recipe.op(), Op::Add | Op::Sub);
                let is_blurred = self.is_blurred || other.is_blurred || (adds && blurs(self, other));
                Numbers { values, is_blurred, recipe }
            }
        }
    )*};
}

arithmetic!(Add add +, Sub sub -, Mul mul *, Div div /);

#[cfg(test)]
mod tests {
    use ndarray::array;

    use super::*;

    #[test]
    fn numbers_compute_and_note_how() {
        let gamma = Numbers::constant("γ", array![2.0, 3.0].into_dyn());
        let variance = Numbers::constant("σ²", array![4.0, 9.0].into_dyn());
        let scale = &gamma / &variance.sqrt();
        assert_eq!(*scale, array![1.0, 1.0].into_dyn());
        assert_eq!(scale.recipe().to_string(), "div(γ, sqrt(σ²))");
    }
}
