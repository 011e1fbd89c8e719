//! Matrix products in the field.
//!
//! Elements are represented by the integers nearest to 0, whose magnitude is at most half of the
//! prime. So a signed 64-bit word can hold the sum of eight products and a reduced sum. This needs
//! only multiplications and additions, which every machine can vectorize.

use multiversion::multiversion;
use ndarray::{ArrayViewMut2, Axis};
use rayon::prelude::*;

use super::field::{self, P};

/// The numbers of rows and columns of a block, whose sums and operands fit into a near cache.
const ROWS: usize = 64;
const COLUMNS: usize = 512;

/// The number of rows that are computed together, so that each element of the right matrix is
/// loaded once for all of them.
const PAIR: usize = 2;

/// The number of products that are added before a sum is reduced.
const TERMS: usize = 8;

/// 2³² in the field. It is less than 2²¹, so that products with it do not overflow.
const WORD: i64 = ((1 << 32) % P) as i64;

/// The sizes of the matrices in a product.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extents {
    /// Rows of the left matrix.
    pub rows: usize,
    /// Columns of the left matrix, and rows of the right matrix.
    pub inner: usize,
    /// Columns of the right matrix.
    pub columns: usize,
}

/// The products of pairs of matrices, concatenated. A pair holds the offsets of its matrices in
/// `left` and `right`.
pub(super) fn multiply(
    left: &[u32],
    right: &[u32],
    pairs: &[(usize, usize)],
    extents: Extents,
) -> Vec<u32> {
    let Extents {
        rows,
        inner,
        columns,
    } = extents;
    let mut result = vec![0; pairs.len() * rows * columns];
    if result.is_empty() || inner == 0 {
        return result;
    }
    let mut blocks = vec![];
    for (&(a, b), product) in pairs.iter().zip(result.chunks_mut(rows * columns)) {
        let product =
            ArrayViewMut2::from_shape((rows, columns), product).expect("as many elements");
        for (row, strip) in cut(product, Axis(0), ROWS).into_iter().enumerate() {
            for (column, block) in cut(strip, Axis(1), COLUMNS).into_iter().enumerate() {
                blocks.push((
                    &left[a + row * ROWS * inner..],
                    &right[b + column * COLUMNS..],
                    block,
                ));
            }
        }
    }
    blocks
        .into_par_iter()
        .for_each(|(left, right, block)| compute(left, right, extents, block));
    result
}

/// Splits a matrix along an axis into parts of at most `places` rows or columns.
fn cut(mut rest: ArrayViewMut2<u32>, axis: Axis, places: usize) -> Vec<ArrayViewMut2<u32>> {
    let mut parts = vec![];
    while rest.len_of(axis) > places {
        let (part, others) = rest.split_at(axis, places);
        parts.push(part);
        rest = others;
    }
    parts.push(rest);
    parts
}

/// Computes a block of a product. `left` begins with the block's first row, and `right` with its
/// first column.
#[multiversion(targets = "simd")]
fn compute(left: &[u32], right: &[u32], extents: Extents, mut block: ArrayViewMut2<u32>) {
    let Extents { inner, columns, .. } = extents;
    let width = block.ncols();
    let mut sums = vec![[0_i64; COLUMNS]; block.nrows().next_multiple_of(PAIR)];
    let mut numbers = [[0_i32; COLUMNS]; TERMS];
    for term in (0..inner).step_by(TERMS) {
        let terms = term..inner.min(term + TERMS);
        let rows = right.chunks(columns).skip(term).take(terms.len());
        for (row, numbers) in rows.zip(&mut numbers) {
            centre(&row[..width], numbers);
        }
        let pairs = sums.as_chunks_mut::<PAIR>().0;
        for (sums, rows) in pairs.iter_mut().zip(left.chunks(PAIR * inner)) {
            // The factors of missing rows and terms are 0.
            let mut factors = [[0_i32; TERMS]; PAIR];
            for (row, factors) in rows.chunks(inner).zip(&mut factors) {
                centre(&row[terms.clone()], factors);
            }
            let [first, second] = sums.each_mut().map(|sums| &mut sums[..width]);
            add_products(&factors, &numbers, first, second);
        }
    }
    for (mut row, sums) in block.rows_mut().into_iter().zip(&sums) {
        row.iter_mut()
            .zip(sums)
            .for_each(|(element, &sum)| *element = field::of_int(sum));
    }
}

