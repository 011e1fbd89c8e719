//! How long each step of folding takes, over the number of nodes and over the size of the weights.
//!
//! `cargo bench --bench stages`, with the name of a step for that one alone.

#[path = "../tests/common/mod.rs"]
mod common;

use std::collections::HashMap;
use std::fmt;

use common::blocks::transformer;
use divan::{Bencher, black_box};
use unfold::affine::apply::apply;
use unfold::affine::materialize::draw;
use unfold::affine::planner;
use unfold::affine::recognize::{self, Site, View};
use unfold::analysis::Analysis;
use unfold::ir::Graph;
use unfold::ir::editor::Editor;
use unfold::onnx::Model;

/// Residual blocks: so many nodes, linear layers of so many channels.
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

fn sites(known: &Analysis) -> Vec<Site> {
    recognize::find(&View::new(known))
}

#[divan::bench(args = SIZES)]
fn load(bencher: Bencher, size: Size) {
    let bytes = size.model().to_bytes().unwrap();
    bencher.bench(|| Model::from_bytes(black_box(bytes.clone())).unwrap());
}

#[divan::bench(args = SIZES)]
fn index(bencher: Bencher, size: Size) {
    let model = size.model();
    bencher.bench(|| Graph::new(black_box(&model)).unwrap());
}

#[divan::bench(args = SIZES)]
fn facts(bencher: Bencher, size: Size) {
    let model = size.model();
    bencher.bench(|| Analysis::new(black_box(&model)).unwrap());
}

#[divan::bench(args = SIZES)]
fn recognise(bencher: Bencher, size: Size) {
    let model = size.model();
    let known = Analysis::new(&model).unwrap();
    bencher.bench_local(|| sites(black_box(&known)));
}

#[divan::bench(args = SIZES)]
fn plan(bencher: Bencher, size: Size) {
    let model = size.model();
    let known = Analysis::new(&model).unwrap();
    let sites = sites(&known);
    let none = HashMap::new();
    bencher.bench_local(|| planner::plan(&known, black_box(&sites), &HashMap::new(), &none, false));
}

#[divan::bench(args = SIZES)]
fn carry_out(bencher: Bencher, size: Size) {
    let model = size.model();
    let known = Analysis::new(&model).unwrap();
    let none = HashMap::new();
    let plan = planner::plan(&known, &sites(&known), &HashMap::new(), &none, false);
    bencher.bench_local(|| {
        let mut editor = Editor::new(&known.graph);
        let edits = draw(black_box(&plan), &known).unwrap();
        apply((&edits, &plan.removals), &known, &mut editor, &|_, _| ()).unwrap();
        editor.finish()
    });
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
