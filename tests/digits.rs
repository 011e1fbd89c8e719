//! Checks that folding keeps the predictions and the accuracy of trained models.
//!
//! `docs/accuracy.md` is written by `UNFOLD_WRITE_DOCS=1 cargo test --release --test digits`.

mod common;

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use ndarray::{Array1, ArrayD, Axis, Ix2};
use ndarray_npy::ReadNpyExt;
use unfold::Fused;
use unfold::onnx::Model;
use unfold::run::{Dims, Engine, Tensor};

const KINDS: [&str; 16] = [
    "none", "bn", "bnt", "repbn", "un", "mabn", "pnstar", "pn", "dyt", "dys", "dyss", "ln",
    "rmsnorm", "dtn", "sn", "dpn",
];
const EXPORTERS: [&str; 2] = ["dynamo", "legacy"];

/// The largest accepted difference of two logits, relative to the largest logit.
const TOLERANCE: f32 = 1e-5;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

fn read<T: ReadNpyExt>(name: &str) -> T {
    T::read_npy(File::open(root().join("models/digits").join(name)).unwrap()).unwrap()
}

/// The held-back images and their labels.
struct Tests {
    images: ArrayD<f32>,
    labels: Array1<i64>,
}

impl Tests {
    fn read() -> Self {
        Self {
            images: read("test-images.npy"),
            labels: read("test-labels.npy"),
        }
    }

    /// The logits of a model for all images.
    fn logits(&self, model: &Model) -> ndarray::Array2<f32> {
        let mut dims = Dims::default();
        dims.set("batch", self.images.len_of(Axis(0)));
        let engine = Engine::load(model, &dims).unwrap();
        let images =
            Tensor::from_shape(self.images.shape(), self.images.as_slice().unwrap()).unwrap();
        let outputs = engine.run(&[images]).unwrap();
        let logits = outputs[0]
            .try_as_plain_ram()
            .unwrap()
            .as_slice::<f32>()
            .unwrap()
            .to_vec();
        ArrayD::from_shape_vec(outputs[0].shape(), logits)
            .unwrap()
            .into_dimensionality::<Ix2>()
            .unwrap()
    }

    fn right(&self, predictions: &[usize]) -> usize {
        predictions
            .iter()
            .zip(&self.labels)
            .filter(|&(&predicted, &label)| predicted as i64 == label)
            .count()
    }
}

fn predictions(logits: &ndarray::Array2<f32>) -> Vec<usize> {
    let largest = |row: ndarray::ArrayView1<f32>| {
        (0..row.len())
            .reduce(|best, class| if row[class] > row[best] { class } else { best })
            .unwrap()
    };
    logits.rows().into_iter().map(largest).collect()
}

#[test]
fn digits_predictions_are_unchanged_by_folding() {
    let tests = Tests::read();
    let mut table = String::new();
    for kind in KINDS {
        for exporter in EXPORTERS {
            let name = format!("{kind}-{exporter}");
            let model = Model::open(root().join(format!("models/digits/{name}.onnx"))).unwrap();
            let Fused {
                model: fused, plan, ..
            } = common::fuse(&model);

            let (before, after) = (tests.logits(&model), tests.logits(&fused));
            let largest = before
                .iter()
                .fold(0_f32, |largest, logit| largest.max(logit.abs()));
            let apart = (&before - &after)
                .iter()
                .fold(0_f32, |most, difference| most.max(difference.abs()));
            assert!(
                apart <= TOLERANCE * largest,
                "{name}: {apart:e} of {largest}"
            );
            let (before, after) = (predictions(&before), predictions(&after));
            assert_eq!(before, after, "{name}");

            let folded = plan.sites.iter().filter(|site| site.is_folded()).count();
            let percent = |right: usize| 100.0 * right as f64 / tests.labels.len() as f64;
            let (right, still) = (tests.right(&before), tests.right(&after));
            let nodes = |model: &Model| model.graph().node.len();
            writeln!(
                table,
                "| `{kind}` | {exporter} | {folded} of {} | {} | {} | {right} ({:.1} %) | {still} ({:.1} %) |",
                plan.sites.len(),
                nodes(&model),
                nodes(&fused),
                percent(right),
                percent(still),
            )
            .unwrap();
        }
    }
    let page = PAGE
        .replace("TABLE", table.trim_end())
        .replace("IMAGES", &tests.labels.len().to_string());
    let path = root().join("docs/accuracy.md");
    if std::env::var_os("UNFOLD_WRITE_DOCS").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page,
        "docs/accuracy.md is out of date; the head of this file says how to write it:\n{page}"
    );
}

/// The table of models/README.md has the accuracy of PyTorch's exports in onnxruntime.
#[test]
fn digits_accuracy_equals_that_measured_on_export() {
    let tests = Tests::read();
    let text = fs::read_to_string(root().join("models/digits/accuracy.json")).unwrap();
    let measured: serde_json::Value = serde_json::from_str(&text).unwrap();
    for kind in KINDS {
        let name = format!("{kind}-dynamo.onnx");
        let model = Model::open(root().join("models/digits").join(&name)).unwrap();
        let right = tests.right(&predictions(&tests.logits(&model)));
        let accuracy = right as f64 / tests.labels.len() as f64;
        assert!(
            (accuracy - measured[&name]["accuracy"].as_f64().unwrap()).abs() < 1e-4,
            "{name}: {accuracy}"
        );
    }
}

const PAGE: &str = "\
# Accuracy of the trained models, before and after

This page shows that folding changes no prediction of the trained models of this repository. Written by
`UNFOLD_WRITE_DOCS=1 cargo test --release --test digits`; without the variable, the test fails if the page is out of
date.

There is one small vision transformer on handwritten digits for each normalizer, exported by both of PyTorch's exporters
(`models/README.md`). All run in tract on the IMAGES images that were held back from training. The
test also checks that no logit changes by more than 1e-5 of the largest.

Sites are all places that unfold can fold: normalizers, attention scales and the like. A site counts as folded if every
constant in it that can fold is removed. Statistics of the input stay.

| normalizer | exporter | folded sites | nodes before | nodes after | right before | right after |
|---|---|---|---|---|---|---|
TABLE
";
