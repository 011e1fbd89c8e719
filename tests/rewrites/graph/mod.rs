//! Analyses of the graph: shapes, bodies, axes, limits.

pub mod limits;
pub mod regions;
pub mod shape_inference;
