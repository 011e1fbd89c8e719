//! The operations of recipes, computed on arrays.

use ndarray::{
    Array3, ArrayD, ArrayView1, ArrayViewD, Axis, CowArray, Dimension, Ix3, Ix4, IxDyn, Zip,
};

use super::kernels::{add_times, least_nonzero, multiply, sum_each};
use crate::onnx::tensor;
use crate::recipe::{BroadcastRuns, Op, Recipe, Windows};

/// An input of a step, borrowed or owned.
pub(in crate::recipe) type Array<'a> = CowArray<'a, f64, IxDyn>;

/// Computes the last operation of `step` from the arrays of its inputs, in order.
pub(in crate::recipe) fn compute(step: &Recipe, inputs: Vec<Array>) -> ArrayD<f64> {
    let shape = IxDyn(step.shape());
    let mut rest = inputs.into_iter();
    let inputs = [rest.next(), rest.next()];
    let made = match (step.op(), inputs) {
        (Op::Literal(numbers), _) => literal(numbers, shape),
        (Op::Round(to), [Some(a), _]) => a.into_owned().mapv_into(|a| tensor::rounded(*to, a)),
        (Op::Neg, [Some(a), _]) => a.into_owned().mapv_into(|a| -a),
        (Op::Sqrt, [Some(a), _]) => a.into_owned().mapv_into(f64::sqrt),
        (Op::Exp, [Some(a), _]) => a.into_owned().mapv_into(f64::exp),
        (Op::Sigmoid, [Some(a), _]) => a.into_owned().mapv_into(|a| 1.0 / (1.0 + (-a).exp())),
        (Op::Flush(below), [Some(a), _]) => flushed(a.into_owned(), *below),
        (Op::Add, [Some(a), Some(b)]) => element_wise(a, &b, shape, |a, b| a + b),
        (Op::Sub, [Some(a), Some(b)]) => element_wise(a, &b, shape, |a, b| a - b),
        (Op::Mul, [Some(a), Some(b)]) => element_wise(a, &b, shape, |a, b| a * b),
        (Op::Div, [Some(a), Some(b)]) => element_wise(a, &b, shape, |a, b| a / b),
        (Op::Reshape, [Some(a), _]) => reshaped(a.into_owned(), shape),
        (Op::Expand, [Some(a), _]) => wide(&a, &shape).to_owned(),
        (Op::Transpose(perm), [Some(a), _]) => a.into_owned().permuted_axes(&perm[..]),
        (Op::Pick { axis, places }, [Some(a), _]) => picked(&a, *axis, places, shape),
        (Op::Concat(axis), first) => {
            let parts: Vec<Array> = first.into_iter().flatten().chain(rest).collect();
            concatenated(*axis, &parts)
        }
        (Op::Sum(axis), [Some(a), _]) => summed(&a, Axis(*axis)),
        (Op::Max(axis), [Some(a), _]) => a.map_axis(Axis(*axis), largest).insert_axis(Axis(*axis)),
        (Op::Softmax(axis), [Some(a), _]) => softmax(a.into_owned(), Axis(*axis)),
        (Op::Product, [Some(a), Some(b)]) => product(&a, &b, shape),
        (Op::Conv(windows), [Some(weight), Some(values)]) => convolution(&weight, &values, windows),
        (op, _) => unreachable!("{op:?} lacks an input"),
    };
    row_major(made)
}

fn literal(numbers: &[f64], shape: IxDyn) -> ArrayD<f64> {
    match *numbers {
        [number] => ArrayD::from_elem(shape, number),
        _ => ArrayD::from_shape_vec(shape, numbers.to_vec()).expect("as many elements"),
    }
}

/// Replaces numbers of a magnitude below `below` by 0.
fn flushed(array: ArrayD<f64>, below: f64) -> ArrayD<f64> {
    array.mapv_into(|a| if a.abs() < below { 0.0 } else { a })
}

fn reshaped(array: ArrayD<f64>, shape: IxDyn) -> ArrayD<f64> {
    array
        .into_shape_with_order(shape)
        .expect("as many elements")
}

