//! Extents as numbers, where they are known.

use tract_onnx::tract_hir::internal::TDim;

/// Extents of a value; `None` is an extent that is unknown even symbolically.
pub type Shape = Vec<Option<TDim>>;

/// Whether two extents are known to be the same.
pub fn same(a: &Option<TDim>, b: &Option<TDim>) -> bool {
    a.is_some() && a == b
}

/// Whether two shapes are known to be the same.
pub fn same_shape(one: &Shape, other: &Shape) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
}

/// An extent as a plain number.
pub fn extent(dim: &Option<TDim>) -> Option<usize> {
    usize::try_from(dim.as_ref()?.to_i64().ok()?).ok()
}
