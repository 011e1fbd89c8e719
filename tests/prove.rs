//! Checks that results of folding are proved, and that changed models are not.

#[path = "prove/bodies.rs"]
mod bodies;
mod common;
#[path = "prove/factors.rs"]
mod factors;
#[path = "prove/false_claims.rs"]
mod false_claims;
#[path = "prove/functions.rs"]
mod functions;
#[path = "prove/integers.rs"]
mod integers;
#[path = "prove/judged.rs"]
mod judged;
#[path = "prove/masks.rs"]
mod masks;
#[path = "prove/operators.rs"]
mod operators;
#[path = "prove/planted.rs"]
mod planted;
#[path = "prove/points.rs"]
mod points;
#[path = "prove/sizes.rs"]
mod sizes;
#[path = "prove/true_claims.rs"]
mod true_claims;

use std::path::Path;

use ndarray::ArrayD;
use unfold::onnx::{DataType, Model, tensor};
use unfold::plan::Stored;
use unfold::prove::{Proof, ProveOptions, prove};
use unfold::recipe::Recipe;

use common::{declared, floats, text};

fn digits() -> Vec<(String, Model)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/digits");
    let files = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let models = files.filter(|path| {
        path.extension()
            .is_some_and(|extension| extension == "onnx")
    });
    models
        .map(|path| {
            (
                path.file_stem().unwrap().display().to_string(),
                Model::open(&path).unwrap(),
            )
        })
        .collect()
}

fn proof(original: &Model, fused: &Model, tensors: &[Stored]) -> Proof {
    proof_with(original, fused, tensors, &ProveOptions::default())
}

/// The verdict on a copy with other metadata, because an identical file is proved without an
/// evaluation.
fn proof_with(
    original: &Model,
    fused: &Model,
    tensors: &[Stored],
    options: &ProveOptions,
) -> Proof {
    let mut fused = fused.clone();
    fused.graph_mut().doc_string = Some("another file".to_owned());
    prove(original, &fused, tensors, options)
}

fn is_proved(proof: &Proof) -> bool {
    matches!(proof, Proof::Proved { .. })
}