/// Writes the integers nearest to 0 that represent elements.
#[inline(always)]
fn centre(elements: &[u32], into: &mut [i32]) {
    for (to, &from) in into.iter_mut().zip(elements) {
        *to = centred(from);
    }
}

/// The integer nearest to 0 that represents an element.
#[inline(always)]
fn centred(element: u32) -> i32 {
    if u64::from(element) > P / 2 {
        element as i32 - P as i32
    } else {
        element as i32
    }
}

/// Adds two rows of factors times the rows of a matrix to two rows of sums, and reduces the sums
/// below 2⁵².
#[inline(always)]
fn add_products(
    factors: &[[i32; TERMS]; PAIR],
    numbers: &[[i32; COLUMNS]; TERMS],
    first: &mut [i64],
    second: &mut [i64],
) {
    let [a, b, c, d, e, f, g, h] = numbers.each_ref().map(|row| &row[..first.len()]);
    for (at, (first, second)) in first.iter_mut().zip(second).enumerate() {
        let terms = [a[at], b[at], c[at], d[at], e[at], f[at], g[at], h[at]];
        *first = reduced(*first, &terms, &factors[0]);
        *second = reduced(*second, &terms, &factors[1]);
    }
}

/// Adds products to a sum, and reduces it below 2⁵².
#[inline(always)]
fn reduced(sum: i64, terms: &[i32; TERMS], factors: &[i32; TERMS]) -> i64 {
    let products = terms.iter().zip(factors);
    let whole = products.fold(sum, |sum, (&term, &factor)| {
        sum + i64::from(term) * i64::from(factor)
    });
    (whole >> 32) * WORD + (whole & 0xffff_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An arbitrary element. Every third element is the largest.
    fn element(i: usize) -> u32 {
        if i.is_multiple_of(3) {
            P as u32 - 1
        } else {
            field::mul(i as u32, 2_654_435)
        }
    }

    #[test]
    fn blocked_products_match_the_definition() {
        for (rows, inner, columns) in [
            (1, 7, 3),
            (5, 1, 5),
            (200, 530, 6),
            (4, 1100, 520),
            (3, 9, 600),
            (33, 5000, 2),
        ] {
            let left: Vec<u32> = (0..2 * rows * inner).map(element).collect();
            let right: Vec<u32> = (0..inner * columns).map(|i| element(i + 1)).collect();
            let found = multiply(
                &left,
                &right,
                &[(rows * inner, 0), (0, 0)],
                Extents {
                    rows,
                    inner,
                    columns,
                },
            );
            for (place, &sum) in found.iter().enumerate() {
                let (pair, row, column) = (
                    place / (rows * columns),
                    place / columns % rows,
                    place % columns,
                );
                let first = (1 - pair) * rows * inner + row * inner;
                let products = (0..inner)
                    .map(|k| u128::from(left[first + k]) * u128::from(right[k * columns + column]));
                assert_eq!(u128::from(sum), products.sum::<u128>() % u128::from(P));
            }
        }
    }

    #[test]
    fn largest_products_do_not_overflow() {
        // If centred, these elements are the farthest from 0 on either side.
        let half = P as u32 / 2;
        let extents = Extents {
            rows: 1,
            inner: 4001,
            columns: 3,
        };
        for [one, other] in [[half, half], [half, half + 1], [half + 1, half + 1]] {
            let found = multiply(&[one; 4001], &[other; 3 * 4001], &[(0, 0)], extents);
            let sum = u128::from(one) * u128::from(other) * 4001 % u128::from(P);
            assert_eq!(found, [sum as u32; 3]);
        }
    }
}
