//! The one evaluator of recipes: float64, each operation in one order, on every machine the same.

use std::ops::Range;

use multiversion::multiversion;
use ndarray::{
    Array3, ArrayD, ArrayView1, ArrayView2, ArrayViewD, ArrayViewMut2, Axis, CowArray, Dimension,
    Ix3, Ix4, IxDyn, RemoveAxis, Zip,
};

use super::{Op, Recipe, Windows};
use crate::hash::HashMap;
use crate::onnx::tensor::{self, DataType, Floats};
use crate::onnx::value_range::ValueRange;
use crate::refusal::{Reason, Refusal};

/// The depth to which a cut enters a formula; deeper steps are computed whole.
const DEEPEST: usize = 1000;

/// Reads a constant of the model by name, in float64.
pub type Read<'r> = &'r dyn Fn(&str) -> Result<ArrayD<f64>, Refusal>;

/// How many elements a part has that is computed at once: larger operands of products are not computed whole.
pub(super) const PART: usize = 1 << 16;

/// Where the constants of a model come from, which may be larger than memory.
pub(super) trait Supply {
    /// All of a constant.
    fn whole(&self, name: &str) -> Result<ArrayD<f64>, Refusal>;

    /// The elements of a constant in a range along an axis.
    fn places(&self, name: &str, axis: usize, range: Range<usize>) -> Result<ArrayD<f64>, Refusal>;

