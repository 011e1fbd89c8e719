//! Running models in tract, on the CPU.
//!
//! [`Engine`] is a model that is loaded, typed, optimized and ready to run; its symbolic dimensions are
//! fixed by [`Dims`], its inputs are described by [`Input`], and what tract cannot do is a [`Failure`].

mod dims;
mod engine;
mod failure;
mod input;
mod skeleton;
#[cfg(test)]
pub(crate) mod testing;

pub use dims::Dims;
pub use engine::{Engine, Session};
pub use failure::{Failure, Stage};
pub use input::{Input, random};
pub(crate) use skeleton::fix_shapes;

/// A tensor as tract holds it: a type, a shape, and the elements.
pub use tract_onnx::prelude::Tensor;

/// What an engine runs: typed, optimized, with concrete shapes.
pub use tract_onnx::prelude::TypedModel;
