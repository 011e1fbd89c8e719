//! Layout passes, which merge or cancel movements of elements, or make them cheaper.

pub(crate) mod arithmetic_before_concat;
pub(crate) mod cancel_inverse;
pub(crate) mod gather_nd_to_reshape;
pub(crate) mod merge_concats;
pub(crate) mod merge_reshapes;
pub(crate) mod merge_slices;
pub(crate) mod reduce_before_movement;
pub(crate) mod split_before_transpose;
#[cfg(all(test, feature = "cli"))]
#[path = "../../../docs/examples/extending/passes/movement/transpose_before_expand.rs"]
pub(crate) mod transpose_before_expand;
