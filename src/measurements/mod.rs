//! Measures models by running them in tract: the rounding errors of outputs, the magnitude of
//! residual streams, and how far values on samples are from the limits of rewrites that hold only
//! in floating point.

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
