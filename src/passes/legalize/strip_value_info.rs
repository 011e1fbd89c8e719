//! Removes the shapes with unknown extents from `value_info` for onnxruntime.
//!
//! onnxruntime recognizes equal shapes by the names of their unknown extents. By these names, it
//! plans to reuse one buffer for values of equal shape, and keeps a set of buffers for each shape.
//! Without the names, it takes the memory that was freed last, whatever its shape was. Memory that
//! was freed last is still in the caches.

use crate::onnx::proto::{Dim, GraphProto, TensorType};

/// Removes shapes with an unknown extent from `value_info`. Returns their number.
pub(super) fn strip_open_shapes(graph: &mut GraphProto) -> usize {
    let mut count = 0;
    for info in &mut graph.value_info {
        let tensor = info.r#type.as_mut();
        let tensor = tensor.and_then(|tensor| tensor.tensor_type.as_mut());
        if let Some(tensor) = tensor.filter(|tensor| has_open_extent(tensor)) {
            tensor.shape = None;
            count += 1;
        }
    }
    count
}

fn has_open_extent(tensor: &TensorType) -> bool {
    let mut dims = tensor.shape.iter().flat_map(|shape| &shape.dim);
    dims.any(|dim| !matches!(dim.value, Some(Dim::DimValue(_))))
}
