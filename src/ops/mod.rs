//! Properties of operators, each of which has one home.

pub mod axes;
#[cfg(feature = "tract")]
pub(crate) mod definitions;
