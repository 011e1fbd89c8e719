//! Bounds on the errors of constants that normalizations and Softmax compute.

use ndarray::{ArrayD, ArrayView1, Axis};

use super::constants::ComputedConstants;
use super::rounded::{
    ErrorBound, FUNCTION, FloatRounding, ROUNDINGS, Rounded, exchanged, reshaped,
};
use super::standardized::Standardization;
use crate::ir::axes::axis;
use crate::ir::{NodeId, ValueId};
use crate::onnx::tensor::DataType;
use crate::onnx::tract_quirks::batch_norm_trains;

impl ComputedConstants<'_> {
    /// Evaluates a BatchNormalization in training mode with a constant input. Returns the bound on
    /// the error of the result. `None` outside of training mode, for the other results, or if no
    /// bound is known.
    pub(super) fn batch_normalized(
        &self,
        node: NodeId,
        value: ValueId,
        data_type: DataType,
    ) -> Option<ErrorBound> {
        let graph = &self.analysis.graph;
        let trains = batch_norm_trains(graph.node(node), graph.model().own_opset());
        if !trains.ok()? {
            return None;
        }
        let input = exchanged(self.operand(node, 0)?)?;
        let shape = input.values.shape().to_vec();
        let &[channels, ref others @ ..] = &shape[..] else {
            return None;
        };
        let standardization = Standardization {
            input: reshaped(input, &[channels, others.iter().product()])?,
            scale: reshaped(self.operand(node, 1)?, &[channels, 1])?,
            shift: reshaped(self.operand(node, 2)?, &[channels, 1])?,
            epsilon: self.epsilon(node)?,
        };
        let made = reshaped(standardization.value(data_type)?, &shape)?;
        self.first_result(node, value, &exchanged(made)?, data_type)
    }

    /// Evaluates an InstanceNormalization of a constant. Returns the bound on the error of the
    /// result. `None` if no bound is known.
    pub(super) fn instance_normalized(
        &self,
        node: NodeId,
        value: ValueId,
        data_type: DataType,
    ) -> Option<ErrorBound> {
        let input = self.operand(node, 0)?;
        let shape = input.values.shape().to_vec();
        let &[samples, channels, ref places @ ..] = &shape[..] else {
            return None;
        };
        let standardization = Standardization {
            input: reshaped(input, &[samples * channels, places.iter().product()])?,
            scale: repeated(&self.operand(node, 1)?, channels, samples)?,
            shift: repeated(&self.operand(node, 2)?, channels, samples)?,
            epsilon: self.epsilon(node)?,
        };
        let made = reshaped(standardization.value(data_type)?, &shape)?;
        self.first_result(node, value, &made, data_type)
    }

    /// Evaluates a LayerNormalization of a constant. Returns the bound on the error of the result.
    /// `None` for the other results, or if no bound is known.
    pub(super) fn layer_normalized(
        &self,
        node: NodeId,
        value: ValueId,
        data_type: DataType,
    ) -> Option<ErrorBound> {
        let graph = &self.analysis.graph;
        let input = self.operand(node, 0)?;
        let shape = input.values.shape().to_vec();
        let first = graph.node(node).attr_i("axis").ok()?.unwrap_or(-1);
        let (outer, inner) = shape.split_at(axis(first, shape.len()).ok()?);
        let length = inner.iter().product();
        let shift = match graph.input(node, 2) {
            Some(_) => reshaped(self.operand(node, 2)?, &[1, length])?,
            None => Rounded {
                values: ArrayD::zeros(vec![1, 1]),
                error: ErrorBound::EXACT,
            },
        };
        let standardization = Standardization {
            input: reshaped(input, &[outer.iter().product(), length])?,
            scale: reshaped(self.operand(node, 1)?, &[1, length])?,
            shift,
            epsilon: self.epsilon(node)?,
        };
        let made = reshaped(standardization.value(data_type)?, &shape)?;
        self.first_result(node, value, &made, data_type)
    }

    fn epsilon(&self, node: NodeId) -> Option<f64> {
        let epsilon = self.analysis.graph.node(node).attr_f("epsilon").ok()?;
        Some(epsilon.unwrap_or(1e-5).into())
    }

    /// Stores `made` as the first result of a node. Returns the bound on its error. `None` if
    /// `value` is another result.
    fn first_result(
        &self,
        node: NodeId,
        value: ValueId,
        made: &Rounded,
        data_type: DataType,
    ) -> Option<ErrorBound> {
        let is_first = self.analysis.graph.output(node, 0) == Some(value);
        is_first
            .then(|| self.provided(value, made, data_type))
            .flatten()
    }

    /// The bound on the error of a Softmax of a constant. `None` if no bound is known.
    ///
    /// The shares of a row depend only on the differences from its largest score. An error `d` of
    /// each difference moves a share by at most the factor `exp(2·d)`.
    pub(super) fn softmax(
        &self,
        node: NodeId,
        value: ValueId,
        data_type: DataType,
    ) -> Option<ErrorBound> {
        let graph = &self.analysis.graph;
        let unit = FloatRounding::new(data_type)?.unit * ROUNDINGS;
        let scores = self.operand(node, 0)?;
        let shares = self.analysis.constants.read(value).ok()?;
        let shape = scores.values.shape().to_vec();
        let given = graph.node(node).attr_i("axis").ok()?;
        // Before operator set 13, a row consists of all axes from `axis` on.
        let has_one_axis = graph.model().own_opset() >= 13;
        let along = axis(
            given.unwrap_or(if has_one_axis { -1 } else { 1 }),
            shape.len(),
        )
        .ok()?;
        let (shape, along) = match has_one_axis {
            true => (shape, along),
            false => {
                let (outer, inner) = shape.split_at(along);
                (vec![outer.iter().product(), inner.iter().product()], 1)
            }
        };
        let scores = reshaped(scores, &shape)?;
        let shares = shares.into_shape_with_order(shape).ok()?;
        let mut bound = ErrorBound::EXACT;
        let rows = scores.values.lanes(Axis(along)).into_iter();
        for (row, shares) in rows.zip(shares.lanes(Axis(along))) {
            let relative = error_of_shares(row, shares, scores.error, unit);
            for &share in shares {
                bound.cover(share, relative * share);
            }
        }
        Some(bound)
    }
}

/// The bound on the error of each share of a row, relative to the share. A score without a share, as
/// in a masked place, has no effect.
fn error_of_shares(
    scores: ArrayView1<f64>,
    shares: ArrayView1<f64>,
    error: ErrorBound,
    unit: f64,
) -> f64 {
    let places = scores.iter().zip(shares);
    let present: Vec<f64> = places
        .filter(|(_, share)| **share > 0.0)
        .map(|(score, _)| *score)
        .collect();
    let largest = present.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let least = present.iter().copied().fold(f64::INFINITY, f64::min);
    let errors = present.iter().map(|&score| error.at(score));
    let of_difference = errors.fold(0.0, f64::max) + unit * (largest - least);
    let roundings = shares.len() as f64 + 1.0 + 2.0 * FUNCTION;
    (2.0 * of_difference).exp_m1() + roundings * unit
}

/// Repeats the parameters of the channels for each sample, as a column. `None` if there is another
/// number of parameters.
fn repeated(parameter: &Rounded, channels: usize, samples: usize) -> Option<Rounded> {
    if parameter.values.len() != channels {
        return None;
    }
    let numbers = parameter.values.iter().copied();
    let numbers: Vec<f64> = numbers.cycle().take(samples * channels).collect();
    Some(Rounded {
        values: ArrayD::from_shape_vec(vec![samples * channels, 1], numbers).ok()?,
        error: parameter.error,
    })
}
