//! Tests the comparison of two models that both run on the same inputs.

use super::*;
use crate::onnx::proto::{TensorProto, ValueInfoProto};
use crate::onnx::tensor;
use crate::run::testing::{affine, floats, model, node, value, with_int};

fn verdict(original: &Model, fused: &Model) -> Verdict {
    compare(original, fused, &VerifyOptions::default())
}

fn comparison(original: &Model, fused: &Model) -> Comparison {
    match verdict(original, fused) {
        Verdict::Compared(comparison) => comparison,
        other => panic!("{other:?}"),
    }
}

fn reason(original: &Model, fused: &Model) -> String {
    match verdict(original, fused) {
        Verdict::CouldNotVerify { reason } => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn equal_models_agree_exactly() {
    let model = affine([1.0, 2.0, 3.0], [0.5, 0.0, -1.0]);
    let comparison = comparison(&model, &model);
    assert!(comparison.agrees());
    assert_eq!(comparison.tolerance, 1e-4);
    let expected = OutputError {
        name: "y".into(),
        absolute: 0.0,
        relative: 0.0,
        mismatched: 0,
    };
    assert_eq!(comparison.worst(), Some(&expected));
}

#[test]
fn error_is_relative_to_the_largest_output() {
    // The magnitude of x is at most 10, so each output is within 10 of 1000.
    let comparison = comparison(
        &affine([1.0; 3], [1000.0; 3]),
        &affine([1.0; 3], [1000.0, 1000.5, 1000.0]),
    );
    let worst = comparison.worst().unwrap();
    assert!((worst.absolute - 0.5).abs() < 1e-3, "{worst:?}");
    assert!((worst.relative - 0.0005).abs() < 1e-5, "{worst:?}");
    assert!(!comparison.agrees());
    let options = VerifyOptions {
        tolerance: Some(1e-3),
        ..VerifyOptions::default()
    };
    assert!(
        compare(
            &affine([1.0; 3], [1000.0; 3]),
            &affine([1.0; 3], [1000.5; 3]),
            &options
        )
        .passed()
    );
}

#[test]
fn nan_and_infinities_must_match() {
    let (nan, finite) = (
        affine([f64::NAN, 1.0, 1.0], [0.0; 3]),
        affine([1.0; 3], [0.0; 3]),
    );
    assert!(verdict(&nan, &nan).passed());
    assert_eq!(comparison(&nan, &finite).worst().unwrap().mismatched, 2);
    let [up, down] =
        [f64::INFINITY, f64::NEG_INFINITY].map(|end| affine([1.0; 3], [end, 0.0, 0.0]));
    assert!(verdict(&up, &up).passed());
    assert!(!verdict(&up, &down).passed());
}

fn ranked(sign: f64) -> Model {
    let sign = floats("sign", &ndarray::arr1(&[sign]).into_dyn().view());
    let nodes = vec![
        node("Mul x, sign -> z"),
        with_int(node("ArgMax z -> y"), "axis", 1),
    ];
    model(
        vec![value("x", DataType::Float, &["n", "100"])],
        vec![sign],
        nodes,
        &["y"],
    )
}

#[test]
fn integer_outputs_must_be_equal() {
    assert!(verdict(&ranked(1.0), &ranked(2.0)).passed());
    assert_eq!(
        comparison(&ranked(1.0), &ranked(-1.0))
            .worst()
            .unwrap()
            .mismatched,
        2
    );
}

#[test]
fn model_that_cannot_run_is_not_verified() {
    let good = affine([1.0; 3], [0.0; 3]);
    let bad = model(
        vec![value("x", DataType::Float, &["n", "3"])],
        vec![],
        vec![node("Nope x -> y")],
        &["y"],
    );
    assert_eq!(
        reason(&bad, &good),
        "tract cannot load Nope `the Nope`: tract does not have this operator"
    );
    assert!(matches!(verdict(&good, &bad), Verdict::Broken { .. }));
}

/// A convolution over `length` samples.
fn convolved(length: &str) -> Model {
    let narrow = floats("w", &ndarray::Array3::ones((1, 1, 300)).into_dyn().view());
    let inputs = vec![value("x", DataType::Float, &["n", "1", length])];
    model(inputs, vec![narrow], vec![node("Conv x, w -> y")], &["y"])
}

#[test]
fn empty_output_is_not_verified() {
    // By default, `t` is eight samples, fewer than the kernel has.
    assert!(reason(&convolved("t"), &convolved("t")).contains("`y` has no elements"));
    assert!(verdict(&convolved("400"), &convolved("400")).passed());
}

#[test]
fn renamed_or_reshaped_outputs_are_a_failure() {
    let good = affine([1.0; 3], [0.0; 3]);
    let mut renamed = good.clone();
    renamed.graph_mut().node[1].output[0] = "other".into();
    renamed.graph_mut().output[0].name = Some("other".into());
    let Verdict::Broken { reason } = verdict(&good, &renamed) else {
        panic!()
    };
    assert_eq!(reason, "its outputs are other, and should be y");

    let mut summed = good.clone();
    summed.graph_mut().node[1] = with_int(node("ReduceSum scaled -> y"), "keepdims", 1);
    assert!(
        matches!(verdict(&good, &summed), Verdict::Broken { reason } if reason.contains("should be"))
    );
}

/// A BatchNormalization, in training mode if `mode` is 1.
fn norm(mode: i64) -> Model {
    let node = with_int(
        node("BatchNormalization x, g, b, m, v -> y"),
        "training_mode",
        mode,
    );
    let numbers = ndarray::arr1(&[1.0, 2.0, 3.0]).into_dyn();
    let stored = ["g", "b", "m", "v"].map(|name| floats(name, &numbers.view()));
    model(rows(), stored.into(), vec![node], &["y"])
}

#[test]
fn training_mode_batch_norm_is_not_verified() {
    assert!(verdict(&norm(0), &norm(0)).passed());
    assert!(reason(&norm(1), &norm(0)).contains("in training mode"));
    let mut listed = norm(0);
    listed.proto.opset_import[0].version = Some(13);
    listed.graph_mut().node[0].attribute.clear();
    assert!(verdict(&listed, &listed).passed());
    listed.graph_mut().node[0]
        .output
        .extend(["m2".into(), "v2".into()]);
    assert!(reason(&listed, &norm(0)).contains("in training mode"));

    let mut mixed = norm(0);
    let half = mixed.graph().initializer.iter().map(|tensor| {
        let values = tensor::read_f64(tensor, mixed.externals()).unwrap();
        tensor::make(tensor.name(), DataType::Float16, &values.view()).unwrap()
    });
    mixed.graph_mut().initializer = half.collect();
    assert!(reason(&mixed, &norm(0)).contains("of one type"));
}

/// A product of a matrix with `rows` rows and a square matrix.
fn tall(rows: &str) -> Model {
    let square = floats("w", &ndarray::Array2::ones((64, 64)).into_dyn().view());
    let inputs = vec![value("x", DataType::Float, &[rows, "64"])];
    model(inputs, vec![square], vec![node("MatMul x, w -> y")], &["y"])
}

#[test]
fn run_with_too_many_multiplications_is_not_begun() {
    assert!(verdict(&tall("64"), &tall("64")).passed());
    // The number of elements is not too large, but each element takes part in 64 multiplications.
    assert!(reason(&tall("4194304"), &tall("4194304")).contains("multiplications"));
}

/// A model whose operator `op` reads a value `n` of negative numbers.
fn of_negative(op: &str) -> Model {
    let nodes = vec![node("Abs x -> a"), node("Neg a -> n"), node(op)];
    model(
        vec![value("x", DataType::Float, &["n", "3"])],
        vec![],
        nodes,
        &["y"],
    )
}

#[test]
fn outputs_of_equal_numbers_or_nan_are_not_compared() {
    // The Relu of a negative number is 0, its logarithm is NaN, and its sign is -1.
    for silent in ["Relu n -> y", "Log n -> y", "Sign n -> y"] {
        assert!(
            reason(&of_negative(silent), &of_negative(silent)).contains("two different numbers"),
            "{silent}"
        );
        // Another model whose outputs differ is still found to differ.
        assert!(
            matches!(
                verdict(&of_negative(silent), &of_negative("Exp n -> y")),
                Verdict::Compared(_)
            ),
            "{silent}"
        );
    }
    assert!(verdict(&of_negative("Exp n -> y"), &of_negative("Exp n -> y")).passed());
}

#[test]
fn model_that_does_not_fit_the_sizes_is_not_run() {
    let four = floats("v", &ndarray::arr1(&[1.0, 2.0, 3.0, 4.0]).into_dyn().view());
    let nodes = vec![node("Mul x, v -> m"), node("Shape m -> y")];
    let shape = model(
        vec![value("x", DataType::Float, &["n", "k"])],
        vec![four],
        nodes,
        &["y"],
    );
    assert!(reason(&shape, &shape).contains("does not fit at these sizes"));
    let options = VerifyOptions {
        dims: "k=4".parse().unwrap(),
        ..VerifyOptions::default()
    };
    assert!(compare(&shape, &shape, &options).passed());
}

#[test]
fn shape_outputs_compare_as_integers() {
    let extents = [2, 3].map(i64::to_le_bytes).concat();
    let stored = TensorProto {
        name: Some("y".into()),
        data_type: Some(DataType::Int64.code()),
        dims: vec![2],
        raw_data: Some(extents.into()),
        ..Default::default()
    };
    let inputs = vec![value("x", DataType::Float, &["2", "3"])];
    let read = model(
        inputs.clone(),
        vec![],
        vec![node("Shape x -> s"), node("Identity s -> y")],
        &["y"],
    );
    let constant = model(inputs, vec![stored], vec![], &["y"]);
    assert!(verdict(&read, &constant).passed());
}

/// An input with three floats per row.
fn rows() -> Vec<ValueInfoProto> {
    vec![value("x", DataType::Float, &["n", "3"])]
}

/// A Dropout whose training mode is the value `mode`.
fn dropout(mode: &str) -> Model {
    let on = TensorProto {
        name: Some("on".into()),
        data_type: Some(DataType::Bool.code()),
        raw_data: Some(vec![1].into()),
        ..Default::default()
    };
    let node = node(&format!("Dropout x, , {mode} -> y"));
    model(rows(), vec![on], vec![node], &["y"])
}

#[test]
fn random_operators_are_not_verified() {
    let random = model(
        rows(),
        vec![],
        vec![node("RandomNormalLike x -> y")],
        &["y"],
    );
    assert!(reason(&random, &random).contains("random"));
    assert!(reason(&dropout("on"), &dropout("on")).contains("Dropout"));
}

/// The tolerance of a model with weights of these types.
fn tolerance_of(types: &[DataType]) -> f64 {
    let one = ndarray::arr1(&[1.0]).into_dyn();
    let tensors = types
        .iter()
        .map(|&element| tensor::make("w", element, &one.view()).unwrap())
        .collect();
    default_tolerance(&model(vec![], tensors, vec![], &[]))
}

#[test]
fn coarsest_type_sets_the_tolerance() {
    assert_eq!(tolerance_of(&[DataType::Double]), 1e-9);
    assert_eq!(tolerance_of(&[DataType::Double, DataType::Float]), 1e-4);
    assert_eq!(tolerance_of(&[DataType::Float, DataType::Float16]), 2e-2);
}
