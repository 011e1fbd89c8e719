//! The evaluator of recipes. It computes in float64, each operation in one order, with equal
//! results on every machine.

mod cut;
mod in_parts;
mod kernels;
mod operation;
mod stored_part;

use std::ops::Range;

use ndarray::{ArrayD, Axis};

pub(super) use self::cut::Cutting;
use self::cut::consecutive;
pub(crate) use self::cut::with_cut_constants;
#[cfg(all(feature = "prove", feature = "tract"))]
pub(crate) use self::cut::{cut, ends};
use self::in_parts::PartOrder;
pub(super) use self::operation::compute;
use self::operation::{Array, row_major, vanishes};
pub(super) use self::stored_part::StoredPart;
use super::{Op, Operation, Recipe};
use crate::hash::HashMap;
use crate::onnx::tensor::{DataType, Floats};
use crate::refusal::{Reason, Refusal};

/// Reads a constant of the model by name, in float64.
pub(crate) type Read<'r> = &'r dyn Fn(&str) -> Result<ArrayD<f64>, Refusal>;

/// The number of elements that are computed at a time. Larger operands of products are not computed
/// whole.
pub(super) const PART: usize = 1 << 16;

/// A source of the constants of a model, which may be larger than memory.
pub(super) trait Supply {
    /// Reads a whole constant.
    fn whole(&self, name: &str) -> Result<ArrayD<f64>, Refusal>;

    /// Reads the elements of a constant in a range along an axis.
    fn places(&self, name: &str, axis: usize, range: Range<usize>) -> Result<ArrayD<f64>, Refusal>;

    /// The stored tensor of a constant, for callers that read it in parts. `None` if the constant
    /// is not stored.
    fn floats(&self, _: &str) -> Option<&Floats> {
        None
    }
}

impl Supply for Read<'_> {
    fn whole(&self, name: &str) -> Result<ArrayD<f64>, Refusal> {
        self(name)
    }

    fn places(&self, name: &str, axis: usize, range: Range<usize>) -> Result<ArrayD<f64>, Refusal> {
        let whole = self(name)?;
        match whole.shape().get(axis) {
            Some(&extent) if range.end <= extent => {
                Ok(whole.slice_axis(Axis(axis), range.into()).to_owned())
            }
            _ => Err(unlike(name, whole.shape())),
        }
    }
}

/// Computes a recipe. Shared steps are computed once.
///
/// # Errors
/// A constant cannot be read, or its shape differs from that in the recipe.
///
/// ```
/// use ndarray::array;
/// use unfold::recipe::{Recipe, evaluate};
///
/// let half = Recipe::constant("W", &[2, 2]).mul(&Recipe::number(0.5, 2)).unwrap();
/// let read = |_: &str| Ok(array![[2.0, 4.0], [6.0, 8.0]].into_dyn());
/// assert_eq!(evaluate(&half, &read)?, array![[1.0, 2.0], [3.0, 4.0]].into_dyn());
/// # Ok::<(), unfold::refusal::Refusal>(())
/// ```
pub fn evaluate(recipe: &Recipe, read: Read) -> Result<ArrayD<f64>, Refusal> {
    evaluate_from(recipe, &read)
}

/// Computes one step of a recipe from the arrays of the step's inputs.
#[cfg(feature = "prove")]
pub(crate) fn computed(step: &Recipe, inputs: &[&ArrayD<f64>]) -> ArrayD<f64> {
    let inputs = inputs.iter().map(|input| Array::from(input.view()));
    compute(step, inputs.collect())
}

/// Like [`evaluate`], but a cut reads only the elements that it needs, and a product with a large
/// constant reads the constant part by part.
pub(super) fn evaluate_from(recipe: &Recipe, supply: &dyn Supply) -> Result<ArrayD<f64>, Refusal> {
    let steps = recipe.steps_to(&is_leaf);
    let mut computation = Computation::new(&steps);
    for step in steps {
        computation.add(step, supply)?;
    }
    computation
        .known
        .remove(&recipe.id())
        .ok_or_else(|| Refusal::new(Reason::UnknownShape, ""))
}

/// Whether a step reads its inputs in parts itself, so that they are not computed as steps of their
/// own.
fn is_leaf(step: &Recipe) -> bool {
    cut_constant(step).is_some() || PartOrder::from_recipe(step).is_some()
}

/// The computation of a recipe, with the arrays that later steps need.
struct Computation {
    known: HashMap<*const Operation, ArrayD<f64>>,
    /// The number of later steps that read a shared step. A step without an entry has one reader.
    uses: HashMap<*const Operation, usize>,
}

impl Computation {
    fn new(steps: &[&Recipe]) -> Self {
        let mut uses: HashMap<_, usize> = HashMap::default();
        for step in steps.iter().filter(|step| !is_leaf(step)) {
            for input in step.inputs().iter().filter(|input| input.is_shared()) {
                *uses.entry(input.id()).or_default() += 1;
            }
        }
        Computation {
            known: HashMap::default(),
            uses,
        }
    }

