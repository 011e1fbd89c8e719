//! Drops the open shapes in `value_info` for onnxruntime. Where it can tell that two shapes are
//! equal, by the names of their open extents, it plans to reuse one buffer, and has a set of
//! buffers for each shape. Where it cannot, it takes the memory that was freed last, of any shape,
//! which is still in the caches.

use crate::onnx::proto::{Dim, GraphProto, TensorType};

/// Declares values within a graph by their types alone where an extent is open, and says how many.
pub fn strip_open_shapes(graph: &mut GraphProto) -> usize {
    let is_open = |tensor: &&mut TensorType| {
        let dims = tensor.shape.iter().flat_map(|shape| &shape.dim);
        dims.into_iter()
            .any(|dim| !matches!(dim.value, Some(Dim::DimValue(_))))
    };
    let types = graph
        .value_info
        .iter_mut()
        .filter_map(|info| info.r#type.as_mut()?.tensor_type.as_mut());
    types
        .filter(is_open)
        .map(|tensor| tensor.shape = None)
        .count()
}
