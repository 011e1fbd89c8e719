//! BatchNormalization by the statistics of what it normalizes, which tract takes for the running ones.

use std::sync::Arc;

use ndarray::{ArrayD, Axis};
use tract_onnx::prelude::{DatumType, Tensor};

use crate::onnx::misread::batch_norm_trains;
use crate::onnx::proto::NodeProto;

/// ε where no attribute says so.
const EPSILON: f32 = 1e-5;

/// `γ·(x − mean)/√(variance + ε) + β` with the mean and the variance of each channel of `x`, in float64 and rounded once;
/// `None` where the node is no such BatchNormalization, or its statistics give no number.
pub fn normalized(node: &NodeProto, opset: i64, inputs: &[Arc<Tensor>]) -> Option<Arc<Tensor>> {
    let known = ["epsilon", "momentum", "training_mode"];
    let is_one = node.op() == ("", "BatchNormalization")
        && opset >= 14
        && batch_norm_trains(node, opset).ok()?
        && node.attribute.iter().all(|attribute| known.contains(&attribute.name()));
    let [x, scale, shift, ..] = inputs else { return None };
    let data_type = x.datum_type();
    if !is_one || ![DatumType::F32, DatumType::F64].contains(&data_type) || x.rank() < 2 {
        return None;
    }
    let floats = |tensor: &Tensor| -> Option<ArrayD<f64>> {
        Some(tensor.cast_to::<f64>().ok()?.to_plain_array_view::<f64>().ok()?.to_owned())
    };
    let (mut x, scale, shift) = (floats(x)?, floats(scale)?, floats(shift)?);
    let epsilon = f64::from(node.attr_f("epsilon").ok()?.unwrap_or(EPSILON));
    let channels = x.len_of(Axis(1));
    if scale.shape() != [channels] || shift.shape() != [channels] {
        return None;
    }
    for (mut channel, (scale, shift)) in x.axis_iter_mut(Axis(1)).zip(scale.iter().zip(&shift)) {
        let mean = channel.sum() / channel.len() as f64;
        let variance = channel.fold(0.0, |sum, x| sum + (x - mean).powi(2)) / channel.len() as f64;
        let factor = scale / (variance + epsilon).sqrt();
        channel.mapv_inplace(|x| (x - mean) * factor + shift);
    }
    let made = Tensor::from(x);
    let rounded = made.cast_to_dt(data_type).ok()?.into_owned();
    Some(Arc::new(rounded))
}
