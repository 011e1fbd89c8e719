//! `unfold reduce`: the smallest parts of two models that still differ.

use super::common::judge::inputs;
use super::common::numbers::Kind;
use super::common::reference;
use super::diff::{CHAIN, saved};
use super::*;

/// Reduces two models that differ, and returns both parts.
fn parts(first: &Path, second: &Path, folder: &Path) -> [Model; 2] {
    reduced(first, second, folder, DIFFERS)
}

/// Reduces two models, asserts the exit code, and returns both parts.
fn reduced(first: &Path, second: &Path, folder: &Path, code: i32) -> [Model; 2] {
    let run = unfold([&"reduce", &first, &second, &"-o", &folder]);
    assert_eq!(run.code, code, "{}{}", run.stdout, run.stderr);
    assert!(run.stdout.contains("a.onnx: "), "{}", run.stdout);
    ["a.onnx", "b.onnx"].map(|name| Model::open(folder.join(name)).unwrap())
}

fn operators(model: &Model) -> Vec<&str> {
    let nodes = model.graph().node.iter();
    nodes.map(|node| node.op_type()).collect()
}

/// Asserts that both parts have the same inputs, and that their outputs differ in an independent
/// run.
fn assert_differ(parts: &[Model; 2]) {
    let [first, second] = parts;
    assert_eq!(first.graph().input, second.graph().input);
    let env = inputs(first, 2, true, Kind::Real);
    let [before, after] = [first, second].map(|model| reference::run(model, &env).unwrap());
    let [before, after] = [&before[0], &after[0]].map(|value| value.floats().unwrap().clone());
    assert_eq!(before.shape(), after.shape());
    let difference = (&before - &after).mapv(f64::abs).into_iter();
    assert!(difference.fold(0.0, f64::max) > 1e-2);
}

#[test]
fn reduce_writes_the_operator_that_differs_with_its_inputs() {
    let wrong = "
        input in b 4
        const weight 4 4 = 1 2 0 1 0 1 3 0 2 0 1 1 1 1 0 2
        const bias 4 = 1 2 3 9
        v1 = MatMul(in, weight)
        v2 = Add(v1, bias)
        v3 = Relu(v2)
        out = Exp(v3)
        output out";
    let (folder, [one, two]) = saved([CHAIN, wrong]);
    let folder = folder.path().join("parts");
    let parts = parts(&one, &two, &folder);
    assert_eq!(operators(&parts[0]), ["Add"]);
    assert_eq!(operators(&parts[1]), ["Add"]);
    assert_eq!(parts[0].graph().input[0].name(), "m");
    assert_differ(&parts);
    // The file has the inputs of both parts.
    let run = unfold([
        &"bench",
        &folder.join("b.onnx"),
        &"--rounds",
        &"1",
        &"--input",
        &folder.join("inputs.npz"),
    ]);
    assert_eq!(run.code, DONE, "{}", run.stderr);
}

#[test]
fn reduce_finds_an_operator_that_the_other_model_lacks() {
    let without = CHAIN
        .replace("a = Add(m, c)\n", "")
        .replace("Relu(a)", "Relu(m)");
    let (folder, [one, two]) = saved([CHAIN, &without]);
    let parts = parts(&one, &two, &folder.path().join("parts"));
    assert_eq!(operators(&parts[0]), ["Add", "Relu"]);
    assert_eq!(operators(&parts[1]), ["Relu"]);
    assert_differ(&parts);
}

/// Only the first operator differs, and the extents of its results do too.
#[test]
fn reduce_ends_at_the_only_operator_that_differs() {
    let reshaped = |extents: &str| {
        format!(
            "input in 2 6
             ints e 2 = {extents}
             ints f 1 = 12
             r = Reshape(in, e)
             t = Transpose(r) perm=[1,0]
             out = Reshape(t, f)
             output out"
        )
    };
    let (folder, [one, two]) = saved([&reshaped("3 4"), &reshaped("4 3")]);
    let parts = parts(&one, &two, &folder.path().join("parts"));
    for part in &parts {
        assert_eq!(operators(part), ["Reshape"]);
    }
    let env = inputs(&parts[0], 2, true, Kind::Real);
    let shapes = parts.each_ref().map(|part| {
        let outputs = reference::run(part, &env).unwrap();
        outputs[0].floats().unwrap().shape().to_vec()
    });
    assert_eq!(shapes, [[3, 4], [4, 3]]);
}

#[test]
fn reduce_of_models_that_differ_in_casts_writes_the_operators_around_a_cast() {
    let with_casts = CHAIN.replace(
        "r = Relu(a)",
        "h = Cast(a) to=10\n    g = Mul(h, h)\n    f = Cast(g) to=1\n    r = Relu(f)",
    );
    let without = CHAIN.replace("r = Relu(a)", "g = Mul(a, a)\n    r = Relu(g)");
    let removed = CHAIN.replace(
        "r = Relu(a)",
        "h = Cast(a) to=10\n    f = Cast(h) to=1\n    r = Relu(f)",
    );
    let (folder, [casts, floats, pair, none]) = saved([&with_casts, &without, &removed, CHAIN]);
    let folder = folder.path().join("parts");
    let expected: [(_, _, [&[&str]; 2]); 4] = [
        (&casts, &floats, [&["Cast", "Mul", "Cast"], &["Mul"]]),
        (&floats, &casts, [&["Mul"], &["Cast", "Mul", "Cast"]]),
        (&pair, &none, [&["Cast", "Cast"], &["Identity"]]),
        (&none, &pair, [&["Identity"], &["Cast", "Cast"]]),
    ];
    for (first, second, nodes) in expected {
        let parts = reduced(first, second, &folder, CASTS);
        assert_eq!(parts.each_ref().map(operators), nodes);
        let inputs = &parts[0].graph().input;
        assert_eq!(inputs, &parts[1].graph().input);
        let names: Vec<&str> = inputs.iter().map(|input| input.name()).collect();
        assert_eq!(names, ["a"]);
        let outputs = parts.each_ref().map(|part| part.graph().output[0].name());
        assert_eq!(outputs[0], outputs[1]);
        assert_ne!(outputs[0], "a");
    }
}

#[test]
fn reduce_of_equal_models_writes_nothing() {
    let (folder, [one, two]) = saved([CHAIN, CHAIN]);
    let run = unfold([&"reduce", &one, &two, &"-o", &folder.path().join("parts")]);
    assert_eq!(run.code, DONE, "{}", run.stderr);
    assert!(
        run.stdout.ends_with("nothing was written\n"),
        "{}",
        run.stdout
    );
    assert_eq!(names_in(&folder), ["model1.onnx", "model2.onnx"]);
}