    /// A stored constant, for callers that read it in parts.
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
/// Where a constant cannot be read, or is not of the shape that the recipe was written for.
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

/// As [`evaluate`]. A cut reads only the elements that it needs, and a product with a large
/// constant takes it part by part.
pub(super) fn evaluate_from(recipe: &Recipe, supply: &dyn Supply) -> Result<ArrayD<f64>, Refusal> {
    let is_leaf =
        |step: &Recipe| cut_constant(step).is_some() || Streamed::from_recipe(step).is_some();
    let steps = recipe.steps_to(&is_leaf);
    // A step with one reader is used once.
    let mut uses: HashMap<_, usize> = HashMap::default();
    let needed = steps
        .iter()
        .filter(|step| !is_leaf(step))
        .flat_map(|step| step.inputs());
    let shared = needed.filter(|input| input.is_shared());
    shared.for_each(|input| *uses.entry(input.id()).or_default() += 1);
    let mut known: HashMap<_, ArrayD<f64>> = HashMap::default();
    for step in steps {
        if let Some((name, axis, range)) = cut_constant(step) {
            let places = supply.places(name, axis, range)?;
            known.insert(step.id(), of_shape(name, step.shape(), places)?);
            continue;
        }
        if let Some(streamed) = Streamed::from_recipe(step) {
            known.insert(step.id(), streamed.compute(step, supply)?);
            continue;
        }
        for input in step.inputs() {
            uses.entry(input.id()).and_modify(|left| *left -= 1);
        }
        let is_used_up = |input: &Recipe| uses.get(&input.id()).is_none_or(|&left| left == 0);
        // A first input that nobody else needs is given away, so that it can be changed where it is.
        let first = step.inputs().first().filter(|first| is_used_up(first));
        let alone = first.filter(|first| {
            step.inputs()[1..]
                .iter()
                .all(|other| other.id() != first.id())
        });
        let given = alone.and_then(|first| known.remove(&first.id()));
        let lent = step.inputs().iter().skip(given.is_some() as usize);
        let lent: Vec<_> = lent
            .map(|input| Array::from(known[&input.id()].view()))
            .collect();
        let inputs: Vec<Array> = given.map(Array::from).into_iter().chain(lent).collect();
        let made = match (step.op(), &inputs[..]) {
            (Op::Constant(name), _) => of_shape(name, step.shape(), supply.whole(name)?)?,
            (Op::Mul, [a, b]) if vanishes(a, b, step.shape()) => {
                return Err(Refusal::new(Reason::Underflow(DataType::Double.name()), ""));
            }
            _ => compute(step, inputs),
        };
        known.insert(step.id(), made);
        for input in step.inputs().iter().filter(|input| is_used_up(input)) {
            known.remove(&input.id());
        }
    }
    known
        .remove(&recipe.id())
        .ok_or_else(|| Refusal::new(Reason::UnknownShape, ""))
}

/// An input of a step: lent, or given away.
pub(super) type Array<'a> = CowArray<'a, f64, IxDyn>;

/// Whether a product is 0 only because float64 has nothing so small.
fn vanishes(a: &Array, b: &Array, shape: &[usize]) -> bool {
    let shape = IxDyn(shape);
    let lost = |&a: &f64, &b: &f64| a * b == 0.0 && a != 0.0 && b != 0.0;
    Zip::from(&wide(a, &shape)).and(&wide(b, &shape)).any(lost)
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

/// The constant and the range of it, where a step is that.
fn cut_constant(step: &Recipe) -> Option<(&str, usize, Range<usize>)> {
    let (Op::Pick { axis, places }, [input]) = (step.op(), step.inputs()) else {
        return None;
    };
    let (Op::Constant(name), Some(&Some(first))) = (input.op(), places.first()) else {
        return None;
    };
    let in_order = places
        .iter()
        .enumerate()
        .all(|(at, place)| *place == Some(first + at));
    in_order.then(|| (&**name, *axis, first..first + places.len()))
}

/// A product, or a convolution, one of whose operands is so large that only parts of it are computed at a time: of those
/// that have many places along an axis, so that each is smaller than the whole.
#[derive(Clone, Copy)]
enum Streamed {
    /// Parts of the result along an axis, each by itself.
    Result(usize),
    /// Parts of the sums: places along the last axis of the left operand, and the one before it of the right.
    Sums,
}

impl Streamed {
    fn from_recipe(step: &Recipe) -> Option<Self> {
        let [left, right] = step.inputs() else {
            return None;
        };
        let (most, least) = (left.len().max(right.len()), left.len().min(right.len()));
        if most <= PART || least > most / 2 || step.is_empty() {
            return None;
        }
        let (large, is_left) = if left.len() == most {
            (left, true)
        } else {
            (right, false)
        };
        // Data that are read from front to back are read once.
        let turned = matches!(large.op(), Op::Transpose(_));
        let rank = step.rank();
        let of_large = |axis: usize| {
            (axis + large.rank())
                .checked_sub(rank)
                .map_or(1, |own| large.shape()[own])
        };
        match step.op() {
            Op::Product => {
                let (rows, columns) = (rank - 2, rank - 1);
                let stacks = (0..rows).any(|axis| step.shape()[axis] > 1);
                let stack = (0..rows).find(|&axis| of_large(axis) > 1);
                Some(match (stack, is_left) {
                    (Some(axis), _) => Self::Result(axis),
                    (None, true) if stacks || !turned => Self::Result(rows),
                    (None, false) if stacks || turned => Self::Result(columns),
                    _ => Self::Sums,
                })
            }
            Op::Conv(_) if is_left => Some(Self::Result(usize::from(step.shape()[0] == 1))),
            _ => None,
        }
        .filter(|streamed| streamed.extent(step) > 1)
    }

    /// How many places there are along the axis of the parts.
    fn extent(self, step: &Recipe) -> usize {
        match self {
            Self::Result(axis) => step.shape()[axis],
            Self::Sums => step.inputs()[0].shape().last().copied().unwrap_or(1),
        }
    }

    /// The constant on the right of a row, where its elements are stored in the order in which the parts take them.
    fn stored<'s>(self, step: &Recipe, supply: &'s dyn Supply) -> Option<&'s Floats> {
        let ([_, right], [others @ .., _]) = (step.inputs(), step.shape()) else {
            return None;
        };
        let is_row = others.iter().all(|&extent| extent == 1);
        let last = step.rank() - 1;
        let (constant, shape) = match (self, right.op(), right.inputs(), right.shape()) {
            _ if !is_row => return None,
            (Self::Sums, _, _, &[rows, columns]) => (right, [rows, columns]),
            (Self::Result(axis), Op::Transpose(_), [turned], &[rows, columns]) if axis == last => {
                (turned, [columns, rows])
            }
            _ => return None,
        };
        let Op::Constant(name) = constant.op() else {
            return None;
        };
        supply.floats(name).filter(|floats| floats.shape() == shape)
    }

