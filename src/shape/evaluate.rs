//! Evaluates a node on constants with tract's operator, if the operator agrees with ONNX for these
//! constants.

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

/// The maximum number of elements of a Range of floats that is evaluated.
const MOST: f64 = 65_536.0;

/// Element-wise operators that tract implements correctly for infinities and NaNs.
const COMPARING: &[&str] = &[
    "Equal",
    "Greater",
    "GreaterOrEqual",
    "IsInf",
    "IsNaN",
    "Less",
    "LessOrEqual",
    "Where",
];

/// Operators of other categories that tract implements incorrectly for infinities and NaNs.
const OTHER_SENSITIVE: &[&str] = &[
    "ArgMax",
    "ArgMin",
    "AveragePool",
    "GlobalMaxPool",
    "MaxPool",
    "Softmax",
    "TopK",
];

/// The result of an evaluation.
pub(crate) enum Evaluated {
    /// The values of the outputs that are present.
    Values(Vec<Arc<Tensor>>),
    /// The result depends on values that are known only in a run.
    TooEarly,
    /// The node cannot be evaluated, or tract deviates from ONNX.
    Failed,
}

/// Evaluates a node with its operator in tract.
pub(crate) fn evaluated(
    node: &NodeProto,
    op: &dyn InferenceOp,
    inputs: &[Arc<Tensor>],
) -> Evaluated {
    if !inputs.iter().all(|tensor| can_be_given(node, tensor)) {
        return Evaluated::Failed;
    }
    if let (Some(function), [x]) = (function(node), inputs) {
        return Evaluated::from_single(by_each(function, x));
    }
    match (node.op(), inputs) {
        (("", "ReduceProd"), [x, ..]) if x.datum_type().is_tdim() => {
            Evaluated::from_single(product(node, x))
        }
        // tract compares only numbers, so booleans are cast to integers.
        (("", "Equal"), _) => match cast_all(inputs, DatumType::Bool, DatumType::I64) {
            Ok(numbers) => run_operator(op, numbers),
            Err(_) => Evaluated::Failed,
        },
        (("", "MatMul"), [left, right]) if left.rank() == 1 && right.rank() == 1 => {
            product_of_vectors(node, op, left, right)
        }
        _ if adds_up(node) && inputs.iter().any(|x| x.datum_type() == DatumType::F16) => {
            evaluated_as_floats(op, inputs)
        }
        _ => run_operator(op, inputs.to_vec()),
    }
}

impl Evaluated {
    fn from_single(value: Option<Arc<Tensor>>) -> Self {
        value.map_or(Self::Failed, |value| Self::Values(vec![value]))
    }
}

/// The product of two vectors. tract lacks it, so the first vector becomes a matrix with one row.
fn product_of_vectors(
    node: &NodeProto,
    op: &dyn InferenceOp,
    left: &Tensor,
    right: &Arc<Tensor>,
) -> Evaluated {
    let mut row = left.clone();
    let Ok(()) = row.insert_axis(0) else {
        return Evaluated::Failed;
    };
    match evaluated(node, op, &[row.into_arc_tensor(), right.clone()]) {
        Evaluated::Values(products) => products
            .iter()
            .map(without_axis)
            .collect::<Option<_>>()
            .map_or(Evaluated::Failed, Evaluated::Values),
        other => other,
    }
}

/// Evaluates an operator in float32 instead of float16, as engines do. In float16, sums would lose
/// small terms, and squares would overflow.
fn evaluated_as_floats(op: &dyn InferenceOp, inputs: &[Arc<Tensor>]) -> Evaluated {
    let Ok(floats) = cast_all(inputs, DatumType::F16, DatumType::F32) else {
        return Evaluated::Failed;
    };
    match run_operator(op, floats) {
        Evaluated::Values(values) => cast_all(&values, DatumType::F32, DatumType::F16)
            .map_or(Evaluated::Failed, Evaluated::Values),
        other => other,
    }
}

/// Casts the tensors of type `from` to `to`.
fn cast_all(
    tensors: &[Arc<Tensor>],
    from: DatumType,
    to: DatumType,
) -> TractResult<Vec<Arc<Tensor>>> {
    let cast = tensors.iter().map(|tensor| {
        if tensor.datum_type() == from {
            Ok(tensor.cast_to_dt(to)?.into_owned().into_arc_tensor())
        } else {
            Ok(tensor.clone())
        }
    });
    cast.collect()
}

/// The elements of a Range of floats, which tract does not evaluate. `None` for other nodes, or if
/// the Range has too many elements. Also `None` if an element may be rounded, because the result
/// then depends on the order of additions.
pub(crate) fn counted(node: &NodeProto, inputs: &[Arc<Tensor>]) -> Option<Arc<Tensor>> {
    let [start, limit, delta] = inputs else {
        return None;
    };
    let data_type = start.datum_type();
    if node.op() != ("", "Range") || !data_type.is_float() {
        return None;
    }
    let (start, limit, delta) = (
        finite_number(start)?,
        finite_number(limit)?,
        finite_number(delta)?,
    );
    let count = ((limit - start) / delta).ceil().max(0.0);
    if delta == 0.0 || count > MOST {
        return None;
    }
    let numbers: Vec<f64> = (0..count as u64)
        .map(|step| start + step as f64 * delta)
        .collect();
    let stored = tensor1(&numbers).cast_to_dt(data_type).ok()?.into_owned();
    let is_unrounded =
        data_type.size_of() < size_of::<f64>() && floats(&stored)?.iter().eq(&numbers);
    is_unrounded.then(|| stored.into_arc_tensor())
}

