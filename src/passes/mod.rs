//! Passes over a model in which nothing folds any more.

pub mod demand;
pub mod placement;
pub mod slice;
