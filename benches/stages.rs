//! Measures the time of each step of folding for several numbers of nodes and sizes of weights.
//!
//! `cargo bench --bench stages` measures all steps, or only the one whose name is given.

#[path = "../tests/common/mod.rs"]
mod common;

use std::fmt;

use common::blocks::transformer;
use divan::{Bencher, black_box};
use unfold::onnx::Model;
use unfold::{FuseOptions, Pipeline, infer_shapes};

/// The size of a model of residual blocks: the number of nodes, and the channels of linear layers.
#[derive(Clone, Copy)]
struct Size {
    nodes: usize,
    width: usize,
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} nodes, width {}", self.nodes, self.width)
    }
}

const SIZES: [Size; 5] = [
    Size {
        nodes: 1_000,
        width: 8,
    },
    Size {
        nodes: 10_000,
        width: 8,
    },
    Size {
        nodes: 100_000,
        width: 8,
    },
    Size {
        nodes: 1_000,
        width: 64,
    },
    Size {
        nodes: 1_000,
        width: 256,
    },
];

impl Size {
    fn model(self) -> Model {
        transformer(self.nodes, self.width)
    }
}

#[divan::bench(args = SIZES)]
fn load(bencher: Bencher, size: Size) {
    let bytes = size.model().to_bytes().unwrap();
    bencher.bench(|| Model::from_bytes(black_box(bytes.clone())).unwrap());
}

#[divan::bench(args = SIZES)]
fn shapes(bencher: Bencher, size: Size) {
    let model = size.model();
    bencher.bench(|| infer_shapes(black_box(&model)).unwrap());
}

/// Measures a single pass, including the analysis that it uses.
fn pass(bencher: Bencher, size: Size, name: &str) {
    let (model, options) = (size.model(), FuseOptions::default());
    let pipeline = Pipeline::only(name).unwrap();
    bencher.bench_local(|| pipeline.run(black_box(&model), &options).unwrap());
}

#[divan::bench(args = SIZES)]
fn fold_affines(bencher: Bencher, size: Size) {
    pass(bencher, size, "fold-affines");
}

#[divan::bench(args = SIZES)]
fn centre_streams(bencher: Bencher, size: Size) {
    pass(bencher, size, "centre-streams");
}

#[divan::bench(args = SIZES)]
fn clean_up(bencher: Bencher, size: Size) {
    pass(bencher, size, "clean-up");
}

#[divan::bench(args = SIZES)]
fn plan(bencher: Bencher, size: Size) {
    let (model, options) = (size.model(), FuseOptions::default());
    bencher.bench_local(|| unfold::plan(black_box(&model), &options).unwrap());
}

#[divan::bench(args = SIZES)]
fn all(bencher: Bencher, size: Size) {
    let model = size.model();
    bencher.bench(|| unfold::fuse(black_box(&model), &Default::default()).unwrap());
}

#[divan::bench(args = SIZES)]
fn save(bencher: Bencher, size: Size) {
    let fused = unfold::fuse(&size.model(), &Default::default())
        .unwrap()
        .model;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fused.onnx");
    bencher.bench(|| fused.save(black_box(&path)).unwrap());
}

fn main() {
    divan::main();
}
