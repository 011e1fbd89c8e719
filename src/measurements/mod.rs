//! Measures models by running them in tract: how far rounding moves outputs, how large streams are, and how far the samples
//! are from the limits of a rewrite that holds in floating point only.

mod epsilon_error;
mod half_error;
#[cfg(feature = "prove")]
mod sensitivity;
mod stream_magnitude;
mod variance_margin;

pub use epsilon_error::EpsilonError;
pub use half_error::HalfError;
#[cfg(feature = "cli")]
pub(crate) use sensitivity::sensitivity;
#[cfg(feature = "prove")]
pub(crate) use sensitivity::shaken;
pub use stream_magnitude::StreamMagnitude;
#[cfg(feature = "cli")]
pub(crate) use stream_magnitude::widened;
pub use variance_margin::VarianceMargin;
