//! Propagation of one affine through the graph, forward to all readers or backward to the producer.
//!
//! [`rules`] has a file for each operator family that an affine crosses. The graph does not change.
//! The result is a list of the folds that absorb the affine, or the first refusal.

pub(crate) mod backward;
pub(crate) mod forward;
mod layer_origin;
pub(crate) mod modulation;
pub(crate) mod movements;
pub(crate) mod node_step;
pub(crate) mod overlay;
pub(crate) mod precision;
pub(crate) mod propagation;
pub(crate) mod rule_table;
pub(crate) mod rules;
pub(crate) mod softmax;
pub(crate) mod stream_basis;
pub(crate) mod zeros;
