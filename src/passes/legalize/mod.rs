//! Legalization: writes products with biases and normalizations in the forms that the target
//! engines fuse. It also removes shapes from `value_info` that make an engine slower.

pub(crate) mod attention;
mod dense_layer;
pub(crate) mod gelu;
mod layer_before_windows;
mod matmul_add_to_gemm;
mod merge_convolutions;
pub(crate) mod norm_operators;
pub(crate) mod rms_reciprocal_to_div;
mod strip_value_info;
mod target;
mod unflatten_rows;
mod unpack_products;

pub use target::Target;

/// The name for `--skip` that turns off the forms of products and RMS normalizations.
pub(crate) const KIND: &str = "biased";
