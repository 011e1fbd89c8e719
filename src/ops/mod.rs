//! Properties of operators that several parts of unfold use.

pub(crate) mod axes;
#[cfg(any(feature = "prove", feature = "tract"))]
pub(crate) mod definitions;
