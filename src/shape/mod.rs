//! Infers the shapes and element types of values, with symbolic extents, one node at a time.
//!
//! [`Facts`](facts::Facts) are inferred from a [`Graph`](crate::ir::Graph). A `guard` excludes
//! nodes that would cost too much. The others are inferred by tract's operators, or by unfold's own
//! `rules` if the inputs are only partly known.

pub(crate) mod batch_statistics;
pub(crate) mod encode;
pub(crate) mod evaluate;
pub(crate) mod extents;
pub(crate) mod facts;
pub(crate) mod guard;
mod infer_shapes;
pub(crate) mod inference;
pub(crate) mod loop_states;
pub(crate) mod memo;
pub(crate) mod rules;
pub(crate) mod sequences;
pub(crate) mod slices;
pub(crate) mod stand_in;
pub(crate) mod symbolic_division;
pub(crate) mod types;
pub(crate) mod unknown_dims;
pub(crate) mod windows;

pub use infer_shapes::{InferredValue, infer_shapes};
