//! Properties of operators, each defined in one place.

pub(crate) mod axes;
#[cfg(any(feature = "prove", feature = "tract"))]
pub(crate) mod definitions;
