//! The range of the magnitudes of numbers, computed in one pass.

use multiversion::multiversion;

/// The smallest magnitude above 0 and the largest magnitude of some numbers.
///
/// Both are stored as bits. The bits have the same order as the magnitudes, with NaN last.
/// Processors compare several integers at a time, but not several floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ValueRange {
    /// The bits of the smallest magnitude, minus one. The subtraction wraps 0 to the largest value,
    /// so that zeros are ignored.
    least: u64,
    largest: u64,
}

impl ValueRange {
    /// The range of an empty set.
    pub(crate) const NONE: Self = Self {
        least: u64::MAX,
        largest: 0,
    };

    /// The range of a slice of numbers.
    pub(crate) fn from_numbers(numbers: &[f64]) -> Self {
        look(numbers)
    }

    /// The range of the union of both sets.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            least: self.least.min(other.least),
            largest: self.largest.max(other.largest),
        }
    }

    /// The smallest magnitude above 0. It is infinite if all numbers are 0.
    pub(crate) fn least(self) -> f64 {
        if self.least == u64::MAX {
            f64::INFINITY
        } else {
            f64::from_bits(self.least + 1)
        }
    }

    /// The largest magnitude. It is NaN if any number is NaN.
    pub(crate) fn largest(self) -> f64 {
        f64::from_bits(self.largest)
    }

    /// Whether all numbers are finite.
    pub(crate) fn are_finite(self) -> bool {
        self.largest().is_finite()
    }

    /// The range of the rounded products of each number in this range and each number in `other`.
    /// `None` if a product could be subnormal or infinite.
    pub(crate) fn times(self, other: Self) -> Option<Self> {
        Self::between(
            self.least() * other.least(),
            self.largest() * other.largest(),
        )
    }

    /// The range of the rounded quotients of each number in this range and each number in `other`,
    /// if no divisor is 0. `None` if a quotient could be subnormal or infinite.
    pub(crate) fn over(self, other: Self) -> Option<Self> {
        Self::between(
            self.least() / other.largest(),
            self.largest() / other.least(),
        )
    }

    fn between(least: f64, largest: f64) -> Option<Self> {
        let are_normal = least >= f64::MIN_POSITIVE && largest.is_finite();
        are_normal.then(|| Self {
            least: least.to_bits() - 1,
            largest: largest.to_bits(),
        })
    }
}

#[multiversion(targets = "simd")]
fn look(numbers: &[f64]) -> ValueRange {
    let (mut least, mut largest) = (u64::MAX, 0);
    for number in numbers {
        let size = number.abs().to_bits();
        largest = largest.max(size);
        least = least.min(size.wrapping_sub(1));
    }
    ValueRange { least, largest }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_range_has_least_nonzero_and_largest_magnitudes() {
        let seen = ValueRange::from_numbers(&[0.0, -3.0, 1e-310, -0.0, 2.0]);
        assert_eq!((seen.least(), seen.largest()), (1e-310, 3.0));
        assert_eq!(
            seen.and(ValueRange::from_numbers(&[f64::NEG_INFINITY]))
                .largest(),
            f64::INFINITY
        );
        assert!(!seen.and(ValueRange::from_numbers(&[f64::NAN])).are_finite());
        assert_eq!(ValueRange::from_numbers(&[0.0]), ValueRange::NONE);
        assert_eq!(
            (ValueRange::NONE.least(), ValueRange::NONE.largest()),
            (f64::INFINITY, 0.0)
        );
    }

    #[test]
    fn value_ranges_of_products_and_quotients_enclose_them() {
        let (a, b) = ([0.1, -7.0, 0.0], [0.3, -11.0]);
        let [of_a, of_b] = [&a[..], &b].map(ValueRange::from_numbers);
        let (times, over) = (of_a.times(of_b).unwrap(), of_a.over(of_b).unwrap());
        assert_eq!((times.least(), times.largest()), (0.1 * 0.3, 77.0));
        assert_eq!((over.least(), over.largest()), (0.1 / 11.0, 7.0 / 0.3));
        let tiny = ValueRange::from_numbers(&[1e-200]);
        assert_eq!(
            (
                tiny.times(tiny),
                ValueRange::from_numbers(&[1e200]).over(tiny)
            ),
            (None, None)
        );
        assert_eq!(of_a.times(ValueRange::from_numbers(&[f64::NAN])), None);
    }
}
