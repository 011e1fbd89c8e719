//! The deviation of a tensor from the value of its formula.

use multiversion::multiversion;

use super::rounded::ErrorBound;
use crate::onnx::tensor::DataType;

/// The largest deviation of a tensor from its formula, in units in the last place of the element.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LargestDeviation {
    pub units: f64,
    /// The largest deviation that rounding explains.
    pub allowed: f64,
    /// The number of elements that do not deviate.
    equal: usize,
    /// Whether neither the tensor nor the formula's value has an error.
    pub is_exact: bool,
}

impl LargestDeviation {
    /// The deviation of no elements.
    pub(super) const NONE: Self = Self {
        units: 0.0,
        allowed: 0.0,
        equal: 0,
        is_exact: true,
    };

    /// Compares elements with the values of their formula. `None` if the errors do not explain the
    /// difference of some element.
    pub(super) fn explained(
        data_type: DataType,
        numbers: &[f64],
        wanted: &[f64],
        errors: [ErrorBound; 3],
    ) -> Option<Self> {
        largest(LastPlace::new(data_type), numbers, wanted, errors)
    }

    pub(super) fn and(self, other: Self) -> Self {
        Self {
            units: self.units.max(other.units),
            allowed: self.allowed.max(other.allowed),
            equal: self.equal + other.equal,
            is_exact: self.is_exact && other.is_exact,
        }
    }

    /// Whether a fold that rounds its operands explains the deviations of all `count` elements. If
    /// most elements do not deviate, the factor of the fold is a number that does not round, and
    /// no element deviates by more than the rounding of its operand and of the product.
    pub(super) fn may_be_of_a_fold(self, count: usize) -> bool {
        2 * self.equal <= count || self.units <= 1.0
    }
}

/// The last binary place of the numbers of a type.
#[derive(Clone, Copy)]
struct LastPlace {
    /// The least normal number of the type.
    least: f64,
    /// The unit in the last place of 1.
    unit: f64,
}

impl LastPlace {
    fn new(data_type: DataType) -> Self {
        let bits = match data_type {
            DataType::Float16 => 10,
            DataType::BFloat16 => 7,
            DataType::Double => 52,
            _ => 23,
        };
        Self {
            least: data_type.least_normal(),
            unit: 0.5_f64.powi(bits),
        }
    }

    /// The magnitude of a number, but at least the least normal number. Below that, the units in
    /// the last place are equal.
    #[inline(always)]
    fn magnitude(self, number: f64) -> f64 {
        number.abs().max(self.least)
    }

    /// The distance from the magnitude of a number to the next larger number of the type.
    #[inline(always)]
    fn unit(self, number: f64) -> f64 {
        // A normal number without its significand is the largest power of two that is not above it.
        let power = f64::from_bits(self.magnitude(number).to_bits() & f64::INFINITY.to_bits());
        power * self.unit
    }
}

/// The largest deviation of elements from the values of their formula. `None` if the errors do not
/// explain the difference of some element. Compares the bits of deviations, which have the order of
/// the deviations, because vector units find the largest of many integers faster than the largest
/// float.
#[multiversion(targets = "simd")]
fn largest(
    place: LastPlace,
    numbers: &[f64],
    wanted: &[f64],
    errors: [ErrorBound; 3],
) -> Option<LargestDeviation> {
    let (mut units, mut allowed) = (0, 0);
    let (mut equal, mut are_explained) = (0, true);
    for (&number, &wanted) in numbers.iter().zip(wanted) {
        let magnitude = place.magnitude(wanted);
        let bound = errors[0].at(magnitude) + errors[1].at(magnitude) + errors[2].at(magnitude);
        let difference = (number - wanted).abs();
        // An infinite bound would explain any number.
        are_explained &= difference <= bound && bound < f64::INFINITY;
        equal += usize::from(difference == 0.0);
        let unit = place.unit(number);
        units = (difference / unit).to_bits().max(units);
        allowed = (bound / unit).to_bits().max(allowed);
    }
    are_explained.then(|| LargestDeviation {
        units: f64::from_bits(units),
        allowed: f64::from_bits(allowed),
        equal,
        is_exact: errors.iter().all(|error| error.is_exact()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RELATIVE: ErrorBound = ErrorBound {
        relative: 1e-6,
        absolute: f64::INFINITY,
    };

    fn explained(numbers: &[f64], wanted: &[f64], error: ErrorBound) -> Option<LargestDeviation> {
        let errors = [error, ErrorBound::EXACT, ErrorBound::EXACT];
        LargestDeviation::explained(DataType::Float, numbers, wanted, errors)
    }

    #[test]
    fn deviations_are_in_units_of_their_elements() {
        let unit = 0.5_f64.powi(23);
        let numbers = [1.0, -4.0, 0.0, 6.0];
        let wanted = [1.0 + 0.5 * unit, -4.0 - 3.0 * unit, 0.0, 6.0];
        let found = explained(&numbers, &wanted, RELATIVE).unwrap();
        // A unit of −4 is four units of 1.
        assert_eq!(found.units, 0.75);
        assert_eq!(found.equal, 2);
        assert!(!found.is_exact);
        // The bound is largest in units where the significand is largest.
        assert_eq!(found.allowed, 1e-6 * 6.0 / (4.0 * unit));
        let none = explained(&numbers[2..], &wanted[2..], ErrorBound::EXACT).unwrap();
        assert_eq!((none.units, none.allowed, none.equal), (0.0, 0.0, 2));
        assert!(none.is_exact);
    }

    #[test]
    fn one_unexplained_element_is_found_at_every_place() {
        for place in 0..19 {
            for other in [1.0 + 2e-6, f64::NAN, f64::INFINITY] {
                let mut wanted = [1.0; 19];
                wanted[place] = other;
                assert_eq!(explained(&[1.0; 19], &wanted, RELATIVE), None);
            }
        }
        assert!(explained(&[1.0; 19], &[1.0 + 5e-7; 19], RELATIVE).is_some());
    }

    #[test]
    fn an_infinite_bound_explains_nothing() {
        let unbounded = ErrorBound {
            relative: f64::INFINITY,
            absolute: f64::INFINITY,
        };
        assert_eq!(explained(&[1.0], &[1.0], unbounded), None);
    }
}
