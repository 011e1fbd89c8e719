//! Shapes and element types of values: inference over symbolic extents, a node at a time.
//!
//! Takes a [`Graph`](crate::ir::Graph), gives [`Facts`](facts::Facts). Inference asks tract's operators, behind a
//! `guard` against questions that cost too much, and `rules` of its own where only part of the inputs is known.

pub(crate) mod batch_statistics;
pub(crate) mod encode;
pub(crate) mod evaluate;
pub(crate) mod extents;
pub mod facts;
pub(crate) mod guard;
pub(crate) mod inference;
pub(crate) mod loop_states;
pub(crate) mod memo;
pub(crate) mod rules;
pub mod sequences;
pub(crate) mod slices;
pub(crate) mod stand_in;
pub(crate) mod symbolic_division;
pub(crate) mod types;
pub(crate) mod unknown_dims;
pub(crate) mod windows;
