//! Tests that the sites in models of exporters other than PyTorch fold exactly. `models/wild.py`
//! writes the models.

use std::path::Path;

use unfold::onnx::Model;
use unfold::verify::{VerifyOptions, compare};

use crate::common::{check_new_tensors, fuse, is_proved_or_listed, operators};

/// The kinds of the sites that fold and of those that stay, and the operators that remain.
fn fold_export(name: &str) -> ([Vec<&'static str>; 2], Vec<String>) {
    let model = Model::open(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/wild")
            .join(name),
    )
    .unwrap();
    let fused = fuse(&model);
    // The engine supports neither functions nor Scalers.
    let written_out = fused.lowered.as_ref().unwrap_or(&model);
    assert!(
        compare(written_out, &fused.model, &VerifyOptions::default()).passed(),
        "{name}"
    );
    is_proved_or_listed(&model, &fused).unwrap();
    check_new_tensors(&model, &fused).unwrap();
    assert!(!fuse(&fused.model).changed());
    let of = |folded: bool| {
        let sites = fused
            .plan
            .sites
            .iter()
            .filter(|site| site.is_folded() == folded);
        sites.map(|site| site.kind.name).collect()
    };
    (
        [of(true), of(false)],
        operators(&fused.model)
            .into_iter()
            .map(str::to_owned)
            .collect(),
    )
}

#[test]
fn sklearn_whitening_folds_into_the_perceptron() {
    let (sites, left) = fold_export("sklearn.onnx");
    assert_eq!(sites, [vec!["shift", "per-channel affine"], vec![]]);
    assert_eq!(left.iter().filter(|op| *op == "Div").count(), 0);
}

#[test]
fn flax_layer_norm_and_batch_norm_fold() {
    let (sites, left) = fold_export("flax.onnx");
    assert_eq!(sites, [vec!["LN", "BN"], vec![]]);
    assert!(!left.contains(&"BatchNormalization".to_owned()), "{left:?}");
}

#[test]
fn onnxscript_function_is_inlined_and_folds() {
    let (sites, left) = fold_export("onnxscript.onnx");
    assert_eq!(sites, [vec!["LN", "scalar affine"], vec![]]);
    assert_eq!(left.last(), Some(&"MatMul".to_owned()));
}

#[test]
fn jax_dense_layers_absorb_neighbouring_affines() {
    let (sites, left) = fold_export("jax.onnx");
    // The count of a mean stays.
    assert_eq!(
        sites[0],
        ["affine of a quotient", "scalar affine", "RMSNorm"]
    );
    assert!(
        sites[1].iter().all(|kind| *kind == "scalar affine"),
        "{sites:?}"
    );
    assert_eq!(left.iter().filter(|op| *op == "Einsum").count(), 3);
}

#[test]
fn consecutive_scalers_are_inlined_and_fold() {
    let (sites, left) = fold_export("scalers.onnx");
    assert_eq!(
        sites,
        [vec!["standardisation", "per-channel affine"], vec![]]
    );
    assert!(!left.contains(&"Scaler".to_owned()), "{left:?}");
}

#[test]
fn tensorflow_layer_norm_by_global_average_pool_is_recognized() {
    let (sites, left) = fold_export("tensorflow.onnx");
    assert_eq!(sites, [vec!["LN", "shift"], vec![]]);
    assert_eq!(left.iter().filter(|op| *op == "ReduceMean").count(), 2);
    assert!(!left.contains(&"GlobalAveragePool".to_owned()), "{left:?}");
}

#[test]
fn keras_and_paddle_exports_fold() {
    let (sites, left) = fold_export("keras.onnx");
    assert_eq!(
        sites,
        [vec!["standardisation", "per-channel affine"], vec![]]
    );
    assert_eq!(left, ["MatMul", "Add", "Relu", "MatMul", "Add"]);
    // Only the shift of a stream remains of UN.
    let (sites, left) = fold_export("paddle.onnx");
    assert_eq!(sites, [vec!["per-channel affine"; 2], vec![]]);
    let count = |op: &str| left.iter().filter(|other| *other == op).count();
    assert_eq!(["MatMul", "Add", "Relu"].map(count), [6, 8, 2]);
}
