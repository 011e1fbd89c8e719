//! Properties of operators, each of which has one home.

pub mod axes;
