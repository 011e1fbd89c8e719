//! Matrix products in the field.
//!
//! Elements are represented by the integers nearest to 0, whose magnitude is at most half of the
//! prime, so less than 2³⁰. Elements of the left matrix are split into a multiple of 2¹⁶ and a rest
//! of at most 2¹⁵. Sums of [`TERMS`] products with either part are integers below 2⁵³, which float64
//! holds exactly. Vector units multiply and add floats of 64 bits faster than integers.

use multiversion::multiversion;
use multiversion::target::target_cfg_f;
use ndarray::{ArrayViewMut2, Axis};
use rayon::prelude::*;

use super::field::{self, P};

/// The numbers of rows and columns of a block, whose sums and operands fit into a near cache.
const BLOCK_ROWS: usize = 256;
const BLOCK_COLUMNS: usize = 256;

/// The numbers of rows and columns of a tile, whose sums fit into the registers of a vector unit.
const ROWS: usize = 4;
const LANES: usize = 16;

/// The number of products that are added before a sum is reduced.
const TERMS: usize = 128;

/// The factor of the high parts of elements.
const HIGH: f64 = 65_536.0;

/// The prime.
const PRIME: f64 = P as f64;

/// The numbers of a tile, row by row.
type Tile = [[f64; LANES]; ROWS];

/// The high and the low parts of an element from each row of a tile.
type SplitFactors = [[f64; ROWS]; 2];

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
        for (row, strip) in cut(product, Axis(0), BLOCK_ROWS).into_iter().enumerate() {
            for (column, block) in cut(strip, Axis(1), BLOCK_COLUMNS).into_iter().enumerate() {
                blocks.push((
                    &left[a + row * BLOCK_ROWS * inner..],
                    &right[b + column * BLOCK_COLUMNS..],
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
fn compute(left: &[u32], right: &[u32], extents: Extents, block: ArrayViewMut2<u32>) {
    let inner = extents.inner;
    let strips = block.ncols().div_ceil(LANES);
    let groups = block.nrows().div_ceil(ROWS);
    let terms = inner.min(TERMS);
    let mut sums: Vec<Tile> = vec![[[0.0; LANES]; ROWS]; groups * strips];
    let mut panel = vec![[0.0; LANES]; strips * terms];
    let mut factors: Vec<SplitFactors> = vec![[[0.0; ROWS]; 2]; terms];
    for term in (0..inner).step_by(TERMS) {
        let terms = term..inner.min(term + TERMS);
        let rows = right.chunks(extents.columns);
        let rows = rows.skip(term).take(terms.len());
        pack(rows.map(|row| &row[..block.ncols()]), &mut panel);
        let groups = left.chunks(ROWS * inner);
        for (rows, sums) in groups.zip(sums.chunks_mut(strips)) {
            let rows = rows.chunks(inner).map(|row| &row[terms.clone()]);
            split(rows, &mut factors);
            for (numbers, sums) in panel.chunks(factors.len()).zip(sums) {
                let numbers = &numbers[..terms.len()];
                add_products(&factors[..terms.len()], numbers, sums);
            }
        }
    }
    write(&sums, block);
}

/// Writes the columns of rows to a panel: strips of [`LANES`] columns, one after another. The
/// columns of the last strip that the rows do not have keep their numbers, which no result reads.
#[inline(always)]
fn pack<'e>(rows: impl Iterator<Item = &'e [u32]>, panel: &mut [[f64; LANES]]) {
    for (place, row) in rows.enumerate() {
        let strips = row.chunks(LANES);
        let length = panel.len() / strips.len();
        for (strip, elements) in strips.enumerate() {
            let numbers = &mut panel[strip * length + place];
            for (number, &element) in numbers.iter_mut().zip(elements) {
                *number = centred(element);
            }
        }
    }
}

/// Splits the elements of at most [`ROWS`] rows. Missing rows keep their factors, which no result
/// reads.
#[inline(always)]
fn split<'e>(rows: impl Iterator<Item = &'e [u32]>, factors: &mut [SplitFactors]) {
    for (row, elements) in rows.enumerate() {
        for (factors, &element) in factors.iter_mut().zip(elements) {
            let number = centred(element);
            let high = (number / HIGH).round_ties_even();
            factors[0][row] = high;
            factors[1][row] = number - high * HIGH;
        }
    }
}

/// The integer nearest to 0 that represents an element.
#[inline(always)]
fn centred(element: u32) -> f64 {
    if u64::from(element) > P / 2 {
        f64::from(element as i32 - P as i32)
    } else {
        f64::from(element as i32)
    }
}

/// Adds the products of at most [`TERMS`] factors and numbers to the sums of a tile, and reduces the
/// sums.
#[inline(always)]
fn add_products(factors: &[SplitFactors], numbers: &[[f64; LANES]], sums: &mut Tile) {
    let [high, low] = products(factors, numbers);
    let parts = high.as_flattened().iter().zip(low.as_flattened());
    for (sum, (&high, &low)) in sums.as_flattened_mut().iter_mut().zip(parts) {
        let whole = reduced(high) * HIGH + reduced(low);
        *sum = reduced(*sum + whole);
    }
}

/// The sums of the products with the high parts of factors, and of those with the low parts. The
/// compiler keeps the sums in registers only in a function of their own.
#[multiversion(targets = "simd")]
fn products(factors: &[SplitFactors], numbers: &[[f64; LANES]]) -> [Tile; 2] {
    let is_fused = target_cfg_f!(any(target_feature = "fma", target_arch = "aarch64"));
    let (mut high, mut low) = ([[0.0; LANES]; ROWS], [[0.0; LANES]; ROWS]);
    for ([of_high, of_low], numbers) in factors.iter().zip(numbers) {
        for row in 0..ROWS {
            add_row(&mut high[row], of_high[row], numbers, is_fused);
            add_row(&mut low[row], of_low[row], numbers, is_fused);
        }
    }
    [high, low]
}

/// Adds a factor times a row of numbers to a row of sums. A fused operation has the same results,
/// because all of them are exact. Where it is missing, it would be slow.
#[inline(always)]
fn add_row(sums: &mut [f64; LANES], factor: f64, numbers: &[f64; LANES], is_fused: bool) {
    for (sum, &number) in sums.iter_mut().zip(numbers) {
        *sum = if is_fused {
            factor.mul_add(number, *sum)
        } else {
            *sum + factor * number
        };
    }
}

/// An integer of about the smallest magnitude that differs from another integer by a multiple of the
/// prime. The magnitude of the other integer is at most 2⁵³.
#[inline(always)]
fn reduced(integer: f64) -> f64 {
    integer - (integer * (1.0 / PRIME)).round_ties_even() * PRIME
}

/// Writes the elements that the sums of a block represent.
fn write(sums: &[Tile], mut block: ArrayViewMut2<u32>) {
    let strips = block.ncols().div_ceil(LANES);
    let rows = sums
        .chunks(strips)
        .flat_map(|tiles| (0..ROWS).map(move |row| tiles.iter().flat_map(move |tile| &tile[row])));
    for (mut elements, sums) in block.rows_mut().into_iter().zip(rows) {
        for (element, &sum) in elements.iter_mut().zip(sums) {
            *element = field::of_int(sum as i64);
        }
    }
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