fn concatenated(axis: usize, parts: &[Array]) -> ArrayD<f64> {
    let parts: Vec<_> = parts.iter().map(|part| part.view()).collect();
    ndarray::concatenate(Axis(axis), &parts).expect("parts that fit")
}

/// Sums along an axis in the order of its places, so that rounding does not depend on the number of
/// sums.
fn summed(array: &Array, axis: Axis) -> ArrayD<f64> {
    let array = array.as_standard_layout();
    let numbers = array.as_slice().expect("row-major");
    let mut shape = array.raw_dim();
    let extent = std::mem::replace(&mut shape[axis.0], 1);
    let inner: usize = shape.slice()[axis.0..].iter().product();
    let mut sums = ArrayD::zeros(shape);
    let results = sums.as_slice_mut().expect("row-major");
    if inner == 1 {
        sum_each(numbers, extent, results);
    } else if inner > 0 {
        let blocks = numbers.chunks(extent.max(1) * inner);
        for (block, sums) in blocks.zip(results.chunks_mut(inner)) {
            block
                .chunks(inner)
                .for_each(|row| add_times(1.0, row, sums));
        }
    }
    sums
}

fn softmax(mut array: ArrayD<f64>, axis: Axis) -> ArrayD<f64> {
    for mut lane in array.lanes_mut(axis) {
        let most = largest(lane.view());
        lane.mapv_inplace(|a| (a - most).exp());
        let sum: f64 = lane.iter().sum();
        lane.mapv_inplace(|a| a / sum);
    }
    array
}

fn largest(lane: ArrayView1<f64>) -> f64 {
    lane.fold(f64::NEG_INFINITY, |a, &b| a.max(b))
}

pub(super) fn row_major(array: ArrayD<f64>) -> ArrayD<f64> {
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
    let runs = BroadcastRuns::new(a.shape(), b.shape()).expect("shapes that broadcast");
    let [a, b] = [&a, b].map(|operand| operand.as_standard_layout());
    let [one, other] = [&a, &b].map(|operand| operand.as_slice().expect("row-major"));
    let results = runs.map(one, other, f);
    ArrayD::from_shape_vec(shape, results).expect("as many elements")
}

pub(super) fn picked(
    array: &Array,
    axis: usize,
    places: &[Option<usize>],
    shape: IxDyn,
) -> ArrayD<f64> {
    let array = array.as_standard_layout();
    let numbers = array.as_slice().expect("row-major");
    let inner: usize = array.shape()[axis + 1..].iter().product();
    let row = array.len_of(Axis(axis)) * inner;
    let outer: usize = array.shape()[..axis].iter().product();
    let mut result = Vec::with_capacity(shape.size());
    for start in (0..outer).map(|row_index| row_index * row) {
        for place in places {
            match place {
                Some(place) => {
                    let from = start + place * inner;
                    result.extend_from_slice(&numbers[from..from + inner]);
                }
                None => result.resize(result.len() + inner, 0.0),
            }
        }
    }
    ArrayD::from_shape_vec(shape, result).expect("as many elements")
}

/// Computes matrix products over broadcast leading axes.
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

/// Computes a convolution tap by tap. Each tap is a matrix product with the places that it reads.
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

/// Whether any element of the product `a · b` is 0 only because it is too small for float64.
pub(super) fn vanishes(a: &Array, b: &Array, shape: &[usize]) -> bool {
    // The product of the smallest magnitudes is the smallest one of all products.
    if let [Some(least_a), Some(least_b)] = [a, b].map(least_magnitude)
        && least_a * least_b > 0.0
    {
        return false;
    }
    let shape = IxDyn(shape);
    Zip::from(&wide(a, &shape))
        .and(&wide(b, &shape))
        .any(|&a, &b| a * b == 0.0 && a != 0.0 && b != 0.0)
}

/// The smallest magnitude of an array except 0. Infinity if all elements are 0. `None` if the array
/// is not row-major.
fn least_magnitude(array: &Array) -> Option<f64> {
    let numbers = array.as_slice()?;
    Some(least_nonzero(numbers))
}
