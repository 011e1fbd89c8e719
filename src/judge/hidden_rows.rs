//! Compares rows of scores that a mask hides whole. A proof takes the lowest number and −∞ of a mask for the same, and the
//! softmax of a row of −∞ is NaN.

use super::witness::{self, Witness};
use crate::onnx::Model;
use crate::onnx::proto::TensorProto;
use crate::onnx::tensor::{self, DataType};
use crate::run::Dims;

/// The largest tensor in which −∞ is searched, in elements.
const LARGEST: usize = 1 << 22;

/// Finds an input on which a row is hidden whole and the outputs differ. `None` unless one model alone stores −∞.
pub(super) fn difference(first: &Model, second: &Model, dims: &Dims) -> Option<Witness> {
    (stores_infinity(first) != stores_infinity(second)).then_some(())?;
    witness::with_hidden_places(first, second, dims)
}

/// Whether a model stores −∞, in an initializer or in the attribute of a node.
fn stores_infinity(model: &Model) -> bool {
    let graph = model.graph();
    let attributes = graph.node.iter().flat_map(|node| &node.attribute);
    let values = attributes.filter_map(|attribute| attribute.t.as_deref());
    let mut tensors = graph.initializer.iter().chain(values);
    tensors.any(|tensor| has_infinity(tensor, model))
}

fn has_infinity(tensor: &TensorProto, model: &Model) -> bool {
    let is_float = DataType::from_code(tensor.data_type()).is_some_and(DataType::is_float);
    let len: i64 = tensor.dims.iter().product();
    if !is_float || usize::try_from(len).is_ok_and(|len| len > LARGEST) {
        return false;
    }
    let numbers = tensor::read_f64(tensor, model.externals());
    numbers.is_ok_and(|numbers| numbers.iter().any(|&number| number == f64::NEG_INFINITY))
}
