//! Bounds on the errors of element-wise functions of two operands that broadcast, and of roundings.

use std::iter::repeat;

use multiversion::multiversion;
use ndarray::ArrayD;
use rayon::prelude::*;

use super::rounded::{
    ErrorBound, FUNCTION, FloatRounding, PART, ROUNDINGS, Rounded, largest_magnitude,
};
use crate::onnx::tensor::DataType;
use crate::recipe::BroadcastRuns;

/// A function of two floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    Pow,
}

impl Binary {
    /// A bound on the error of a result, given bounds on the errors of its operands.
    fn error(
        self,
        [a, b]: [f64; 2],
        result: f64,
        [of_a, of_b]: [f64; 2],
        to: FloatRounding,
    ) -> f64 {
        let carried = self.carried([a, b], result, [of_a, of_b]);
        let is_exact = of_a + of_b == 0.0 && to.holds(result) && self.is_exact(a, b, result);
        let own = if is_exact {
            0.0
        } else {
            self.roundings() * to.unit * result.abs()
        };
        carried + own
    }

    /// A bound on the error that the errors of the operands cause, without the rounding of the
    /// result.
    #[inline(always)]
    fn carried(self, [a, b]: [f64; 2], result: f64, [of_a, of_b]: [f64; 2]) -> f64 {
        match self {
            Self::Add | Self::Sub => of_a + of_b,
            Self::Mul => of_a * b.abs() + of_b * a.abs() + of_a * of_b,
            Self::Div if of_b < b.abs() => (of_a + result.abs() * of_b) / (b.abs() - of_b),
            Self::Pow if of_a < a.abs() => {
                let of_base = b.abs() * of_a / (a.abs() - of_a);
                let of_exponent = if of_b > 0.0 {
                    a.abs().ln().abs() * of_b
                } else {
                    0.0
                };
                result.abs() * (of_base + of_exponent)
            }
            Self::Pow if of_a + of_b == 0.0 => 0.0,
            Self::Div | Self::Pow => f64::INFINITY,
        }
    }

    fn roundings(self) -> f64 {
        if self == Self::Pow {
            ROUNDINGS * FUNCTION
        } else {
            ROUNDINGS
        }
    }

    /// Whether the result of exact operands is exact.
    fn is_exact(self, a: f64, b: f64, result: f64) -> bool {
        match self {
            Self::Add => is_sum(a, b, result),
            Self::Sub => is_sum(a, -b, result),
            Self::Mul => a.mul_add(b, -result) == 0.0,
            Self::Div => result.mul_add(b, -a) == 0.0,
            Self::Pow => b == 2.0 && a.mul_add(a, -result) == 0.0,
        }
    }
}

/// Whether `sum` is exactly `a + b`.
fn is_sum(a: f64, b: f64, sum: f64) -> bool {
    let rest = sum - a;
    sum == a + b && (a - (sum - rest)) + (b - rest) == 0.0
}

/// Bounds the error of an element-wise function of two operands. `None` if the shapes of the
/// operands do not broadcast to the shape of the result.
pub(super) fn of_binary(
    function: Binary,
    a: &Rounded,
    b: &Rounded,
    result: &ArrayD<f64>,
    data_type: DataType,
) -> Option<ErrorBound> {
    let to = FloatRounding::new(data_type)?;
    let runs = BroadcastRuns::new(a.values.shape(), b.values.shape())?;
    if runs.shape != result.shape() {
        return None;
    }
    let elements = BinaryElements {
        runs,
        operands: [a.values.as_slice()?, b.values.as_slice()?],
        results: result.as_slice()?,
    };
    let operation = BinaryOperation {
        function,
        errors: [a.error, b.error],
        to,
    };
    let proportional = operation.proportional_errors(a, b).and_then(|carried| {
        operation.proportional_bound(carried, &elements, largest_magnitude(result)?)
    });
    Some(proportional.unwrap_or_else(|| operation.covering(&elements)))
}

/// The elements of two operands that broadcast, and the elements of the result, all in row-major
/// order.
struct BinaryElements<'e> {
    runs: BroadcastRuns,
    operands: [&'e [f64]; 2],
    results: &'e [f64],
}

