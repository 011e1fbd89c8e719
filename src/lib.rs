//! unfold removes the normalizers of transformers from ONNX models if this can be done exactly.
//!
//! At inference, many normalizers are a constant scale and a constant shift for each channel. If
//! the operators around a normalizer are linear, the scale and the shift can be folded into their
//! weights, and the operators of the normalizer disappear. A normalizer that cannot be folded
//! stays, with a [reason](refusal::Reason).
//!
//! ```
//! use unfold::onnx::Model;
//! use unfold::verify::{VerifyOptions, compare};
//!
//! let model = Model::open("models/digits/un-dynamo.onnx")?;
//! let fused = unfold::fuse(&model, &Default::default())?;
//! for site in &fused.plan.sites {
//!     println!("{} ({}): {:?}", site.name, site.kind.name, site.post);
//! }
//! assert!(compare(&model, &fused.model, &VerifyOptions::default()).passed());
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("fused.onnx");
//! fused.model.save(&path)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The calls of a pipeline, in order
//!
//! | | |
//! |---|---|
//! | load | [`onnx::Model::open`] or [`onnx::Model::from_bytes`]; large weights stay in their files |
//! | recognize, plan | [`plan()`] lists the sites and the operators that absorb them, without changes |
//! | apply, simplify | [`fuse()`] folds, rewrites the weights, and removes the operators that are no longer needed |
//! | verify | [`verify::compare`] runs both models on the same inputs; [`prove::prove`] decides without running them |
//! | save | [`onnx::Model::save`] or [`onnx::Model::to_writer`]; large new weights are computed while they are written |
//! | certify | a [`certificate::Certificate`] can be checked by other programs; [`provenance`] notes the run in the result |
//!
//! [`Pipeline`] lists the passes, and runs all of them or one. Each new weight is a formula, a
//! [`recipe::Recipe`], before it is computed. `docs/architecture.md` lists all steps in order, and
//! follows one site through all files.
//!
//! # Without files
//!
//! A model can be read from memory and passed directly to tract, the engine with which unfold
//! verifies:
//!
//! ```
//! use unfold::onnx::Model;
//! use unfold::run::{Engine, random};
//!
//! let bytes = std::fs::read("models/digits/bn-legacy.onnx")?;
//! let fused = unfold::fuse(&Model::from_bytes(bytes)?, &Default::default())?.model;
//!
//! let engine = Engine::load(&fused, &"batch=3".parse()?)?;
//! let outputs = engine.run(&random(engine.inputs(), 0))?;
//! assert_eq!(outputs[0].shape(), [3, 10]);
//!
//! // Or as the bytes of an ONNX file.
//! assert!(Model::from_bytes(fused.to_bytes()?)?.graph().node.len() == fused.graph().node.len());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`run::Engine::graph`] is tract's own model, for callers that continue with the API of tract.

// Some functions are called only by the command. Without its features they have no callers.
#![cfg_attr(not(feature = "cli"), allow(dead_code))]
#![warn(unreachable_pub)]

mod affine;
mod analysis;
#[cfg(feature = "tract")]
mod baselines;
#[cfg(feature = "tract")]
pub mod bench;
#[cfg(any(test, feature = "capi"))]
mod capi;
pub mod certificate;
#[cfg(feature = "prove")]
mod claim;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
/// The helpers of the integration tests.
#[cfg(all(test, feature = "cli"))]
#[path = "../tests/common/mod.rs"]
#[allow(unreachable_pub)]
mod common;
#[cfg(all(feature = "prove", feature = "tract"))]
mod diff;
pub mod error;
#[cfg(all(test, feature = "cli"))]
mod extending;
mod fuse;
mod hash;
mod inspect;
mod ir;
#[cfg(all(feature = "prove", feature = "tract"))]
pub mod judge;
#[cfg(feature = "tract")]
mod measurements;
pub mod onnx;
mod ops;
mod passes;
mod platform;
#[cfg(feature = "prove")]
pub mod prove;
#[cfg(feature = "cli")]
mod prove_passes;
pub mod provenance;
#[cfg(feature = "python")]
mod python;
pub mod recipe;
pub mod refusal;
// Without measurements nothing shows the classes of operators to callers.
#[cfg_attr(not(feature = "tract"), allow(unreachable_pub))]
mod report;
mod residual;
pub mod run;
mod shape;
#[cfg(feature = "tract")]
pub mod verify;
#[cfg(any(feature = "wasm", all(test, feature = "cli")))]
mod wasm;
#[cfg(feature = "zoo")]
pub mod zoo;

/// The command line refers to the library by the name that other programs use.
#[cfg(feature = "cli")]
extern crate self as unfold;

#[cfg(feature = "tract")]
pub use baselines::Baselines;
#[cfg(any(feature = "cli", test))]
pub(crate) use fuse::fuse_ahead;
pub use fuse::{
    FuseOptions, Fused, OnProgress, PassInfo, PassResult, Pipeline, StageInfo, fuse, plan,
    with_constant_norms,
};
#[cfg(feature = "cli")]
pub(crate) use fuse::{Planned, dry_run};
pub use inspect::model_page;
#[cfg(feature = "tract")]
pub use measurements::{EpsilonError, HalfError, StreamMagnitude, VarianceMargin};
pub use passes::half::{EndType, HalfType};
pub use passes::legalize::Target;
pub use passes::slice::{MemoryGoal, Slicing};
pub use shape::{InferredValue, infer_shapes};

/// The plan of a run, as data: the sites and their outcomes, and every other change of the model.
pub mod plan {
    pub use crate::affine::plan::{
        Basis, Centring, ClampedMask, Constancy, ConstantNorm, CutRegion, Direction, Follower,
        HalfPlan, HeldValue, Member, MemoryChange, MergedNorm, OpsetUpgrade, Outcome, PassStats,
        Placed, Plan, Scaling, SitePlan, StopReason, Stored, StreamPlan, Tidy, WideOperator,
        WideReason,
    };
    pub use crate::affine::recognize::{Family, Kind};
}

/// The examples of docs/library.md are compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../docs/library.md")]
struct LibraryPage;
