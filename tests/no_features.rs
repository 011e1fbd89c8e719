//! Tests the library without any feature: load, plan, fuse and save.

use std::path::{Path, PathBuf};

use ndarray::ArrayD;
use unfold::onnx::{Model, tensor};

fn digits(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("models/digits")
        .join(name)
}

/// A constant of a model.
fn constant(model: &Model, name: &str) -> ArrayD<f64> {
    let found = model
        .graph()
        .initializer
        .iter()
        .find(|tensor| tensor.name() == name);
    tensor::read_f64(found.unwrap(), model.externals()).unwrap()
}

#[test]
fn library_without_features_loads_plans_folds_and_saves() {
    let model = Model::open(digits("un-dynamo.onnx")).unwrap();
    let plan = unfold::plan(&model, &Default::default()).unwrap();
    assert_eq!(
        plan.sites.iter().filter(|site| site.is_folded()).count(),
        13
    );

    let fused = unfold::fuse(&model, &Default::default()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    fused.model.save(folder.path().join("fused.onnx")).unwrap();
    let saved = Model::open(folder.path().join("fused.onnx")).unwrap();
    assert_eq!(
        (model.graph().node.len(), saved.graph().node.len()),
        (167, 81)
    );

    // Each row of a weight after a UN is multiplied by γ / √(σ² + ε) of its channel.
    let [weight, deviation, gamma] =
        ["val_122", "sqrt_1", "view_10"].map(|name| constant(&model, name));
    let folded = constant(&saved, "val_122_folded");
    let scale: Vec<f64> = gamma
        .iter()
        .zip(&deviation)
        .map(|(gamma, deviation)| gamma / deviation)
        .collect();
    assert_eq!(
        (weight.shape(), folded.shape(), scale.len()),
        (&[40, 80][..], &[40, 80][..], 40)
    );
    for ((place, folded), weight) in folded.indexed_iter().zip(&weight) {
        let expected = weight * scale[place[0]];
        assert!(
            (folded - expected).abs() <= f64::from(f32::EPSILON) * expected.abs(),
            "{place:?}"
        );
    }
}

#[test]
fn computed_shapes_and_statistics_are_known_without_features() {
    // In this model, operators compute √(σ² + ε) and the shapes of Reshapes.
    let model = Model::open(digits("un-legacy.onnx")).unwrap();
    let plan = unfold::plan(&model, &Default::default()).unwrap();
    assert!(plan.sites.len() == 13 && plan.sites.iter().all(|site| site.is_folded()));
}
