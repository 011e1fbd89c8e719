//! Compares the variances of the values that normalizers read with the limits below which the
//! results of these normalizers are constant in floating point.

use serde::Serialize;
use tract_onnx::prelude::tract_ndarray::{ArrayD, Axis};
use tract_onnx::prelude::{Tensor, TractResult};

use crate::affine::plan::ConstantNorm;
use crate::measurements::epsilon_error::{moment, watched};
use crate::onnx::Model;
use crate::run::{Failure, Stage};
use crate::verify::VerifyOptions;

/// The largest variance of the values that some normalizers read, and the error if these
/// normalizers are replaced by constants.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct VarianceMargin {
    /// The largest variance.
    pub largest: f64,
    /// The largest ratio of a variance to the limit of its normalizer. If it is below 1, the result
    /// of every normalizer is constant in floating point.
    pub of_limit: f64,
    /// The largest relative change of the result of a normalizer in exact arithmetic, to first
    /// order: `var/(2ε)`.
    pub error: f64,
}

impl VarianceMargin {
    /// Runs a model, and measures the variances of the values that some of its normalizers read.
    ///
    /// # Errors
    /// If tract cannot run the model, or the model lacks a value that a normalizer reads.
    pub fn measure(
        model: &Model,
        norms: &[&ConstantNorm],
        options: &VerifyOptions,
    ) -> Result<Self, Failure> {
        let names: Vec<&str> = norms.iter().map(|norm| &*norm.value).collect();
        let mut margin = Self::default();
        for values in watched(model, &names, options)? {
            for (norm, value) in norms.iter().zip(&values) {
                let variance = largest_variance(value, norm)
                    .map_err(|error| Failure::new(Stage::Run, error.to_string()))?;
                margin.add(variance, norm);
            }
        }
        Ok(margin)
    }

    fn add(&mut self, variance: f64, norm: &ConstantNorm) {
        self.largest = self.largest.max(variance);
        self.of_limit = self.of_limit.max(variance / norm.limit);
        self.error = self.error.max(variance / (2.0 * norm.epsilon));
    }
}

/// The largest variance of a value over the axes of a normalizer. For normalizers that do not
/// subtract a mean, mean squares are used instead of variances. For normalizers that do not divide
/// by the number of elements, sums are used instead of means.
fn largest_variance(value: &Tensor, norm: &ConstantNorm) -> TractResult<f64> {
    let wide = value.cast_to::<f64>()?;
    let mut numbers: ArrayD<f64> = wide.to_plain_array_view::<f64>()?.to_owned();
    if let Some(groups) = norm.groups {
        let items = numbers.shape().first().copied().unwrap_or(1);
        let each = numbers.len() / (items * groups).max(1);
        numbers = numbers.into_shape_with_order(vec![items, groups, each])?;
    }
    let kept = (0..numbers.ndim()).filter(|axis| !norm.axes.contains(axis));
    let order: Vec<usize> = kept.chain(norm.axes.iter().copied()).collect();
    let extents = norm.axes.iter().map(|&axis| numbers.len_of(Axis(axis)));
    let count = extents.product::<usize>().max(1);
    let rows = numbers.permuted_axes(order);
    let numbers: Vec<f64> = rows.iter().copied().collect();
    let factor = if norm.sum { count as f64 } else { 1.0 };
    let variances = numbers
        .chunks(count)
        .map(|row| moment(row, norm.centred) * factor);
    Ok(variances.fold(0.0, f64::max))
}
