//! Properties of operators, each defined in one place.

pub(crate) mod axes;
#[cfg(feature = "tract")]
pub(crate) mod definitions;