    fn compute(self, step: &Recipe, supply: &dyn Supply) -> Result<ArrayD<f64>, Refusal> {
        let [left, right] = step.inputs() else {
            unreachable!("a product has two operands")
        };
        let extent = self.extent(step);
        let places = (PART * extent / left.len().max(right.len())).max(1);
        let ranges = (0..extent)
            .step_by(places)
            .map(|from| from..extent.min(from + places));
        let mut cut = Cutting::default();
        let mut result = ArrayD::zeros(step.shape());
        if let Some(floats) = self.stored(step, supply) {
            let row = evaluate_from(left, supply)?;
            let row = row.as_slice().unwrap_or_default();
            let sums = result.as_slice_mut().unwrap_or_default();
            // How many elements of the constant there are behind one place of the axis.
            let behind = right.len() / extent;
            let (mut buffer, mut numbers, mut seen) =
                (vec![], vec![0.0; places * behind], ValueRange::NONE);
            for range in ranges {
                let numbers = &mut numbers[..range.len() * behind];
                let read = floats.read_bytes(range.start * behind..range.end * behind, &mut buffer);
                read.map_err(|error| Refusal::new(Reason::Constant(error.to_string()), ""))?;
                seen = seen.and(floats.magnitudes(&buffer));
                floats.decode(&buffer, numbers);
                match self {
                    Self::Sums => {
                        for (&factor, numbers) in
                            row[range].iter().zip(numbers.chunks_exact(behind))
                        {
                            add_times(factor, numbers, sums);
                        }
                    }
                    Self::Result(_) => dot_each(row, numbers, &mut sums[range]),
                }
            }
            // Scaling then needs no second read to know its range.
            floats.see(seen);
            return Ok(result);
        }
        match self {
            Self::Result(axis) => {
                for range in ranges {
                    let part = evaluate_from(&cut.recipe(step, axis, range.clone()), supply)?;
                    result
                        .slice_axis_mut(Axis(axis), range.into())
                        .assign(&part);
                }
            }
            Self::Sums => {
                let [.., rows, columns] = *step.shape() else {
                    unreachable!("a matrix has two axes")
                };
                let mut sums = result
                    .view_mut()
                    .into_shape_with_order((rows, columns))
                    .expect("one matrix");
                for range in ranges {
                    let matrix = |recipe: Recipe, rows: usize| {
                        let array = evaluate_from(&recipe, supply)?;
                        let columns = array.len() / rows.max(1);
                        Ok(array
                            .into_shape_with_order((rows, columns))
                            .expect("one matrix"))
                    };
                    let of_left = matrix(cut.recipe(left, left.rank() - 1, range.clone()), rows)?;
                    let of_right = matrix(
                        cut.recipe(right, right.rank() - 2, range.clone()),
                        range.len(),
                    )?;
                    multiply(of_left.view(), of_right.view(), &mut sums);
                }
            }
        }
        Ok(result)
    }
}

/// Computes the part of a recipe that lies in a range along an axis: the same numbers as the whole has there.
///
/// Of what only this part needs, only this part is kept; constants are read whole.
///
/// # Errors
/// As [`evaluate`].
pub fn part(
    recipe: &Recipe,
    axis: usize,
    range: Range<usize>,
    read: Read,
) -> Result<ArrayD<f64>, Refusal> {
    let mut cut = Cutting::default();
    evaluate(&cut.recipe(recipe, axis, range), read)
}

/// Pushes a cut through the operations that it commutes with.
#[derive(Default)]
pub(super) struct Cutting {
    made: HashMap<(*const super::Operation, usize, usize, usize), Recipe>,
    depth: usize,
}

impl Cutting {
    pub fn recipe(&mut self, recipe: &Recipe, axis: usize, range: Range<usize>) -> Recipe {
        if range == (0..recipe.shape()[axis]) {
            return recipe.clone();
        }
        let key = (recipe.id(), axis, range.start, range.end);
        if let Some(made) = self.made.get(&key) {
            return made.clone();
        }
        self.depth += 1;
        let made = if self.depth < DEEPEST {
            self.pushed(recipe, axis, range.clone())
        } else {
            None
        };
        self.depth -= 1;
        let made = made
            .or_else(|| recipe.pick(axis, range.map(Some)))
            .unwrap_or_else(|| recipe.clone());
        self.made.insert(key, made.clone());
        made
    }

