//! Extents of values, which may be symbolic or unknown.

use tract_onnx::tract_hir::internal::TDim;

/// The extents of a value; `None` for an extent that is unknown even symbolically.
pub(crate) type Shape = Vec<Option<TDim>>;

/// Whether two extents are known to be equal.
pub(crate) fn same(a: &Option<TDim>, b: &Option<TDim>) -> bool {
    a.is_some() && a == b
}

/// Whether two shapes are known to be equal.
pub(crate) fn same_shape(one: &Shape, other: &Shape) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
}

/// An extent as an integer; `None` if it is symbolic or unknown.
pub(crate) fn extent(dim: &Option<TDim>) -> Option<usize> {
    usize::try_from(dim.as_ref()?.to_i64().ok()?).ok()
}
