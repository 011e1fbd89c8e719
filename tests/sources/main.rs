//! Every source of an affine except offline normalizers, in random small graphs: the Dynamic Tanh
//! family, online normalizers, opaque nodes, and the scales around attention.
//! normalizers, opaque nodes, and the scales around attention, on random small graphs.
//!
//! The reference computes the original and the fused model in float64. In the original, an opaque
//! node is replaced by its definition.
//! the reference, in float64.

#[path = "../common/mod.rs"]
mod common;
mod controls;
mod functions;
mod make;

use common::numbers::Kind;
use common::reference::{self, Env, Value};
use common::{fuse, judge, portable, text};
use make::{Case, SOURCES, make};
use ndarray::{ArrayD, IxDyn};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use unfold::onnx::Model;
use unfold::plan::{Outcome, SitePlan};

/// The extents of batch, tokens and channels. Two are equal, so that an axis cannot be found by its
/// extent.
const SHAPE: [usize; 3] = [2, 4, 4];

/// Folded weights are rounded once to single precision.
const TOLERANCE: f64 = 2e-6;

fn compute(model: &Model, x: &ArrayD<f64>) -> ArrayD<f64> {
    let inputs: Env = [("x".to_owned(), Value::Floats(x.clone()))].into();
    reference::run(model, &inputs).unwrap()[0]
        .floats()
        .unwrap()
        .clone()
}

fn is_folded(site: &SitePlan) -> bool {
    matches!(site.post, Some(Outcome::Folded { .. }))
}

/// True if the shift stays in the normalizer because it would become an operator behind a product
/// without a bias.
fn keeps_its_shift(site: &SitePlan) -> bool {
    let mut refusals = site.post.iter().flat_map(Outcome::refusals);
    refusals.any(|(_, refusal)| refusal.reason.name() == "no-gain")
}

#[test]
fn every_source_folds_exactly() {
    for seed in 0..3_600 {
        let wanted = make(seed);
        let fused = fuse(wanted.opaque.as_ref().unwrap_or(&wanted.original));
        let site = fused
            .plan
            .sites
            .iter()
            .find(|site| site.kind.name == wanted.kind);
        let found: Vec<_> = fused.plan.sites.iter().map(|site| site.kind.name).collect();
        let site =
            site.unwrap_or_else(|| panic!("seed {seed}: no {} among {found:?}", wanted.kind));
        assert!(
            is_folded(site) || keeps_its_shift(site),
            "seed {seed}: {} stays: {site:?}",
            wanted.kind
        );
        let mut rng = ChaCha8Rng::seed_from_u64(seed + 1);
        let x = ArrayD::from_shape_simple_fn(IxDyn(&SHAPE), || rng.random_range(-3.0..3.0));
        let (before, after) = (compute(&wanted.original, &x), compute(&fused.model, &x));
        let largest = before
            .iter()
            .fold(0.0f64, |largest, v| largest.max(v.abs()));
        let error = (&before - &after)
            .iter()
            .fold(0.0f64, |worst, v| worst.max(v.abs()))
            / largest;
        assert!(
            error < TOLERANCE,
            "seed {seed}: {} is off by {error:e}",
            wanted.kind
        );
        assert_idempotent(&fused.model, &format!("seed {seed}: {}", wanted.kind));
    }
}

/// Asserts that fusing a fused model again does not change it.
fn assert_idempotent(fused: &Model, what: &str) {
    let again = unfold::fuse(fused, &portable()).unwrap();
    let show = || text::print(&again.model);
    assert!(
        !again.changed(),
        "{what} folds twice: {:#?}\n{}",
        again.plan.sites,
        show()
    );
    assert_eq!(again.model.proto, fused.proto, "{what} changes");
}

/// The readers of a source.
#[derive(Debug, Clone, Copy)]
enum End {
    /// A linear layer.
    Linear,
    /// A linear layer behind a Transpose.
    Turned,
    /// Two linear layers.
    Twice,
    /// A linear layer, and a reader that absorbs no affine.
    Beside,
    /// The residual stream.
    Residual,
    /// A graph output.
    Output,
}

#[test]
fn fusing_a_fused_source_changes_nothing() {
    let ends = [
        End::Linear,
        End::Turned,
        End::Twice,
        End::Beside,
        End::Residual,
        End::Output,
    ];
    for (number, source) in SOURCES.into_iter().enumerate() {
        for end in ends {
            for seed in 0..24 {
                let what = format!("{source} {end:?} {seed}");
                let mut case = Case::new(100 * number as u64 + seed);
                case.bare = seed % 3 == 0;
                let x = if seed % 2 == 0 {
                    case.op("Tanh", &["x"])
                } else {
                    "x".to_owned()
                };
                let normed = case.source(source, &x);
                let outputs = match end {
                    End::Linear => vec![case.reader(&normed)],
                    End::Turned => {
                        let turned = case.turned(&normed);
                        let weight = case.constant(&[3, 4], -1.0, 1.0);
                        vec![case.op("MatMul", &[&weight, &turned])]
                    }
                    End::Twice => vec![case.reader(&normed), case.reader(&normed)],
                    End::Beside => vec![case.reader(&normed), case.op("Tanh", &[&normed])],
                    End::Residual => vec![case.op("Add", &[&x, &normed])],
                    End::Output => vec![normed],
                };
                let outputs: Vec<&str> = outputs.iter().map(String::as_str).collect();
                let model = case.builder.model(&outputs);
                let fused = fuse(&model);
                let inputs = judge::inputs(&model, 2, true, Kind::Real);
                let ran = judge::agree(&model, &fused.model, &inputs, TOLERANCE);
                assert_eq!(ran, Ok(true), "{what}\n{}", text::print(&fused.model));
                assert_idempotent(&fused.model, &what);
            }
        }
    }
}