impl<'e> BinaryElements<'e> {
    /// The elements of a run: those of both operands, of which one element may be repeated, and
    /// those of the result.
    fn run(&self, run: usize) -> [&'e [f64]; 3] {
        let [one, other] = self.operands;
        let (one, other) = self.runs.operands(run, one, other);
        let results = &self.results[run * self.runs.length..][..self.runs.length];
        [one, other, results]
    }

    /// The elements of both operands and of the result at each place of a run.
    fn places(&self, run: usize) -> impl Iterator<Item = [f64; 3]> + use<'e> {
        let elements = self.run(run);
        let places = 0..elements[2].len();
        places.map(move |place| elements.map(|slice| slice[place.min(slice.len() - 1)]))
    }
}

/// An element-wise function of two operands with errors, computed in a float type.
#[derive(Clone, Copy)]
struct BinaryOperation {
    function: Binary,
    errors: [ErrorBound; 2],
    to: FloatRounding,
}

impl BinaryOperation {
    /// The smallest bound that covers the errors of all results. All cores share the work.
    fn covering(self, elements: &BinaryElements) -> ErrorBound {
        let least = PART.div_ceil(elements.runs.length.max(1));
        let runs = (0..elements.runs.count())
            .into_par_iter()
            .with_min_len(least);
        let bounds = runs.map(|run| match self.function {
            Binary::Pow => self.covering_each(elements.places(run)),
            function => largest_errors(function, elements.run(run), self.errors, self.own_error()),
        });
        bounds.reduce(|| ErrorBound::EXACT, ErrorBound::or)
    }

    fn covering_each(self, places: impl Iterator<Item = [f64; 3]>) -> ErrorBound {
        let mut bound = ErrorBound::EXACT;
        for [a, b, result] in places {
            let errors = [self.errors[0].at(a), self.errors[1].at(b)];
            let error = self.function.error([a, b], result, errors, self.to);
            bound.cover(result, error);
        }
        bound
    }

    /// The error of the operation itself, relative to the result.
    fn own_error(self) -> f64 {
        self.function.roundings() * self.to.unit
    }

    /// The error that the operands cause, relative to each result. `None` unless this is the same
    /// for all results: for exact operands, and for a product or a quotient of operands whose
    /// errors are proportional to their elements.
    fn proportional_errors(self, a: &Rounded, b: &Rounded) -> Option<f64> {
        if matches!(self.function, Binary::Add | Binary::Sub) {
            return (a.error.is_exact() && b.error.is_exact()).then_some(0.0);
        }
        if self.function == Binary::Pow {
            return None;
        }
        let [of_a, of_b] = [
            a.error.proportional_to(&a.values)?,
            b.error.proportional_to(&b.values)?,
        ];
        match self.function {
            Binary::Mul => Some(of_a + of_b + of_a * of_b),
            _ => (of_b < 1.0).then(|| (of_a + of_b) / (1.0 - of_b)),
        }
    }

    /// The bound for results whose operands cause an error of `carried`, relative to each result.
    /// `largest` is the largest magnitude of a result.
    fn proportional_bound(
        self,
        carried: f64,
        elements: &BinaryElements,
        largest: f64,
    ) -> Option<ErrorBound> {
        if carried == 0.0 && self.are_exact(elements) {
            return Some(ErrorBound::EXACT);
        }
        let relative = carried + self.own_error();
        Some(ErrorBound {
            relative,
            absolute: relative * largest,
        })
    }

    /// Whether every result of exact operands is exact.
    fn are_exact(self, elements: &BinaryElements) -> bool {
        let mut places = (0..elements.runs.count()).flat_map(|run| elements.places(run));
        places.all(|[a, b, result]| self.to.holds(result) && self.function.is_exact(a, b, result))
    }
}

/// The smallest bound that covers the results of two operands with errors. Each result counts as
/// rounded, with an error of `own` relative to the result. One element of an operand may be
/// repeated.
#[multiversion(targets = "simd")]
pub(super) fn largest_errors(
    function: Binary,
    elements: [&[f64]; 3],
    errors: [ErrorBound; 2],
    own: f64,
) -> ErrorBound {
    match function {
        Binary::Add | Binary::Sub => largest_of_runs(Binary::Add, elements, errors, own),
        Binary::Mul => largest_of_runs(Binary::Mul, elements, errors, own),
        Binary::Div => largest_of_runs(Binary::Div, elements, errors, own),
        Binary::Pow => largest_of_runs(Binary::Pow, elements, errors, own),
    }
}

