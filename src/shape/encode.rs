//! Converts tensors, element types and facts between tract and ONNX.

use bytes::Bytes;
use tract_onnx::pb;
use tract_onnx::prelude::{Datum, DatumType, InferenceFact, Tensor};
use tract_onnx::tract_hir::infer::Factoid;
use tract_onnx::tract_hir::internal::{DimFact, TDim};

use crate::onnx::proto::TensorProto;
use crate::onnx::tensor::{self, DataType};

/// Converts a tensor of tract to the ONNX type `data_type`; `None` if tract represents `data_type`
/// by a type other than that of the tensor.
pub(crate) fn encoded(tensor: &Tensor, data_type: DataType) -> Option<TensorProto> {
    let bytes = match (data_type, tensor.datum_type()) {
        (DataType::BFloat16, DatumType::F32) => {
            let floats = tensor.to_plain_array_view::<f32>().ok()?.mapv(f64::from);
            tensor::encode_f64(data_type, &floats.view()).ok()?
        }
        (DataType::Int64, DatumType::TDim) => {
            let numbers = tensor.cast_to::<i64>().ok()?;
            Bytes::copy_from_slice(numbers.try_as_plain_ram().ok()?.as_bytes())
        }
        (DataType::Float16, DatumType::F16)
        | (DataType::Float, DatumType::F32)
        | (DataType::Double, DatumType::F64)
        | (DataType::Bool, DatumType::Bool)
        | (DataType::Int8, DatumType::I8)
        | (DataType::Int16, DatumType::I16)
        | (DataType::Int32, DatumType::I32)
        | (DataType::Int64, DatumType::I64)
        | (DataType::Uint8, DatumType::U8)
        | (DataType::Uint16, DatumType::U16)
        | (DataType::Uint32, DatumType::U32)
        | (DataType::Uint64, DatumType::U64) => {
            Bytes::copy_from_slice(tensor.try_as_plain_ram().ok()?.as_bytes())
        }
        _ => return None,
    };
    let fits = data_type.byte_size(tensor.len()) == Some(bytes.len());
    fits.then(|| TensorProto {
        raw_data: Some(bytes),
        ..tensor::without_elements(data_type, tensor.shape())
    })
}

/// Returns the facts about a value that a node may read, by the name of the value.
pub(crate) type KnownFacts<'k> = &'k dyn Fn(&str) -> Option<InferenceFact>;

/// A fact that has only the element type of `fact`.
pub(crate) fn type_alone(fact: &InferenceFact) -> InferenceFact {
    InferenceFact {
        datum_type: fact.datum_type,
        ..Default::default()
    }
}

/// The rank of a value, if it is known.
pub(crate) fn rank(fact: &InferenceFact) -> Option<usize> {
    (!fact.shape.is_open()).then(|| fact.shape.dims().count())
}

/// An extent, if it is known.
pub(crate) fn number(dim: &DimFact) -> Option<i64> {
    dim.concretize()?.to_i64().ok()
}

/// The elements of a tensor of integers or extents, in row-major order. Integers are converted one
/// by one, because tract casts the largest integer to an extent of −1.
pub(crate) fn dims_of(tensor: &Tensor) -> Option<Vec<TDim>> {
    if tensor.datum_type().is_integer() {
        return Some(ints_of(tensor)?.into_iter().map(TDim::from).collect());
    }
    let dims = tensor.cast_to::<TDim>().ok()?;
    let dims = dims.to_plain_array_view::<TDim>().ok()?;
    Some(dims.iter().cloned().collect())
}

/// The elements as integers, if none of them is symbolic.
pub(crate) fn ints_of(tensor: &Tensor) -> Option<Vec<i64>> {
    let ints = tensor.cast_to::<i64>().ok()?;
    let ints = ints.to_plain_array_view::<i64>().ok()?;
    Some(ints.iter().copied().collect())
}

/// The element of a tensor with exactly one element; `None` for other tensors. The check is needed
/// because tract would read an element of an empty tensor too.
pub(crate) fn only<T: Datum + Copy>(tensor: &Tensor) -> Option<T> {
    if tensor.len() == 1 {
        tensor.cast_to_scalar().ok()
    } else {
        None
    }
}

/// The type in tract for the code of an ONNX type; `None` if tract has no such type. bfloat16
/// becomes float32.
pub(crate) fn datum_type(code: i32) -> Option<DatumType> {
    let code = if code == DataType::BFloat16.code() {
        DataType::Float.code()
    } else {
        code
    };
    pb::tensor_proto::DataType::try_from(code)
        .ok()?
        .try_into()
        .ok()
}

/// Whether no element of a tensor is symbolic.
pub(crate) fn is_concrete(tensor: &Tensor) -> bool {
    tensor.datum_type() != DatumType::TDim || tensor.cast_to::<i64>().is_ok()
}