    /// Computes a step. All steps that it needs must be computed already.
    fn add(&mut self, step: &Recipe, supply: &dyn Supply) -> Result<(), Refusal> {
        let array = if let Some((name, axis, range)) = cut_constant(step) {
            of_shape(name, step.shape(), supply.places(name, axis, range)?)?
        } else if let Some(order) = PartOrder::from_recipe(step) {
            order.compute(step, supply)?
        } else {
            self.compute(step, supply)?
        };
        self.known.insert(step.id(), array);
        Ok(())
    }

    fn compute(&mut self, step: &Recipe, supply: &dyn Supply) -> Result<ArrayD<f64>, Refusal> {
        for input in step.inputs() {
            self.uses.entry(input.id()).and_modify(|left| *left -= 1);
        }
        let given = self.take_first_input(step);
        let lent = step.inputs().iter().skip(usize::from(given.is_some()));
        let lent = lent.map(|input| Array::from(self.known[&input.id()].view()));
        let inputs: Vec<Array> = given.map(Array::from).into_iter().chain(lent).collect();
        let array = match (step.op(), &inputs[..]) {
            (Op::Constant(name), _) => of_shape(name, step.shape(), supply.whole(name)?)?,
            (Op::Mul, [a, b]) if vanishes(a, b, step.shape()) => {
                return Err(Refusal::new(Reason::Underflow(DataType::Double.name()), ""));
            }
            _ => compute(step, inputs),
        };
        for input in step.inputs() {
            if self.is_used_up(input) {
                self.known.remove(&input.id());
            }
        }
        Ok(array)
    }

    /// Takes the array of the first input, which can then be changed in place. `None` if another
    /// input of the step is the same array, or if a later step reads the array.
    fn take_first_input(&mut self, step: &Recipe) -> Option<ArrayD<f64>> {
        let (first, others) = step.inputs().split_first()?;
        let is_read_twice = others.iter().any(|other| other.id() == first.id());
        if is_read_twice || !self.is_used_up(first) {
            return None;
        }
        self.known.remove(&first.id())
    }

    /// Whether no later step reads the array of this step.
    fn is_used_up(&self, step: &Recipe) -> bool {
        self.uses.get(&step.id()).is_none_or(|&left| left == 0)
    }
}

fn of_shape(name: &str, shape: &[usize], array: ArrayD<f64>) -> Result<ArrayD<f64>, Refusal> {
    if array.shape() == shape {
        Ok(row_major(array))
    } else {
        Err(unlike(name, array.shape()))
    }
}

fn unlike(name: &str, shape: &[usize]) -> Refusal {
    Refusal::new(
        Reason::Constant(format!("it is {shape:?}, which is not what it was")),
        name,
    )
}

/// The constant, axis and range of a step that takes a range of a constant along an axis. `None`
/// for other steps.
pub(crate) fn cut_constant(step: &Recipe) -> Option<(&str, usize, Range<usize>)> {
    let (axis, range) = picked_range(step)?;
    match step.inputs().first()?.op() {
        Op::Constant(name) => Some((&**name, axis, range)),
        _ => None,
    }
}

/// The axis and the range of a step that takes consecutive places along an axis. `None` for other
/// steps.
fn picked_range(step: &Recipe) -> Option<(usize, Range<usize>)> {
    match step.op() {
        Op::Pick { axis, places } => Some((*axis, consecutive(places)?)),
        _ => None,
    }
}

/// Computes the part of a recipe that lies in a range along an axis. The numbers are equal to those
/// of the whole.
///
/// Where this part needs only a part of a step, only that part is computed. Constants are read
/// whole.
///
/// # Errors
/// The errors of [`evaluate`].
#[cfg(test)]
pub(crate) fn part(
    recipe: &Recipe,
    axis: usize,
    range: Range<usize>,
    read: Read,
) -> Result<ArrayD<f64>, Refusal> {
    let mut cut = Cutting::default();
    evaluate(&cut.recipe(recipe, axis, range), read)
}

#[cfg(test)]
mod tests {
    use ndarray::array;

    use super::*;
    use crate::recipe::testing::{read, recipes, vector, weight};

