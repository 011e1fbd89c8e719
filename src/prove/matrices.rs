//! Matrix products in the field.
//!
//! An element is `2¹⁶·h + l` with halves that float64 products keep to the last bit, for thousands of them are added
//! before a sum has 53 bits. So three products of float64 matrices, which every machine has its fastest code for, are
//! one over the field: of the upper halves, of the lower ones, and of the sums of both.

use ndarray::{Array2, ArrayView2, ArrayViewMut2, linalg::general_mat_mul};
use rayon::prelude::*;

use super::field::{self, P};

/// Rows, columns and terms of the blocks that are computed at once.
const ROWS: usize = 256;
const COLUMNS: usize = 512;
const TERMS: usize = 512;

/// Below so many rows or columns splitting costs more than it brings.
const NARROW: usize = 4;

/// Products of two elements that are added before they are reduced.
const ADDED: usize = 4;

/// What 2³² is in the field: less than 2²¹, so that nothing overflows where it is a factor.
const WORD: i64 = ((1 << 32) % P) as i64;

/// How large the matrices of a product are.
#[derive(Debug, Clone, Copy)]
pub struct Extents {
    /// Rows of the left one.
    pub rows: usize,
    /// Columns of the left one, and rows of the right one.
    pub inner: usize,
    /// Columns of the right one.
    pub columns: usize,
}

/// The products of pairs of matrices, one behind the other. A pair says where in the two lists its matrices begin.
pub fn multiply(left: &[u32], right: &[u32], pairs: &[(usize, usize)], extents: Extents) -> Vec<u32> {
    let Extents { rows, inner, columns } = extents;
    let mut result = vec![0; pairs.len() * rows * columns];
    if result.is_empty() || inner == 0 {
        return result;
    }
    // Blocks never reach from one pair into the next.
    let blocks = rows.div_ceil(ROWS);
    let mut parts: Vec<(usize, usize, &mut [u32])> = vec![];
    for (pair, product) in result.chunks_mut(rows * columns).enumerate() {
        parts.extend(product.chunks_mut(ROWS * columns).enumerate().map(|(block, part)| (pair, block, part)));
    }
    debug_assert_eq!(parts.len(), pairs.len() * blocks);
    parts.into_par_iter().for_each(|(pair, block, part)| {
        let (a, b) = pairs[pair];
        let first = a + block * ROWS * inner;
        let count = part.len() / columns;
        let left = &left[first..first + count * inner];
        let right = &right[b..b + inner * columns];
        if count < NARROW || columns < NARROW {
            plain(left, right, inner, columns, part);
        } else {
            split(left, right, inner, columns, part);
        }
    });
    result
}

/// Row by row.
fn plain(left: &[u32], right: &[u32], inner: usize, columns: usize, result: &mut [u32]) {
    let mut sums = vec![0_u64; columns];
    for (row, result) in left.chunks(inner).zip(result.chunks_mut(columns)) {
        sums.fill(0);
        for (factors, rows) in row.chunks(ADDED - 1).zip(right.chunks((ADDED - 1) * columns)) {
            for (&factor, numbers) in factors.iter().zip(rows.chunks(columns)) {
                let factor = u64::from(factor);
                sums.iter_mut().zip(numbers).for_each(|(sum, &number)| *sum += factor * u64::from(number));
            }
            sums.iter_mut().for_each(|sum| *sum %= P);
        }
        result.iter_mut().zip(&sums).for_each(|(result, &sum)| *result = sum as u32);
    }
}

/// The upper and the lower halves of a block, and their sums.
struct Halves([Array2<f64>; 3]);

impl Halves {
    fn new(block: ArrayView2<u32>) -> Self {
        let mut halves = [(); 3].map(|()| Vec::with_capacity(block.len()));
        for row in block.rows() {
            for &element in row {
                // Centred, so that both halves are.
                let centred =
                    if u64::from(element) > P / 2 { element as i32 - P as i32 } else { element as i32 };
                let low = i32::from(centred as i16);
                let high = (centred - low) >> 16;
                halves[0].push(f64::from(high));
                halves[1].push(f64::from(low));
                halves[2].push(f64::from(high + low));
            }
        }
        Self(halves.map(|half| Array2::from_shape_vec(block.dim(), half).expect("as many elements")))
    }
}

/// Block by block.
fn split(left: &[u32], right: &[u32], inner: usize, columns: usize, result: &mut [u32]) {
    let rows = result.len() / columns;
    let left = ArrayView2::from_shape((rows, inner), left).expect("a matrix");
    let right = ArrayView2::from_shape((inner, columns), right).expect("a matrix");
    let mut result = ArrayViewMut2::from_shape((rows, columns), result).expect("a matrix");
    for start in (0..inner).step_by(TERMS) {
        let terms = start..(start + TERMS).min(inner);
        let left = Halves::new(left.slice(ndarray::s![.., terms.clone()]));
        for first in (0..columns).step_by(COLUMNS) {
            let range = first..(first + COLUMNS).min(columns);
            let right = Halves::new(right.slice(ndarray::s![terms.clone(), range.clone()]));
            let mut products = [(); 3].map(|()| Array2::zeros((rows, range.len())));
            for ((product, left), right) in products.iter_mut().zip(&left.0).zip(&right.0) {
                general_mat_mul(1.0, left, right, 0.0, product);
            }
            let [high, low, both] = products;
            let mut target = result.slice_mut(ndarray::s![.., range]);
            for (row, mut target) in target.rows_mut().into_iter().enumerate() {
                let [high, low, both] = [&high, &low, &both].map(|product| product.row(row).to_vec());
                for (place, target) in target.iter_mut().enumerate() {
                    let [high, low, both] = [high[place] as i64, low[place] as i64, both[place] as i64];
                    let sum = high * WORD + ((both - high - low) << 16) + low;
                    *target = field::add(*target, field::of_int(sum));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_blocks_are_those_of_numbers() {
        let edge = P as u32 - 1;
        for (rows, inner, columns) in [(1, 7, 3), (5, 1, 5), (200, 530, 6), (4, 1100, 520), (3, 9, 600)] {
            let element = |i: usize| if i.is_multiple_of(3) { edge } else { field::mul(i as u32, 2_654_435) };
            let left: Vec<u32> = (0..2 * rows * inner).map(element).collect();
            let right: Vec<u32> = (0..inner * columns).map(|i| element(i + 1)).collect();
            let found =
                multiply(&left, &right, &[(rows * inner, 0), (0, 0)], Extents { rows, inner, columns });
            for (place, &sum) in found.iter().enumerate() {
                let (pair, row, column) = (place / (rows * columns), place / columns % rows, place % columns);
                let first = (1 - pair) * rows * inner + row * inner;
                let products =
                    (0..inner).map(|k| u128::from(left[first + k]) * u128::from(right[k * columns + column]));
                assert_eq!(u128::from(sum), products.sum::<u128>() % u128::from(P));
            }
        }
    }
}
