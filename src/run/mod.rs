//! Runs models in tract on the CPU.
//!
//! [`Engine`] is a model that was loaded, typed and optimized, and is ready to run. [`Dims`] has
//! sizes for symbolic dimensions, [`Input`] describes an input, and [`Failure`] is the error if
//! tract cannot run the model.

mod dims;
#[cfg(feature = "tract")]
mod engine;
mod failure;
mod fixed;
mod formula;
mod input;
#[cfg(feature = "tract")]
mod origins;
#[cfg(feature = "tract")]
mod preconditions;
#[cfg(feature = "tract")]
mod random_inputs;
#[cfg(feature = "tract")]
mod skeleton;
#[cfg(feature = "tract")]
mod specialize;
#[cfg(test)]
pub(crate) mod testing;

pub use dims::Dims;
#[cfg(feature = "tract")]
pub use engine::Engine;
#[cfg(feature = "tract")]
pub(crate) use engine::Session;
pub use failure::{Failure, Stage};
pub(crate) use fixed::fixed;
#[cfg(feature = "prove")]
pub(crate) use formula::is_formula;
pub use input::Input;
#[cfg(any(feature = "prove", feature = "tract"))]
pub(crate) use input::fix_shapes;
#[cfg(feature = "prove")]
pub(crate) use input::free;
#[cfg(feature = "tract")]
pub use random_inputs::random;

/// A tensor in tract: a type, a shape and elements.
pub use tract_onnx::prelude::Tensor;