fn finite_number(tensor: &Tensor) -> Option<f64> {
    let number = *floats(tensor)?.first()?;
    number.is_finite().then_some(number)
}

fn floats(tensor: &Tensor) -> Option<Vec<f64>> {
    let floats = tensor.cast_to::<f64>().ok()?;
    let floats = floats.to_plain_array_view::<f64>().ok()?;
    Some(floats.iter().copied().collect())
}

/// Converts a tensor with one element to a scalar.
fn without_axis(tensor: &Arc<Tensor>) -> Option<Arc<Tensor>> {
    let mut number = Tensor::clone(tensor);
    number.set_shape(&[]).ok()?;
    Some(number.into_arc_tensor())
}

fn run_operator(op: &dyn InferenceOp, inputs: Vec<Arc<Tensor>>) -> Evaluated {
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

/// The result of a ReduceProd of a list of extents, which tract's operator cannot compute. `None`
/// if `x` is not a vector, or if the node may reduce no axes.
fn product(node: &NodeProto, x: &Tensor) -> Option<Arc<Tensor>> {
    // The list has one axis, which is reduced if no axes are given.
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

/// An exact function for an operator that tract approximates too coarsely; `None` for other
/// operators. In tract, Sigmoid of a large negative number has no correct digit, Erf has six
/// correct digits, and Softplus of a large number is infinite.
fn function(node: &NodeProto) -> Option<fn(f64) -> f64> {
    match node.op() {
        ("", "Erf") => Some(libm::erf),
        ("", "Sigmoid") => Some(|x| 1.0 / (1.0 + (-x).exp())),
        ("", "Softplus") => Some(|x| x.max(0.0) + (-x.abs()).exp().ln_1p()),
        ("", "Tanh") => Some(f64::tanh),
        _ => None,
    }
}

fn by_each(function: fn(f64) -> f64, x: &Tensor) -> Option<Arc<Tensor>> {
    if !x.datum_type().is_float() {
        return None;
    }
    let numbers = x.cast_to::<f64>().ok()?;
    let results = Tensor::from(numbers.to_plain_array_view::<f64>().ok()?.mapv(function));
    let rounded = results.cast_to_dt(x.datum_type()).ok()?;
    Some(rounded.into_owned().into_arc_tensor())
}

/// Whether an operator sums elements.
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

/// Whether tract evaluates the operator correctly on this tensor. Many operators of tract are wrong
/// for infinities and NaNs, and its reductions are wrong for empty tensors.
fn can_be_given(node: &NodeProto, tensor: &Tensor) -> bool {
    use Category::{Elementwise, Normalizer, Reduction};
    let (op, category) = (node.op_type(), node.category());
    let is_sensitive = matches!(category, Some(Elementwise | Normalizer | Reduction));
    let is_wrong_about_some =
        OTHER_SENSITIVE.contains(&op) || is_sensitive && !COMPARING.contains(&op);
    if !is_wrong_about_some {
        return true;
    }
    let is_reducible = category != Some(Reduction) || tensor.len() > 0;
    is_reducible && (!tensor.datum_type().is_float() || is_finite(tensor))
}

fn is_finite(tensor: &Tensor) -> bool {
    let floats = tensor.cast_to::<f64>();
    floats.is_ok_and(|floats| {
        let floats = floats.to_plain_array_view::<f64>();
        floats.is_ok_and(|floats| floats.iter().all(|float| float.is_finite()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn float_range_is_evaluated_only_if_exact() {
        let range = NodeProto {
            op_type: Some("Range".into()),
            ..Default::default()
        };
        let cases = [
            ([0.25, 1.0, 0.25], Some(vec![0.25, 0.5, 0.75])),
            ([1.0, -0.75, -0.5], Some(vec![1.0, 0.5, 0.0, -0.5])),
            ([2.0, 2.0, 1.0], Some(vec![])),
            ([0.0, 1.0, 0.1], None),
            ([0.0, 1.0, 0.0], None),
            ([0.0, f32::INFINITY, 1.0], None),
            ([0.0, 1e6, 1.0], None),
        ];
        for (numbers, expected) in cases {
            let inputs = numbers.map(|number| Tensor::from(number).into_arc_tensor());
            let counted = counted(&range, &inputs);
            assert_eq!(
                counted.and_then(|counted| floats(&counted)),
                expected,
                "{numbers:?}"
            );
        }
        let integers = [0_i64, 3, 1].map(|number| Tensor::from(number).into_arc_tensor());
        assert!(counted(&range, &integers).is_none());
    }
}
