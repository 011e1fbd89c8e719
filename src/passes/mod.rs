//! Passes over a model in which nothing folds any more.

pub mod canonicalize;
pub mod demand;
pub mod inline;
pub mod layout;
pub mod legalize;
pub mod placement;
pub mod simplify;
pub mod slice;
pub mod upgrade_opset;
