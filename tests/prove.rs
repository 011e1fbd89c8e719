//! What folding makes is proved, and what is changed behind it is not.

use std::path::{Path, PathBuf};

use unfold::onnx::Model;
use unfold::prove::{Proof, ProveOptions, prove};

fn digits() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/digits");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut models: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|e| e == "onnx")).collect();
    models.sort();
    models
}

#[test]
fn every_trained_model_is_proved() {
    for path in digits() {
        let model = Model::open(&path).unwrap();
        let fused = unfold::fuse(&model, &Default::default()).unwrap();
        let proof = prove(&model, &fused.model, &fused.plan.tensors, &ProveOptions::default());
        println!("{} {proof:?}", path.display());
    }
}
