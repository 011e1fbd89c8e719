//! unfold
pub mod affine;
pub mod bench;
pub mod error;
pub mod fold;
mod fuse;
pub mod graph;
pub mod lower;
pub mod memory;
pub mod normalizer;
pub mod onnx;
pub mod progress;
pub mod refusal;
pub mod report;
pub mod run;
pub mod simplify;
pub mod variants;
pub mod verify;
pub mod zoo;

pub use fold::plan::{Direction, Outcome, Plan, SitePlan};
pub use fuse::{FuseOptions, Fused, fuse, plan};
