//! Passes other than the folding of affines.

pub mod association;
pub mod attention;
pub mod canonicalize;
pub mod demand;
pub mod grouped_heads;
pub mod half;
pub mod identities;
pub mod inline_functions;
pub mod inline_scaler;
pub mod inline_sequences;
pub mod layer_norms;
pub mod legalize;
pub mod masked_slices;
pub mod merge_convolutions;
pub mod open_slices;
pub mod placement;
pub mod selected_means;
pub mod simplify;
pub mod slice;
pub mod unpack_products;
pub mod upgrade_opset;