    /// The operation on parts of its inputs; `None` where it needs all of them.
    fn pushed(&mut self, recipe: &Recipe, axis: usize, range: Range<usize>) -> Option<Recipe> {
        let rank = recipe.rank();
        // The axis of an input that is aligned with the last axes of the result, unless it is the same all along it.
        let mut aligned =
            |input: &Recipe, axis: usize| match (axis + input.rank()).checked_sub(rank) {
                Some(own) if input.shape()[own] != 1 => self.recipe(input, own, range.clone()),
                _ => input.clone(),
            };
        match (recipe.op(), recipe.inputs()) {
            (Op::Round(data_type), [input]) => Some(aligned(input, axis).rounded(*data_type)),
            (Op::Neg, [input]) => Some(aligned(input, axis).neg()),
            (Op::Sqrt, [input]) => Some(aligned(input, axis).sqrt()),
            (Op::Exp, [input]) => Some(aligned(input, axis).exp()),
            (Op::Sigmoid, [input]) => Some(aligned(input, axis).sigmoid()),
            (Op::Flush(below), [input]) => Some(aligned(input, axis).flushed(*below)),
            (op @ (Op::Add | Op::Sub | Op::Mul | Op::Div), [left, right]) => {
                aligned(left, axis).zip(op.clone(), &aligned(right, axis))
            }
            (Op::Transpose(perm), [input]) => self.recipe(input, perm[axis], range).transpose(perm),
            (Op::Reshape, [input]) => {
                // Where as many elements lie before an axis of the same extent, it is the same axis.
                let before = |shape: &[usize], axis: usize| shape[..axis].iter().product::<usize>();
                let wanted = (before(recipe.shape(), axis), recipe.shape()[axis]);
                let own = (0..input.rank())
                    .find(|&own| (before(input.shape(), own), input.shape()[own]) == wanted)?;
                let mut shape = recipe.shape().to_vec();
                shape[axis] = range.len();
                self.recipe(input, own, range).reshape(&shape)
            }
            (
                Op::Pick {
                    axis: along,
                    places,
                },
                [input],
            ) if *along == axis => input.pick(axis, places[range].iter().copied()),
            (
                Op::Pick {
                    axis: along,
                    places,
                },
                [input],
            ) => self
                .recipe(input, axis, range)
                .pick(*along, places.iter().copied()),
            (Op::Expand, [input]) => {
                let input = aligned(input, axis);
                let mut shape = recipe.shape().to_vec();
                shape[axis] = range.len();
                input.expand(&shape)
            }
            (Op::Concat(along), parts) if *along != axis => {
                let parts: Vec<Recipe> = parts
                    .iter()
                    .map(|part| self.recipe(part, axis, range.clone()))
                    .collect();
                Recipe::concat(*along, &parts)
            }
            (Op::Sum(along), [input]) if *along != axis => {
                self.recipe(input, axis, range).sum(*along)
            }
            (Op::Max(along), [input]) if *along != axis => {
                self.recipe(input, axis, range).max(*along)
            }
            (Op::Softmax(along), [input]) if *along != axis => {
                self.recipe(input, axis, range).softmax(*along)
            }
            (Op::Product, [left, right]) => {
                let (row, column) = (axis + 2 == rank, axis + 1 == rank);
                let cut_left = if column {
                    left.clone()
                } else {
                    aligned(left, axis)
                };
                let cut_right = if row {
                    right.clone()
                } else {
                    aligned(right, axis)
                };
                cut_left.product(&cut_right)
            }
            (Op::Conv(windows), [weight, values]) if axis < 2 => {
                let values = if axis == 0 {
                    self.recipe(values, 0, range.clone())
                } else {
                    values.clone()
                };
                self.recipe(weight, axis, range)
                    .conv(&values, Windows::clone(windows))
            }
            _ => None,
        }
    }
}

