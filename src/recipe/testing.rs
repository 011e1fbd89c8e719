//! Recipes for tests.

use ndarray::ArrayD;

use super::{Recipe, Windows};
use crate::onnx::tensor::DataType;
use crate::refusal::Refusal;

/// Reads the constants of the tests: `W` of shape `[4, 6]`, `v` of shape `[6]`, and `s` of shape
/// `[2, 1, 3, 1]`.
///
/// # Errors
/// Never. The signature is that of a reader of model constants.
pub(super) fn read(name: &str) -> Result<ArrayD<f64>, Refusal> {
    let shape: &[usize] = match name {
        "W" => &[4, 6],
        "v" => &[6],
        _ => &[2, 1, 3, 1],
    };
    let count = shape.iter().product::<usize>();
    let numbers = (0..count)
        .map(|i| ((i * 7 + name.len()) % 11) as f64 / 3.0 - 1.0)
        .collect();
    Ok(ArrayD::from_shape_vec(shape, numbers).unwrap())
}

pub(super) fn weight() -> Recipe {
    Recipe::constant("W", &[4, 6])
}

pub(super) fn vector() -> Recipe {
    Recipe::constant("v", &[6])
}

/// For each operation, at least one recipe that ends in it.
pub(super) fn recipes() -> Vec<Recipe> {
    let scaled = weight().mul(&vector()).unwrap();
    let grouped = weight().reshape(&[2, 2, 3, 2]).unwrap();
    let by_group = grouped.mul(&Recipe::constant("s", &[2, 1, 3, 1])).unwrap();
    let column = vector().reshape(&[6, 1]).unwrap();
    let (kernel, strides, dilations, before) = (vec![2], vec![2], vec![1], vec![1]);
    let windows = Windows {
        transposed: false,
        kernel,
        strides,
        dilations,
        before,
        input: vec![3],
        output: vec![2],
    };
    let taken = weight().reshape(&[2, 3, 2, 2]).unwrap();
    let convolution = taken
        .conv(
            &weight()
                .reshape(&[2, 2, 6])
                .unwrap()
                .pick(2, [Some(0), Some(4), Some(2)])
                .unwrap(),
            windows,
        )
        .unwrap();
    vec![
        scaled.neg(),
        scaled.rounded(DataType::Float16),
        scaled.add(&Recipe::number(0.5, 2)).unwrap(),
        scaled.sub(&weight().sum(1).unwrap()).unwrap(),
        weight().div(&Recipe::number(3.0, 0)).unwrap(),
        vector().mul(&vector()).unwrap().sqrt(),
        by_group.reshape(&[4, 6]).unwrap(),
        by_group.transpose(&[2, 0, 3, 1]).unwrap(),
        scaled.turned().unwrap(),
        weight().pick(1, [Some(5), None, Some(0), Some(0)]).unwrap(),
        column.expand(&[6, 4]).unwrap(),
        Recipe::concat(0, &[weight(), scaled.clone()]).unwrap(),
        scaled.sum(0).unwrap(),
        scaled.max(0).unwrap(),
        scaled.softmax(0).unwrap(),
        scaled.exp(),
        scaled.sigmoid(),
        scaled.flushed(1.0),
        weight().product(&column).unwrap(),
        by_group.product(&grouped.turned().unwrap()).unwrap(),
        convolution,
    ]
}
