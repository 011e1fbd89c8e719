//! unfold removes the normalizers of transformers from ONNX models if this can be done exactly.
//!
//! At inference, many normalizers are a constant scale and a constant shift for each channel. If
//! the operators around them are linear, both can be multiplied into their weights, and the
//! operators of the normalizer disappear. A normalizer that cannot be folded stays, with a
//! [reason](refusal::Reason).
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
//! Internally, [`fuse`](fuse()) has these steps:
//! - It inlines opaque normalizers ([`passes::inline`]) and flattens the bodies of control flow ([`ir::regions`]).
//! - It analyses the graph ([`analysis`]) and recognizes the sites ([`affine::recognize`]).
//! - It plans the folds ([`affine::planner`]), with a formula for each new weight ([`recipe`]).
//! - It applies them ([`affine::apply`]) and simplifies the graph ([`passes::simplify`]).
//! - It repeats the last three steps until nothing folds.
//! - It moves work to fewer places ([`passes::placement`]), folds constants, and merges equal operators.
//! - It converts operators to the forms of the target ([`passes::legalize`]).
//!
//! `docs/architecture.md` lists all steps in order, and follows one site through all files.
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
//! [`run::Engine::graph`] is tract's own model, for callers that continue with it in tract.

pub mod affine;
pub mod analysis;
#[cfg(feature = "tract")]
pub mod baselines;
#[cfg(feature = "tract")]
pub mod bench;
#[cfg(any(test, feature = "capi"))]
pub mod capi;
pub mod certificate;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
#[cfg(feature = "tract")]
pub mod epsilon_error;
pub mod error;
mod fuse;
mod hash;
pub mod inspect;
pub mod ir;
#[cfg(all(feature = "prove", feature = "tract"))]
pub mod judge;
#[cfg(feature = "tract")]
pub mod magnitude;
pub mod onnx;
pub mod ops;
pub mod passes;
mod progress;
#[cfg(feature = "prove")]
pub mod prove;
#[cfg(feature = "prove")]
pub mod prove_passes;
pub mod provenance;
#[cfg(feature = "python")]
mod python;
pub mod recipe;
pub mod refusal;
pub mod report;
pub mod residual;
pub mod run;
#[cfg(feature = "tract")]
pub mod sensitivity;
pub mod shape;
#[cfg(feature = "tract")]
pub mod variance_margin;
#[cfg(feature = "tract")]
pub mod verify;
#[cfg(feature = "zoo")]
pub mod zoo;

/// The command line calls the library by the same name as other programs.
#[cfg(feature = "cli")]
extern crate self as unfold;

pub use crate::affine::plan::{Direction, Outcome, Plan, SitePlan};
pub use fuse::{
    FuseOptions, Fused, OnPass, PassInfo, PassResult, Planned, StageInfo, dry_run, fuse,
    fuse_ahead, pipeline, plan, with_constant_norms,
};
pub use progress::OnProgress;

/// The examples of docs/library.md are compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../docs/library.md")]
struct LibraryPage;