/// One operation on arrays of the shapes that the recipe says.
pub(super) fn compute(step: &Recipe, inputs: Vec<Array>) -> ArrayD<f64> {
    let shape = IxDyn(step.shape());
    let mut rest = inputs.into_iter();
    let inputs = [rest.next(), rest.next()];
    let made = match (step.op(), inputs) {
        (Op::Literal(numbers), _) => match **numbers {
            [number] => ArrayD::from_elem(shape, number),
            _ => ArrayD::from_shape_vec(shape, numbers.to_vec()).expect("as many elements"),
        },
        (Op::Round(data_type), [Some(a), _]) => {
            a.into_owned().mapv_into(|a| tensor::rounded(*data_type, a))
        }
        (Op::Neg, [Some(a), _]) => a.into_owned().mapv_into(|a| -a),
        (Op::Sqrt, [Some(a), _]) => a.into_owned().mapv_into(f64::sqrt),
        (Op::Exp, [Some(a), _]) => a.into_owned().mapv_into(f64::exp),
        (Op::Sigmoid, [Some(a), _]) => a.into_owned().mapv_into(|a| 1.0 / (1.0 + (-a).exp())),
        (Op::Flush(below), [Some(a), _]) => a
            .into_owned()
            .mapv_into(|a| if a.abs() < *below { 0.0 } else { a }),
        (Op::Add, [Some(a), Some(b)]) => element_wise(a, &b, shape, |a, b| a + b),
        (Op::Sub, [Some(a), Some(b)]) => element_wise(a, &b, shape, |a, b| a - b),
        (Op::Mul, [Some(a), Some(b)]) => element_wise(a, &b, shape, |a, b| a * b),
        (Op::Div, [Some(a), Some(b)]) => element_wise(a, &b, shape, |a, b| a / b),
        (Op::Reshape, [Some(a), _]) => a
            .into_owned()
            .into_shape_with_order(shape)
            .expect("as many elements"),
        (Op::Expand, [Some(a), _]) => wide(&a, &shape).to_owned(),
        (Op::Transpose(perm), [Some(a), _]) => a.into_owned().permuted_axes(&perm[..]),
        (Op::Pick { axis, places }, [Some(a), _]) => picked(&a, *axis, places, shape),
        (Op::Concat(axis), parts) => {
            let parts: Vec<Array> = parts.into_iter().flatten().chain(rest).collect();
            let parts: Vec<_> = parts.iter().map(|part| part.view()).collect();
            ndarray::concatenate(Axis(*axis), &parts).expect("parts that fit")
        }
        (Op::Sum(axis), [Some(a), _]) => {
            // In order: the first summand must not depend on the number of sums.
            let mut sums = ArrayD::zeros(a.raw_dim().remove_axis(Axis(*axis)));
            a.axis_iter(Axis(*axis)).for_each(|places| sums += &places);
            sums.insert_axis(Axis(*axis))
        }
        (Op::Max(axis), [Some(a), _]) => a.map_axis(Axis(*axis), largest).insert_axis(Axis(*axis)),
        (Op::Softmax(axis), [Some(a), _]) => {
            let mut shares = a.into_owned();
            for mut lane in shares.lanes_mut(Axis(*axis)) {
                let most = largest(lane.view());
                lane.mapv_inplace(|a| (a - most).exp());
                let sum: f64 = lane.iter().sum();
                lane.mapv_inplace(|a| a / sum);
            }
            shares
        }
        (Op::Product, [Some(a), Some(b)]) => product(&a, &b, shape),
        (Op::Conv(windows), [Some(weight), Some(values)]) => convolution(&weight, &values, windows),
        (op, _) => unreachable!("{op:?} lacks an input"),
    };
    row_major(made)
}

fn largest(lane: ArrayView1<f64>) -> f64 {
    lane.fold(f64::NEG_INFINITY, |a, &b| a.max(b))
}

fn row_major(array: ArrayD<f64>) -> ArrayD<f64> {
    if array.is_standard_layout() {
        array
    } else {
        array.as_standard_layout().into_owned()
    }
}

fn wide<'a>(array: &'a Array, shape: &IxDyn) -> ArrayViewD<'a, f64> {
    array
        .broadcast(shape.clone())
        .expect("shapes that broadcast")
}

fn element_wise(a: Array, b: &Array, shape: IxDyn, f: impl Fn(f64, f64) -> f64) -> ArrayD<f64> {
    if a.raw_dim() != shape {
        return Zip::from(&wide(&a, &shape))
            .and(&wide(b, &shape))
            .map_collect(|&a, &b| f(a, b));
    }
    let mut result = a.into_owned();
    result.zip_mut_with(&wide(b, &shape), |a, &b| *a = f(*a, b));
    result
}

fn picked(array: &Array, axis: usize, places: &[Option<usize>], shape: IxDyn) -> ArrayD<f64> {
    let mut result = ArrayD::zeros(shape);
    for (to, from) in places.iter().enumerate() {
        if let Some(from) = *from {
            result
                .index_axis_mut(Axis(axis), to)
                .assign(&array.index_axis(Axis(axis), from));
        }
    }
    result
}

