//! Evaluation of a node on constants, by tract's operator where that agrees with ONNX for these
//! numbers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use ndarray::ArrayD;
use tract_core::tract_data::TooEarly;
use tract_onnx::prelude::{DatumType, TVec, Tensor, TractResult};
use tract_onnx::tract_hir::infer::InferenceOp;
use tract_onnx::tract_hir::internal::{IntoArcTensor, IntoTValue, TDim, tensor1};

use crate::onnx::operator::Category;
use crate::onnx::proto::NodeProto;
use crate::shape::encode::dims_of;

/// More numbers than this are not counted.
const MOST: f64 = 65_536.0;

/// The outcome of an evaluation.
pub enum Evaluated {
    /// The outputs that are there.
    Values(Vec<Arc<Tensor>>),
    /// It needs what only a run knows.
    TooEarly,
    /// It cannot be computed, or tract's meaning differs.
    Failed,
}

/// Evaluates a node, by its operator in tract.
pub fn evaluated(node: &NodeProto, op: &dyn InferenceOp, inputs: &[Arc<Tensor>]) -> Evaluated {
    let is_half = |tensor: &Arc<Tensor>| tensor.datum_type() == DatumType::F16;
    let is_float = |tensor: &Arc<Tensor>| tensor.datum_type().is_float();
    if !inputs.iter().all(|tensor| can_be_given(node, tensor)) {
        return Evaluated::Failed;
    }
    if let (Some(function), [x]) = (function(node), inputs) {
        let made = is_float(x)
            .then(|| by_each(function, x))
            .and_then(Result::ok);
        return made.map_or(Evaluated::Failed, |made| Evaluated::Values(vec![made]));
    }
    if let (("", "ReduceProd"), [x, ..]) = (node.op(), inputs)
        && x.datum_type().is_tdim()
    {
        return product(node, x).map_or(Evaluated::Failed, |made| Evaluated::Values(vec![made]));
    }
    let cast = |tensor: &Arc<Tensor>, from, to| -> TractResult<Arc<Tensor>> {
        let is_of = tensor.datum_type() == from;
        if is_of {
            Ok(tensor.cast_to_dt(to)?.into_owned().into_arc_tensor())
        } else {
            Ok(tensor.clone())
        }
    };
    if node.op() == ("", "Equal") {
        // tract compares numbers alone.
        let numbers = inputs
            .iter()
            .map(|tensor| cast(tensor, DatumType::Bool, DatumType::I64));
        return numbers
            .collect::<TractResult<_>>()
            .map_or(Evaluated::Failed, |numbers| asked(op, numbers));
    }
    if let (("", "MatMul"), [left, right]) = (node.op(), inputs)
        && left.rank() == 1
        && right.rank() == 1
    {
        // tract multiplies no two lists.
        let mut row = Tensor::clone(left);
        let Ok(()) = row.insert_axis(0) else {
            return Evaluated::Failed;
        };
        return match evaluated(node, op, &[row.into_arc_tensor(), right.clone()]) {
            Evaluated::Values(made) => made
                .iter()
                .map(without_axis)
                .collect::<Option<_>>()
                .map_or(Evaluated::Failed, Evaluated::Values),
            other => other,
        };
    }
    if !adds_up(node) || !inputs.iter().any(is_half) {
        return asked(op, inputs.to_vec());
    }
    // In sums of halves nothing is left of the small ones, and squares are soon too large: engines add them up as floats.
    let floats = inputs
        .iter()
        .map(|tensor| cast(tensor, DatumType::F16, DatumType::F32));
    let Ok(floats) = floats.collect::<TractResult<Vec<_>>>() else {
        return Evaluated::Failed;
    };
    match asked(op, floats) {
        Evaluated::Values(values) => {
            let halves = values
                .iter()
                .map(|tensor| cast(tensor, DatumType::F32, DatumType::F16));
            halves
                .collect::<TractResult<_>>()
                .map_or(Evaluated::Failed, Evaluated::Values)
        }
        other => other,
    }
}

/// The numbers that a Range of floats counts, of which tract has none; `None` where there are too many, or one of them is
/// rounded: then it counts how they are added up.
pub fn counted(node: &NodeProto, inputs: &[Arc<Tensor>]) -> Option<Arc<Tensor>> {
    let [start, limit, delta] = inputs else {
        return None;
    };
    let data_type = start.datum_type();
    let is_float = node.op() == ("", "Range") && data_type.is_float();
    let number = |tensor: &Tensor| -> Option<f64> {
        let number = *tensor
            .cast_to::<f64>()
            .ok()?
            .to_plain_array_view::<f64>()
            .ok()?
            .first()?;
        number.is_finite().then_some(number)
    };
    let (start, limit, delta) =
        is_float.then(|| Some((number(start)?, number(limit)?, number(delta)?)))??;
    let count = ((limit - start) / delta).ceil().max(0.0);
    (delta != 0.0 && count <= MOST).then_some(())?;
    let counted: Vec<f64> = (0..count as u64)
        .map(|step| start + step as f64 * delta)
        .collect();
    let stored = tensor1(&counted).cast_to_dt(data_type).ok()?.into_owned();
    let is_held = data_type.size_of() < size_of::<f64>()
        && stored
            .cast_to::<f64>()
            .ok()?
            .to_plain_array_view::<f64>()
            .ok()?
            .iter()
            .eq(&counted);
    is_held.then(|| stored.into_arc_tensor())
}

/// The one element of a tensor, without an axis.
fn without_axis(tensor: &Arc<Tensor>) -> Option<Arc<Tensor>> {
    let mut number = Tensor::clone(tensor);
    number.set_shape(&[]).ok()?;
    Some(number.into_arc_tensor())
}

