//! tract's operators for models: `fuse` loses no fusion.

use std::collections::BTreeMap;
use std::path::PathBuf;

use unfold::onnx::Model;
use unfold::run::{Dims, Engine};

fn operators(model: &Model) -> BTreeMap<String, usize> {
    Engine::load(model, &Dims::default()).unwrap().operators()
}

fn models(folder: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut found: Vec<_> = entries
        .filter(|path| path.extension().is_some_and(|end| end == "onnx"))
        .collect();
    found.sort();
    found
}

/// An operator that replaces several, or absorbs others.
fn is_fused(operator: &str) -> bool {
    [
        "OptMatMul",
        "RmsNorm",
        "Softmax",
        "Gelu",
        "Silu",
        "LayerNorm",
    ]
    .iter()
    .any(|form| operator.contains(form))
}

#[test]
fn folding_keeps_every_fusion_of_tract() {
    let mut forms = 0;
    for path in models("models/digits") {
        let model = Model::open(&path).unwrap();
        let fused = unfold::fuse(&model, &Default::default()).unwrap();
        let [before, after] =
            [fused.lowered.as_ref().unwrap_or(&model), &fused.model].map(operators);
        let total = |counts: &BTreeMap<String, usize>| counts.values().sum::<usize>();
        assert!(
            total(&after) <= total(&before),
            "{}: {before:?} {after:?}",
            path.display()
        );
        for (form, count) in before.iter().filter(|(name, _)| is_fused(name)) {
            let left = after.get(form).copied().unwrap_or_default();
            assert!(left >= *count, "{}: {form} {count} {left}", path.display());
            forms += left;
        }
    }
    assert!(forms > 0);
}