#[inline(always)]
fn largest_of_runs(
    function: Binary,
    [one, other, results]: [&[f64]; 3],
    errors: [ErrorBound; 2],
    own: f64,
) -> ErrorBound {
    let (ones, others) = (one.iter().copied(), other.iter().copied());
    match (one, other) {
        (&[one], _) => largest_of(function, (repeat(one), others), results, errors, own),
        (_, &[other]) => largest_of(function, (ones, repeat(other)), results, errors, own),
        _ => largest_of(function, (ones, others), results, errors, own),
    }
}

/// Compares the bits of errors, which have the order of the errors, because vector units find the
/// largest of many integers faster than the largest float. NaN has larger bits than infinity.
#[inline(always)]
fn largest_of(
    function: Binary,
    (ones, others): (impl Iterator<Item = f64>, impl Iterator<Item = f64>),
    results: &[f64],
    [of_one, of_other]: [ErrorBound; 2],
    own: f64,
) -> ErrorBound {
    let (mut relative, mut absolute) = (0, 0);
    for ((&result, one), other) in results.iter().zip(ones).zip(others) {
        let errors = [of_one.at(one), of_other.at(other)];
        let error = function.carried([one, other], result, errors) + own * result.abs();
        let ratio = if error > 0.0 {
            error / result.abs()
        } else {
            0.0
        };
        absolute = error.to_bits().max(absolute);
        relative = ratio.to_bits().max(relative);
    }
    let [relative, absolute] = [relative, absolute].map(f64::from_bits);
    if absolute.is_nan() {
        return ErrorBound {
            relative: f64::INFINITY,
            absolute: f64::INFINITY,
        };
    }
    ErrorBound { relative, absolute }
}

/// Bounds the error of values that are rounded once more, to another type.
pub(super) fn of_rounding(a: ErrorBound, values: &ArrayD<f64>, to: DataType) -> Option<ErrorBound> {
    let unit = FloatRounding::new(to)?.unit;
    if let Some(carried) = a.proportional_to(values) {
        let relative = carried + unit;
        return Some(ErrorBound {
            relative,
            absolute: relative * largest_magnitude(values)?,
        });
    }
    let parts = values.as_slice()?.par_chunks(PART);
    let errors = [a, ErrorBound::EXACT];
    let bounds = parts.map(|part| largest_errors(Binary::Add, [part, &[0.0], part], errors, unit));
    Some(bounds.reduce(|| ErrorBound::EXACT, ErrorBound::or))
}

#[cfg(test)]
mod tests {
    use ndarray::Array1;

    use super::super::rounded::{Unary, of_unary};
    use super::*;

    fn exact(numbers: &[f64]) -> Rounded {
        Rounded {
            values: Array1::from(numbers.to_vec()).into_dyn(),
            error: ErrorBound::EXACT,
        }
    }

