//! Standardizes groups of the elements of a constant: BatchNormalization in training mode,
//! InstanceNormalization and LayerNormalization. Also bounds the errors.
//!
//! Networks without normalization of activations, such as NFNet, standardize their weights in this
//! way.

use ndarray::{ArrayD, Axis, Zip};

use super::rounded::{ErrorBound, FloatRounding, ROUNDINGS, Rounded};
use crate::onnx::tensor::{DataType, rounded};

/// The input, the scale and the shift of a standardization.
pub(super) struct Standardization {
    /// The input, of shape `[groups, length]`. The elements of a group have common statistics.
    pub input: Rounded,
    /// The scale, which broadcasts to the shape of the input.
    pub scale: Rounded,
    /// The shift, which broadcasts to the shape of the input.
    pub shift: Rounded,
    pub epsilon: f64,
}

impl Standardization {
    /// Evaluates the standardization. `None` if the input is empty, if the parameters do not
    /// broadcast to its shape, or if a bound is infinite.
    pub(super) fn value(&self, data_type: DataType) -> Option<Rounded> {
        let unit = FloatRounding::new(data_type)?.unit * ROUNDINGS;
        let shape = self.input.values.shape();
        let &[groups, length] = shape else {
            return None;
        };
        if groups * length == 0 {
            return None;
        }
        let scale = self.scale.values.broadcast(shape)?;
        let shift = self.shift.values.broadcast(shape)?;
        let [mut values, mut errors] = [(); 2].map(|()| ArrayD::zeros(shape));
        for group in 0..groups {
            let statistics = self.statistics(group, unit);
            Zip::from(values.index_axis_mut(Axis(0), group))
                .and(errors.index_axis_mut(Axis(0), group))
                .and(self.input.values.index_axis(Axis(0), group))
                .and(scale.index_axis(Axis(0), group))
                .and(shift.index_axis(Axis(0), group))
                .for_each(|value, error, &input, &scale, &shift| {
                    *value = (input - statistics.mean) / statistics.deviation * scale + shift;
                    let input = (input, self.input.error.at(input));
                    let scale = (scale, self.scale.error.at(scale));
                    let shift = (shift, self.shift.error.at(shift));
                    *error = statistics.error(input, scale, shift, unit);
                });
        }
        let values = values.mapv(|value| rounded(data_type, value));
        let error = ErrorBound::covering(values.iter().zip(&errors));
        error
            .absolute
            .is_finite()
            .then_some(Rounded { values, error })
    }

    /// The mean and the deviation of a group. The bound on the error of the variance also holds
    /// if an engine computes `mean(x²) − mean(x)²`.
    fn statistics(&self, group: usize, unit: f64) -> Statistics {
        let inputs = self.input.values.index_axis(Axis(0), group);
        let count = inputs.len() as f64;
        let mean = inputs.sum() / count;
        let magnitude = inputs.iter().map(|input| input.abs()).sum::<f64>() / count;
        let square = inputs.iter().map(|input| input * input).sum::<f64>() / count;
        let variance = inputs
            .iter()
            .map(|input| (input - mean).powi(2))
            .sum::<f64>()
            / count;
        let errors = inputs.iter().map(|&input| self.input.error.at(input));
        let largest = errors.fold(0.0, f64::max);
        let of_mean = largest + (count + 1.0) * unit * magnitude;
        let of_difference = largest + of_mean;
        let carried = 2.0 * of_difference * variance.sqrt() + of_difference * of_difference;
        let of_variance = carried + (count + 3.0) * unit * square;
        let deviation = (variance + self.epsilon).sqrt();
        let least = (variance + self.epsilon - of_variance).max(0.0).sqrt();
        Statistics {
            mean,
            deviation,
            of_mean,
            of_deviation: of_variance / (deviation + least) + 2.0 * unit * deviation,
        }
    }
}

/// The mean and the deviation of a group, with bounds on their errors.
struct Statistics {
    mean: f64,
    deviation: f64,
    of_mean: f64,
    of_deviation: f64,
}

impl Statistics {
    /// A bound on the error of a result, given the input, the scale and the shift, each with the
    /// bound on its error.
    fn error(
        &self,
        (input, of_input): (f64, f64),
        (scale, of_scale): (f64, f64),
        (shift, of_shift): (f64, f64),
        unit: f64,
    ) -> f64 {
        if self.of_deviation >= self.deviation {
            return f64::INFINITY;
        }
        let difference = input - self.mean;
        let of_difference = of_input + self.of_mean + unit * difference.abs();
        let ratio = (difference / self.deviation).abs();
        let of_ratio = (of_difference + ratio * self.of_deviation)
            / (self.deviation - self.of_deviation)
            + unit * ratio;
        let product = ratio * scale.abs();
        let of_product = of_ratio * (scale.abs() + of_scale) + ratio * of_scale + unit * product;
        of_product + of_shift + unit * (product + shift.abs())
    }
}

#[cfg(test)]
mod tests {
    use ndarray::Array1;

    use super::*;

    fn exact(shape: &[usize], numbers: &[f32]) -> Rounded {
        let numbers = Array1::from(numbers.to_vec()).mapv(f64::from).into_dyn();
        Rounded {
            values: numbers.into_shape_with_order(shape).unwrap(),
            error: ErrorBound::EXACT,
        }
    }

    /// A standardization in float32 that computes the variance as `mean(x²) − mean(x)²`.
    fn in_float32(group: &[f32], scale: f32, shift: f32) -> Vec<f32> {
        let count = group.len() as f32;
        let mean = group.iter().sum::<f32>() / count;
        let square = group.iter().map(|number| number * number).sum::<f32>() / count;
        let factor = scale / (square - mean * mean + 1e-5).sqrt();
        let results = group
            .iter()
            .map(|number| number * factor + (shift - mean * factor));
        results.collect()
    }

    #[test]
    fn bound_covers_float32_and_no_change_of_one_part_in_a_thousand() {
        let numbers: Vec<f32> = (0..60_i16)
            .map(|at| f32::from(at * 37 % 101) * 0.0137 - 0.4)
            .collect();
        let standardization = Standardization {
            input: exact(&[2, 30], &numbers),
            scale: exact(&[2, 1], &[0.7, -1.9]),
            shift: exact(&[2, 1], &[0.1, 0.0]),
            epsilon: 1e-5,
        };
        let made = standardization.value(DataType::Float).unwrap();
        let [first, second] = [&numbers[..30], &numbers[30..]];
        let wanted = [in_float32(first, 0.7, 0.1), in_float32(second, -1.9, 0.0)].concat();
        for (value, wanted) in made.values.iter().zip(wanted) {
            assert!(
                (value - f64::from(wanted)).abs() <= made.error.at(*value),
                "{value} {wanted}"
            );
        }
        assert!(made.error.absolute < 1e-3, "{:?}", made.error);
    }
}
