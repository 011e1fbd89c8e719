//! unfold
pub mod affine;
pub mod error;
pub mod fold;
mod fuse;
pub mod graph;
pub mod normalizer;
pub mod onnx;
pub mod refusal;
pub mod run;
pub mod simplify;
pub mod verify;

pub use fuse::{FuseOptions, Fused, fuse, plan};