    /// Numbers of float32 that use all binary digits.
    fn numbers(seed: u32) -> Vec<f64> {
        let mut state = seed;
        let drawn = (0..500).map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f64::from((state >> 8) as f32 / 1e6 + 0.037)
        });
        drawn.collect()
    }

    fn binary(function: Binary, a: &Rounded, b: &Rounded, values: Vec<f64>) -> Rounded {
        let values = Array1::from(values).into_dyn();
        let error = of_binary(function, a, b, &values, DataType::Float).unwrap();
        Rounded { values, error }
    }

    fn unary(function: Unary, a: &Rounded, values: Vec<f64>) -> Rounded {
        let values = Array1::from(values).into_dyn();
        let error = of_unary(function, a, &values, DataType::Float).unwrap();
        Rounded { values, error }
    }

    #[test]
    fn bound_covers_the_formula_in_any_order_of_its_operations() {
        let [weights, gammas, variances] = [1, 2, 3].map(numbers);
        let roots: Vec<f64> = variances.iter().map(|v| v.sqrt()).collect();
        let factors: Vec<f64> = gammas.iter().zip(&roots).map(|(g, r)| g / r).collect();
        let folded: Vec<f64> = weights.iter().zip(&factors).map(|(w, f)| w * f).collect();
        let root = unary(Unary::Sqrt, &exact(&variances), roots);
        let factor = binary(Binary::Div, &exact(&gammas), &root, factors);
        let folded = binary(Binary::Mul, &exact(&weights), &factor, folded);
        let mut most = 0.0_f64;
        for (at, &wanted) in folded.values.iter().enumerate() {
            let [w, g, v] = [&weights, &gammas, &variances].map(|numbers| numbers[at] as f32);
            let bound = folded.error.at(wanted);
            for other in [
                w * (g / v.sqrt()),
                w * (g * (1.0 / v.sqrt())),
                w * g / v.sqrt(),
            ] {
                let difference = (f64::from(other) - wanted).abs();
                assert!(difference <= bound);
                most = most.max(difference / bound);
            }
            assert!((wanted * 1e-4).abs() > bound);
        }
        // The bound is less than 10 times the largest error.
        assert!(most > 0.1, "{most}");
    }

    #[test]
    fn only_results_that_are_exact_in_the_type_have_no_error() {
        let of_unary =
            |function, a: f64, made: f64| unary(function, &exact(&[a]), vec![made]).error;
        assert!(of_unary(Unary::Sqrt, 64.0, 8.0).is_exact());
        assert!(of_unary(Unary::Reciprocal, 8.0, 0.125).is_exact());
        assert!(!of_unary(Unary::Sqrt, 3.0, 3_f64.sqrt()).is_exact());
        let third = exact(&[f64::from(1.0_f32 / 3.0)]);
        let [half, quarter] = [exact(&[0.5]), exact(&[0.25])];
        let sum = binary(Binary::Add, &half, &quarter, vec![0.75]);
        assert!(sum.error.is_exact());
        let sum = binary(Binary::Add, &half, &exact(&[1e-9]), vec![0.5]);
        assert!(!sum.error.is_exact());
        // The product is exact in float64, but not in float32.
        let square = third.values[0] * third.values[0];
        assert!(
            !binary(Binary::Mul, &third, &third, vec![square])
                .error
                .is_exact()
        );
    }

    #[test]
    fn cancellation_keeps_the_error_of_the_operands() {
        let error = ErrorBound {
            relative: 1e-6,
            absolute: 1.0,
        };
        let a = Rounded {
            error,
            ..exact(&[1000.0])
        };
        let bound = binary(Binary::Sub, &a, &exact(&[999.5]), vec![0.5]).error;
        assert!(bound.at(0.5) >= 1e-3 && bound.at(0.5) < 1.1e-3, "{bound:?}");
    }

    #[test]
    fn bound_of_many_results_is_the_largest_of_each() {
        let error = ErrorBound {
            relative: 1e-6,
            absolute: 0.1,
        };
        let one: Vec<f64> = (0..19).map(|at| 0.3 + 0.1 * f64::from(at)).collect();
        let others: Vec<f64> = one.iter().map(|number| 2.7 - number).collect();
        let a = Rounded {
            values: Array1::from(one.clone()).into_dyn(),
            error,
        };
        let to = FloatRounding::new(DataType::Float).unwrap();
        for (function, apply) in [
            (Binary::Add, (|a, b| a + b) as fn(f64, f64) -> f64),
            (Binary::Sub, |a, b| a - b),
            (Binary::Mul, |a, b| a * b),
            (Binary::Div, |a, b| a / b),
        ] {
            for other in [&others[..], &[0.7]] {
                let b = Rounded {
                    error: ErrorBound {
                        relative: f64::INFINITY,
                        absolute: 1e-7,
                    },
                    values: Array1::from(other.to_vec()).into_dyn(),
                };
                let operands: Vec<[f64; 2]> = (0..19)
                    .map(|at| [a.values[at], other[at.min(other.len() - 1)]])
                    .collect();
                let results: Vec<f64> = operands.iter().map(|&[a, b]| apply(a, b)).collect();
                let mut expected = ErrorBound::EXACT;
                for (&[x, y], &result) in operands.iter().zip(&results) {
                    let errors = [a.error.at(x), b.error.at(y)];
                    expected.cover(result, function.error([x, y], result, errors, to));
                }
                let results = Array1::from(results).into_dyn();
                let bound = of_binary(function, &a, &b, &results, DataType::Float);
                assert_eq!(bound, Some(expected));
            }
        }
    }
}
