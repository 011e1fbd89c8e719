//! Computes BatchNormalization with the statistics of its input. tract would use the running
//! statistics instead.

use std::sync::Arc;

use ndarray::{ArrayD, Axis};
use tract_onnx::prelude::{DatumType, Tensor};

use crate::onnx::proto::NodeProto;
use crate::onnx::tract_quirks::batch_norm_trains;

/// The supported attributes. Each is read, or has no effect on a single run.
const ATTRIBUTES: &[&str] = &["epsilon", "momentum", "training_mode"];

/// The default of ε.
const EPSILON: f32 = 1e-5;

/// The largest relative difference between the given statistics and those of `x` that counts as
/// rounding of a float32 sum.
const ROUNDED: f64 = 1e-5;

/// Computes `γ·(x − mean)/√(variance + ε) + β` in float64 and rounds the result once. The mean and
/// the variance of each channel are computed from `x`. `None` if the node is not a
/// BatchNormalization in training mode, or if its inputs are invalid.
///
/// Before operator set 14, engines disagree whether training mode uses the statistics of the input
/// or the given ones. For standardized weights, which PyTorch's exporter writes in this form, both
/// statistics are equal. If they differ, the result is `None`.
pub(crate) fn normalized(
    node: &NodeProto,
    opset: i64,
    inputs: &[Arc<Tensor>],
) -> Option<Arc<Tensor>> {
    let is_one = node.op() == ("", "BatchNormalization")
        && opset >= 7
        && batch_norm_trains(node, opset).ok()?
        && node
            .attribute
            .iter()
            .all(|attribute| ATTRIBUTES.contains(&attribute.name()));
    let [x, scale, shift, mean, variance] = inputs else {
        return None;
    };
    let data_type = x.datum_type();
    if !is_one || ![DatumType::F32, DatumType::F64].contains(&data_type) || x.rank() < 2 {
        return None;
    }
    let (mut x, scale, shift) = (floats(x)?, floats(scale)?, floats(shift)?);
    let epsilon = f64::from(node.attr_f("epsilon").ok()?.unwrap_or(EPSILON));
    let channels = x.len_of(Axis(1));
    let (given_mean, given_variance) = (floats(mean)?, floats(variance)?);
    if [&scale, &shift, &given_mean, &given_variance]
        .iter()
        .any(|each| each.shape() != [channels])
    {
        return None;
    }
    for (place, mut channel) in x.axis_iter_mut(Axis(1)).enumerate() {
        let mean = channel.sum() / channel.len() as f64;
        let variance = channel.fold(0.0, |sum, x| sum + (x - mean).powi(2)) / channel.len() as f64;
        let is_given = (given_mean[place] - mean).abs() <= ROUNDED * (mean.abs() + variance.sqrt())
            && (given_variance[place] - variance).abs() <= ROUNDED * variance;
        if opset < 14 && !is_given {
            return None;
        }
        let (scale, shift) = (scale[place], shift[place]);
        let factor = scale / (variance + epsilon).sqrt();
        channel.mapv_inplace(|x| (x - mean) * factor + shift);
    }
    let made = Tensor::from(x);
    let rounded = made.cast_to_dt(data_type).ok()?.into_owned();
    Some(Arc::new(rounded))
}

fn floats(tensor: &Tensor) -> Option<ArrayD<f64>> {
    let floats = tensor.cast_to::<f64>().ok()?;
    Some(floats.to_plain_array_view::<f64>().ok()?.to_owned())
}