    #[test]
    fn each_operation_matches_hand_computed_values() {
        let w = array![[1.0, 2.0], [3.0, 4.0]].into_dyn();
        let of = |recipe: Option<Recipe>| evaluate(&recipe.unwrap(), &|_| Ok(w.clone())).unwrap();
        let w = Recipe::constant("W", &[2, 2]);
        let column = |numbers: [f64; 2]| array![[numbers[0]], [numbers[1]]].into_dyn();
        assert_eq!(
            of(w.product(&w)),
            array![[7.0, 10.0], [15.0, 22.0]].into_dyn()
        );
        assert_eq!(of(w.sum(1)), column([3.0, 7.0]));
        assert_eq!(
            of(w.turned().unwrap().sub(&w)),
            array![[0.0, 1.0], [-1.0, 0.0]].into_dyn()
        );
        assert_eq!(
            of(w.pick(1, [None, Some(1)])),
            array![[0.0, 2.0], [0.0, 4.0]].into_dyn()
        );
        assert_eq!(
            of(w.div(&Recipe::number(2.0, 0))),
            array![[0.5, 1.0], [1.5, 2.0]].into_dyn()
        );
        assert_eq!(
            of(w.mul(&w).map(|square| square.sqrt().neg())),
            array![[-1.0, -2.0], [-3.0, -4.0]].into_dyn()
        );
        let doubled = array![[1.0, 2.0, 1.0, 2.0], [3.0, 4.0, 3.0, 4.0]].into_dyn();
        assert_eq!(of(Recipe::concat(1, &[w.clone(), w.clone()])), doubled);
        assert_eq!(
            of(w.sum(1).and_then(|sums| sums.expand(&[2, 1]))),
            column([3.0, 7.0])
        );
        assert_eq!(of(w.max(1)), column([2.0, 4.0]));
        assert_eq!(
            of(Some(w.flushed(3.0))),
            array![[0.0, 0.0], [3.0, 4.0]].into_dyn()
        );
        let odds = w.sub(&w.max(1).unwrap()).map(|apart| apart.exp());
        let e = (-1.0f64).exp();
        assert_eq!(of(odds), array![[e, 1.0], [e, 1.0]].into_dyn());
        let (less, more) = (e / (e + 1.0), 1.0 / (e + 1.0));
        assert_eq!(
            of(w.softmax(1)),
            array![[less, more], [less, more]].into_dyn()
        );
        assert_eq!(
            of(w.sub(&w).map(|zero| zero.sigmoid())),
            array![[0.5, 0.5], [0.5, 0.5]].into_dyn()
        );
    }

    #[test]
    fn parts_equal_slices_of_the_whole() {
        for recipe in recipes() {
            let whole = evaluate(&recipe, &read).unwrap();
            assert_eq!(whole.shape(), recipe.shape(), "{recipe}");
            for axis in 0..recipe.rank() {
                for start in 0..recipe.shape()[axis] {
                    for end in start + 1..=recipe.shape()[axis] {
                        let cut = part(&recipe, axis, start..end, &read).unwrap();
                        let there = whole.slice_axis(Axis(axis), (start..end).into());
                        assert_eq!(cut, there, "{recipe}, {start}..{end} of axis {axis}");
                    }
                }
            }
        }
    }

    #[cfg(all(feature = "prove", feature = "tract"))]
    #[test]
    fn ends_are_the_first_and_the_last_element_of_the_whole() {
        for recipe in recipes() {
            let whole = evaluate(&recipe, &read).unwrap();
            let found = evaluate(&ends(&recipe).unwrap(), &read).unwrap();
            let wanted = [whole.iter().next(), whole.iter().last()].map(|end| *end.unwrap());
            assert_eq!(found, array![wanted[0], wanted[1]].into_dyn(), "{recipe}");
        }
        let scalar = ends(&Recipe::number(3.0, 0)).unwrap();
        assert_eq!(
            evaluate(&scalar, &read).unwrap(),
            array![3.0, 3.0].into_dyn()
        );
        assert!(ends(&Recipe::constant("none", &[2, 0])).is_none());
    }

    #[test]
    fn unfitting_operands_make_no_recipe() {
        let narrow = Recipe::constant("n", &[5]);
        assert!(weight().mul(&narrow).is_none());
        assert!(weight().reshape(&[5, 5]).is_none());
        assert!(weight().transpose(&[0, 0]).is_none());
        assert!(weight().pick(1, [Some(6)]).is_none());
        assert!(weight().expand(&[4, 12]).is_none());
        assert!(weight().product(&weight()).is_none());
        assert!(Recipe::concat(0, &[weight(), vector()]).is_none());
        let wrong = evaluate(&Recipe::constant("W", &[6, 4]), &read).unwrap_err();
        assert_eq!(wrong.at, "W");
    }

    #[test]
    fn recipe_of_200000_operations_is_evaluated() {
        let mut long = Recipe::constant("v", &[6]);
        for _ in 0..200_000 {
            long = long.add(&Recipe::number(1.0, 1)).unwrap();
        }
        let zeros = |_: &str| Ok(ArrayD::zeros(vec![6]));
        assert_eq!(
            evaluate(&long, &zeros).unwrap(),
            ArrayD::from_elem(vec![6], 200_000.0)
        );
        assert_eq!(
            part(&long, 0, 2..3, &zeros).unwrap(),
            ArrayD::from_elem(vec![1], 200_000.0)
        );
        assert!(long.constants().into_iter().map(|name| &**name).eq(["v"]));
        assert!(long.to_string().len() < 8_000_000);
    }
}
