//! Residual streams.

pub mod centring;
pub mod change_of_basis;
pub mod constant_norms;
pub mod merge_norms;
pub mod scaled_weights;
pub mod scaling;
