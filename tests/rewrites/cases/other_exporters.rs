//! Models by other exporters than PyTorch's, which `models/wild.py` wrote: what folds of them, and that they compute the
//! same.

use std::path::Path;

use unfold::onnx::Model;
use unfold::verify::{VerifyOptions, compare};

use crate::common::{fuse, is_not_disproved, new_tensors_are_told, operators};

/// The kinds of the sites that fold and of those that stay, and the operators that are left.
fn of(name: &str) -> ([Vec<&'static str>; 2], Vec<String>) {
    let model = Model::open(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/wild")
            .join(name),
    )
    .unwrap();
    let fused = fuse(&model);
    // The engine knows neither functions nor Scalers.
    let written_out = fused.lowered.as_ref().unwrap_or(&model);
    assert!(
        compare(written_out, &fused.model, &VerifyOptions::default()).passed(),
        "{name}"
    );
    is_not_disproved(&model, &fused).unwrap();
    new_tensors_are_told(&model, &fused).unwrap();
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
fn scikit_learn_s_whitening_goes_into_the_perceptron() {
    let (sites, left) = of("sklearn.onnx");
    assert_eq!(sites, [vec!["shift", "per-channel affine"], vec![]]);
    assert_eq!(left.iter().filter(|op| *op == "Div").count(), 0);
}

#[test]
fn the_layers_of_flax_fold() {
    let (sites, left) = of("flax.onnx");
    assert_eq!(sites, [vec!["LN", "BN"], vec![]]);
    assert!(!left.contains(&"BatchNormalization".to_owned()), "{left:?}");
}

#[test]
fn a_function_of_onnxscript_is_written_out_and_folds() {
    let (sites, left) = of("onnxscript.onnx");
    assert_eq!(sites, [vec!["LN", "scalar affine"], vec![]]);
    assert_eq!(left.last(), Some(&"MatMul".to_owned()));
}

#[test]
fn the_dense_layers_of_jax_take_what_is_before_and_behind_them() {
    let (sites, left) = of("jax.onnx");
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
fn standard_scalers_behind_each_other_are_written_out_and_fold() {
    let (sites, left) = of("scalers.onnx");
    assert_eq!(
        sites,
        [vec!["standardisation", "per-channel affine"], vec![]]
    );
    assert!(!left.contains(&"Scaler".to_owned()), "{left:?}");
}

#[test]
fn the_layer_norm_of_tensorflow_is_one_though_its_means_are_poolings() {
    let (sites, left) = of("tensorflow.onnx");
    assert_eq!(sites, [vec!["LN", "shift"], vec![]]);
    assert_eq!(left.iter().filter(|op| *op == "ReduceMean").count(), 2);
    assert!(!left.contains(&"GlobalAveragePool".to_owned()), "{left:?}");
}

#[test]
fn what_keras_and_paddle_put_between_operators_hides_nothing() {
    let (sites, left) = of("keras.onnx");
    assert_eq!(
        sites,
        [vec!["standardisation", "per-channel affine"], vec![]]
    );
    assert_eq!(left, ["MatMul", "Add", "Relu", "MatMul", "Add"]);
    // Of UN only the shift of a stream is left.
    let (sites, left) = of("paddle.onnx");
    assert_eq!(sites, [vec!["per-channel affine"; 2], vec![]]);
    let count = |op: &str| left.iter().filter(|other| *other == op).count();
    assert_eq!(["MatMul", "Add", "Relu"].map(count), [6, 8, 2]);
}