/// Matrix products over broadcast leading axes.
fn product(a: &Array, b: &Array, shape: IxDyn) -> ArrayD<f64> {
    let outer = shape.slice()[..shape.ndim() - 2].to_vec();
    let batch: usize = outer.iter().product();
    let [a_wide, b_wide] = [a, b].map(|array| {
        let shape = [&outer[..], &array.shape()[array.ndim() - 2..]].concat();
        array.broadcast(shape).expect("shapes that broadcast")
    });
    let [a, b] = [&a_wide, &b_wide].map(|array| {
        let [.., rows, columns] = *array.shape() else {
            unreachable!("a matrix has two axes")
        };
        array
            .to_shape((batch, rows, columns))
            .expect("as many elements")
    });
    let mut result = Array3::zeros((batch, a.len_of(Axis(1)), b.len_of(Axis(2))));
    for ((a, b), mut sums) in a
        .outer_iter()
        .zip(b.outer_iter())
        .zip(result.outer_iter_mut())
    {
        multiply(a, b, &mut sums);
    }
    result
        .into_shape_with_order(shape)
        .expect("as many elements")
}

/// Tap by tap, each a matrix product with the places that it meets.
fn convolution(weight: &Array, values: &Array, windows: &Windows) -> ArrayD<f64> {
    let weight = weight
        .view()
        .into_dimensionality::<Ix4>()
        .expect("four axes");
    let (group, outer, inner, _) = weight.dim();
    let mut result = Array3::zeros((group, outer, windows.output.iter().product()));
    for (tap, meets) in windows.meets().enumerate() {
        let met = picked(values, 2, &meets, IxDyn(&[group, inner, meets.len()]));
        let met = met.into_dimensionality::<Ix3>().expect("three axes");
        let weight = weight.index_axis(Axis(3), tap);
        for ((weight, met), mut sums) in weight
            .outer_iter()
            .zip(met.outer_iter())
            .zip(result.outer_iter_mut())
        {
            multiply(weight, met.view(), &mut sums);
        }
    }
    result.into_dyn()
}

/// Adds a row, times a number.
#[multiversion(targets = "simd")]
fn add_times(factor: f64, row: &[f64], sums: &mut [f64]) {
    for (sum, number) in sums.iter_mut().zip(row) {
        *sum += factor * number;
    }
}

/// The products of a row with each of many, each added up in the order of its elements; several at a time, as each sum
/// waits for its last one.
#[multiversion(targets = "simd")]
fn dot_each(row: &[f64], rows: &[f64], sums: &mut [f64]) {
    const AT_ONCE: usize = 8;
    let length = row.len();
    let (many, few) = sums.as_chunks_mut::<AT_ONCE>();
    for (group, sums) in many.iter_mut().enumerate() {
        let rows: [&[f64]; AT_ONCE] =
            std::array::from_fn(|i| &rows[(group * AT_ONCE + i) * length..][..length]);
        for (place, &factor) in row.iter().enumerate() {
            for (sum, row) in sums.iter_mut().zip(rows) {
                *sum += factor * row[place];
            }
        }
    }
    let rest = &rows[many.len() * AT_ONCE * length..];
    for (sum, numbers) in few.iter_mut().zip(rest.chunks_exact(length.max(1))) {
        *sum = row
            .iter()
            .zip(numbers)
            .fold(0.0, |sum, (factor, number)| sum + factor * number);
    }
}

/// Adds `a · b`, in the order of the rows of `b`: any other order would round differently, and which one a library
/// takes depends on the machine.
fn multiply(a: ArrayView2<f64>, b: ArrayView2<f64>, sums: &mut ArrayViewMut2<f64>) {
    if b.ncols() == 1 {
        // In the same order, without a loop over one column.
        for (row, sum) in a.outer_iter().zip(sums.iter_mut()) {
            *sum = row
                .iter()
                .zip(&b)
                .fold(*sum, |sum, (&factor, &number)| sum + factor * number);
        }
        return;
    }
    for (row, mut sums) in a.outer_iter().zip(sums.outer_iter_mut()) {
        for (&factor, numbers) in row.iter().zip(b.outer_iter()) {
            Zip::from(&mut sums)
                .and(&numbers)
                .for_each(|sum, &number| *sum += factor * number);
        }
    }
}

#[cfg(test)]
mod tests {
    use ndarray::array;

    use super::*;
    use crate::recipe::testing::{read, recipes, vector, weight};

    #[test]
    fn each_operation_computes_what_it_says() {
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
    fn parts_are_what_the_whole_has_there() {
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

    #[test]
    fn what_does_not_fit_is_no_recipe() {
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
    fn a_formula_may_be_as_long_as_a_graph() {
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
