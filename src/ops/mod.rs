//! Properties of operators, each defined in one place.

pub mod axes;
#[cfg(feature = "tract")]
pub(crate) mod definitions;
