//! Sums of products, each in an order that is equal on every machine.

use multiversion::multiversion;
use ndarray::{ArrayView2, ArrayViewMut2, Zip};

/// Adds a row times a factor to the sums.
#[multiversion(targets = "simd")]
pub(super) fn add_times(factor: f64, row: &[f64], sums: &mut [f64]) {
    for (sum, number) in sums.iter_mut().zip(row) {
        *sum += factor * number;
    }
}

/// Adds to each sum the product of `row` with one of `rows`, in the order of the elements. Several
/// sums are computed at a time, because each addition waits for the one before it.
#[multiversion(targets = "simd")]
pub(super) fn dot_each(row: &[f64], rows: &[f64], sums: &mut [f64]) {
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
            .fold(*sum, |sum, (factor, number)| sum + factor * number);
    }
}

/// Sums each row of `length` numbers, in the order of the numbers. Several sums are computed at a
/// time, because each addition waits for the one before it.
pub(super) fn sum_each(numbers: &[f64], length: usize, sums: &mut [f64]) {
    dot_each(&vec![1.0; length], numbers, sums);
}

/// Adds `a · b` to the sums, in the order of the rows of `b`. Any other order would round
/// differently, and the order that a library takes depends on the machine.
pub(super) fn multiply(a: ArrayView2<f64>, b: ArrayView2<f64>, sums: &mut ArrayViewMut2<f64>) {
    if b.ncols() == 1 {
        // With one column, no loop over columns is needed. The order is the same.
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

/// The smallest magnitude except 0. Infinity if all numbers are 0. Compares the bits of magnitudes,
/// which have the order of the magnitudes.
#[multiversion(targets = "simd")]
pub(super) fn least_nonzero(numbers: &[f64]) -> f64 {
    let magnitudes = numbers.iter().map(|number| number.abs().to_bits());
    // Subtracting 1 wraps 0 to the largest value, so that zeros are ignored.
    let least = magnitudes.fold(u64::MAX, |least, bits| least.min(bits.wrapping_sub(1)));
    match least.checked_add(1) {
        Some(bits) => f64::from_bits(bits.min(f64::INFINITY.to_bits())),
        None => f64::INFINITY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smallest_magnitude_ignores_zeros() {
        assert_eq!(least_nonzero(&[0.0, -3.0, 0.25, -0.0, 7.0]), 0.25);
        assert_eq!(least_nonzero(&[1.0, -5e-324]), 5e-324);
        assert_eq!(least_nonzero(&[0.0, -0.0]), f64::INFINITY);
        assert_eq!(least_nonzero(&[f64::NAN, 2.0]), 2.0);
    }

    #[test]
    fn each_row_is_summed_in_order() {
        let numbers: Vec<f64> = (0..33).map(|number| 0.1 * f64::from(number)).collect();
        let mut sums = [0.0; 11];
        sum_each(&numbers, 3, &mut sums);
        let expected = numbers.chunks(3).map(|row| row[0] + row[1] + row[2]);
        assert_eq!(sums.to_vec(), expected.collect::<Vec<f64>>());
    }
}
