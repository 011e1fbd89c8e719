//! Layout passes, which merge or cancel movements of elements, or make them cheaper.

pub mod arithmetic_before_concat;
pub mod cancel_inverse;
pub mod gather_nd_to_reshape;
pub mod merge_concats;
pub mod merge_reshapes;
pub mod merge_slices;
pub mod split_before_transpose;