#[test]
fn folded_digits_models_are_proved() {
    for (name, model) in digits() {
        let fused = unfold::fuse(&model, &Default::default()).unwrap();
        match proof(&model, &fused.model, &fused.plan.tensors) {
            Proof::Proved {
                points,
                bound,
                tensors,
            } => {
                // The fold of a DTN moves a scale through a root, so that one point does not suffice.
                let most = if points == 1 { 1e-6 } else { 2e-5 };
                assert!(points == 1 || points == 16 && name.starts_with("dtn"));
                assert!(bound > 0.0 && bound < most, "{name}: {bound}");
                assert_eq!(tensors, fused.plan.tensors.len(), "{name}");
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn rewritten_graph_is_proved_and_a_different_one_is_not() {
    let before = text::model(
        "input x batch 4\nweight w 4 3\nscale s 3\ny = MatMul(x, w)\nz = Mul(y, s)\nt = Tanh(z)\nq = Softmax(t)\noutput q",
    );
    let same = text::model(
        "input x batch 4\nweight w 4 3\nscale s 3\nv = Mul(w, s)\nz = MatMul(x, v)\nt = Tanh(z)\nq = Softmax(t)\noutput q",
    );
    let shifted = text::model(
        "input x batch 4\nweight w 4 3\nscale s 3\nconst c 1 = 5\nv = Mul(s, w)\nz = MatMul(x, v)\nt = Tanh(z)\nu = Add(t, c)\nq = Softmax(u)\noutput q",
    );
    let other = text::model(
        "input x batch 4\nweight w 4 3\nscale s 3\ny = MatMul(x, w)\nt = Tanh(y)\nz = Mul(t, s)\nq = Softmax(z)\noutput q",
    );
    assert!(is_proved(&proof(&before, &same, &[])));
    // The original lacks the constant. If it has the constant, the prover knows that Softmax
    // ignores the shift.
    assert!(!is_proved(&proof(&before, &shifted, &[])));
    let mut before_too = before.clone();
    before_too
        .graph_mut()
        .initializer
        .push(common::initializer(&shifted, "c").clone());
    assert!(is_proved(&proof(&before_too, &shifted, &[])));
    match proof(&before, &other, &[]) {
        Proof::Disproved { at, site: None, .. } => assert_eq!(at, "t"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn changed_output_order_or_types_are_disproved() {
    let model = text::model("input x batch 4\ny = Tanh(x)\nz = Exp(x)\noutput y z");
    let mut exchanged = model.clone();
    exchanged.graph_mut().output.swap(0, 1);
    assert_eq!(first_difference(&model, &exchanged), "z");
    let mut double = model.clone();
    double.graph_mut().output[1] = declared("z", DataType::Double, &["batch", "4"]);
    assert_eq!(first_difference(&model, &double), "z");
    let mut half = model.clone();
    half.graph_mut().input[0] = declared("x", DataType::Float16, &["batch", "4"]);
    assert_eq!(first_difference(&model, &half), "x");
}

/// The first value in which two models differ.
fn first_difference(one: &Model, other: &Model) -> String {
    match proof(one, other, &[]) {
        Proof::Disproved { at, .. } => at,
        other => panic!("{other:?}"),
    }
}

/// Adds a tensor that a recipe computes, for site 3. Returns the model and the new tensor with its
/// recipe.
fn with_new(
    mut model: Model,
    original: &Model,
    name: &str,
    recipe: Recipe,
) -> (Model, Vec<Stored>) {
    let numbers = computed(&recipe, original);
    model.graph_mut().initializer.push(floats(name, &numbers));
    (
        model,
        vec![Stored {
            name: name.into(),
            data_type: DataType::Float,
            recipe,
            replaces: None,
            sites: vec![3],
        }],
    )
}

/// The elements that a recipe computes.
fn computed(recipe: &Recipe, original: &Model) -> ArrayD<f64> {
    let read = |name: &str| {
        let mut tensors = original.graph().initializer.iter();
        let tensor = tensors.find(|tensor| tensor.name() == name).unwrap();
        Ok(tensor::read_f64(tensor, original.externals()).unwrap())
    };
    unfold::recipe::evaluate(recipe, &read).unwrap()
}

/// Whether the second model is disproved, or left undecided.
fn is_not_proved(one: &Model, other: &Model) -> bool {
    assert!(is_proved(&proof(one, one, &[])));
    !is_proved(&proof(one, other, &[]))
}

fn hardmax(opset: i64) -> Model {
    text::model(&format!(
        "opset {opset}\ninput x 2 3 4\ny = Hardmax(x)\noutput y"
    ))
}

#[test]
fn defaults_declared_shapes_and_opset_are_compared() {
    let plain = text::model("input x batch 4\ninput k 4\nscale k 4\ny = Mul(x, k)\noutput y");
    let mut changed = plain.clone();
    let tensor = changed
        .graph_mut()
        .initializer
        .iter_mut()
        .find(|tensor| tensor.name() == "k")
        .unwrap();
    let mut raw = tensor.raw_data.clone().unwrap().to_vec();
    raw[0] ^= 1;
    tensor.raw_data = Some(raw.into());
    assert!(is_not_proved(&plain, &changed));
    let fixed = text::model("input x 2 4\ninput k 4\nscale k 4\ny = Mul(x, k)\noutput y");
    assert!(is_not_proved(&plain, &fixed));
    assert!(is_not_proved(&hardmax(12), &hardmax(13)));
}

fn cast_to(code: i64) -> Model {
    text::model(&format!("input x batch 3\ny = Cast(x) to={code}\noutput y"))
}

#[test]
fn outputs_of_different_types_are_not_proved() {
    assert!(is_not_proved(&cast_to(1), &cast_to(10)));
    assert!(is_not_proved(&cast_to(11), &cast_to(1)));
}