fn asked(op: &dyn InferenceOp, inputs: Vec<Arc<Tensor>>) -> Evaluated {
    let inputs: TVec<_> = inputs
        .into_iter()
        .map(|tensor| tensor.into_tvalue())
        .collect();
    match catch_unwind(AssertUnwindSafe(|| op.eval_out_of_plan(inputs))) {
        Ok(Ok(Some(values))) => Evaluated::Values(
            values
                .into_iter()
                .map(|value| value.into_arc_tensor())
                .collect(),
        ),
        Ok(Ok(None)) => Evaluated::TooEarly,
        Ok(Err(error)) if error.root_cause().is::<TooEarly>() => Evaluated::TooEarly,
        _ => Evaluated::Failed,
    }
}

/// The product of a list of extents, which tract's reductions know nothing of.
fn product(node: &NodeProto, x: &Tensor) -> Option<Arc<Tensor>> {
    // Of one axis, where none need be named for all.
    let is_reduced = x.rank() == 1 && node.attr_i("noop_with_empty_axes").ok()?.unwrap_or(0) == 0;
    let extents = dims_of(x).filter(|_| is_reduced)?;
    let product = extents
        .into_iter()
        .fold(TDim::from(1), |product, extent| product * extent)
        .simplify();
    let keeps_axis = node.attr_i("keepdims").ok()?.unwrap_or(1) != 0;
    let shape = vec![1; usize::from(keeps_axis)];
    Some(Tensor::from(ArrayD::from_elem(shape, product)).into_arc_tensor())
}

/// Functions that tract has only near to: of a large negative number its Sigmoid keeps not one digit, its Erf ends after the
/// sixth, and of a large number it makes an infinite Softplus.
fn function(node: &NodeProto) -> Option<fn(f64) -> f64> {
    match node.op() {
        ("", "Erf") => Some(libm::erf),
        ("", "Sigmoid") => Some(|x| 1.0 / (1.0 + (-x).exp())),
        ("", "Softplus") => Some(|x| x.max(0.0) + (-x.abs()).exp().ln_1p()),
        ("", "Tanh") => Some(f64::tanh),
        _ => None,
    }
}

fn by_each(function: fn(f64) -> f64, x: &Tensor) -> TractResult<Arc<Tensor>> {
    let made = x
        .cast_to::<f64>()?
        .to_plain_array_view::<f64>()?
        .mapv(function);
    Ok(Tensor::from(made)
        .cast_to_dt(x.datum_type())?
        .into_owned()
        .into_arc_tensor())
}

/// Whether an operator makes one number of several.
fn adds_up(node: &NodeProto) -> bool {
    use Category::{Elementwise, Layer, MatrixProduct, Normalizer, Reduction};
    let op = node.op_type();
    matches!(
        op,
        "AveragePool" | "CumSum" | "Einsum" | "GlobalAveragePool" | "Softmax"
    ) || matches!(
        node.category(),
        Some(Elementwise | Layer | MatrixProduct | Normalizer | Reduction)
    )
}

/// Whether tract's operator is right about the numbers of a tensor. It is wrong about infinities and NaNs in operators other
/// than sums and products, and about reductions of empty tensors.
fn can_be_given(node: &NodeProto, tensor: &Tensor) -> bool {
    use Category::{Elementwise, Normalizer, Reduction};
    let compares = [
        "Equal",
        "Greater",
        "GreaterOrEqual",
        "IsInf",
        "IsNaN",
        "Less",
        "LessOrEqual",
        "Where",
    ];
    let reads = [
        "ArgMax",
        "ArgMin",
        "AveragePool",
        "GlobalMaxPool",
        "MaxPool",
        "Softmax",
        "TopK",
    ];
    let (op, category) = (node.op_type(), node.category());
    let looks =
        matches!(category, Some(Elementwise | Normalizer | Reduction)) && !compares.contains(&op);
    if !looks && !reads.contains(&op) {
        return true;
    }
    let is_finite = || {
        let floats = tensor.cast_to::<f64>();
        floats.is_ok_and(|floats| {
            let floats = floats.to_plain_array_view::<f64>();
            floats.is_ok_and(|floats| floats.iter().all(|float| float.is_finite()))
        })
    };
    (category != Some(Reduction) || tensor.len() > 0)
        && (!tensor.datum_type().is_float() || is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_counted_where_none_is_rounded() {
        let range = NodeProto {
            op_type: Some("Range".into()),
            ..Default::default()
        };
        let count = |numbers: [f32; 3]| {
            let made = counted(
                &range,
                &numbers.map(|number| Tensor::from(number).into_arc_tensor()),
            )?;
            Some(
                made.to_plain_array_view::<f32>()
                    .unwrap()
                    .iter()
                    .copied()
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(count([0.25, 1.0, 0.25]), Some(vec![0.25, 0.5, 0.75]));
        assert_eq!(count([1.0, -0.75, -0.5]), Some(vec![1.0, 0.5, 0.0, -0.5]));
        assert_eq!(count([2.0, 2.0, 1.0]), Some(vec![]));
        for none in [
            [0.0, 1.0, 0.1],
            [0.0, 1.0, 0.0],
            [0.0, f32::INFINITY, 1.0],
            [0.0, 1e6, 1.0],
        ] {
            assert_eq!(count(none), None, "{none:?}");
        }
        let integers = [0_i64, 3, 1].map(|number| Tensor::from(number).into_arc_tensor());
        assert!(counted(&range, &integers).is_none());
    }
}
