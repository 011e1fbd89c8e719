//! Forms for the sake of one engine.

use unfold::FuseOptions;
use unfold::fold::target::Target;
use unfold::onnx::Model;
use unfold::onnx::tensor::DataType;
use unfold::prove::{Proof, prove};

use crate::common::declared;
use crate::common::text::model;
use crate::{operators, options, same};

/// A normalizer and two products with biases, of any batch.
fn products(shape: &str, bias: &str) -> Model {
    model(&format!(
        "input x {shape}
         const s 6 = 1 2 3 1 2 3
         weight v 6 6
         shift c 6
         weight w 6 3
         shift b {bias}
         m = Mul(x, s)
         q = MatMul(m, v)
         k = Add(c, q)
         r = Relu(k)
         p = MatMul(r, w)
         y = Add(p, b)
         output y"
    ))
}

/// The result for an engine, which is equal, proved, and stays as it is.
fn for_engine(target: Target, model: &Model) -> Model {
    let options = FuseOptions { target, ..options() };
    let fused = unfold::fuse(model, &options).unwrap();
    same(model, &fused.model, 0.0);
    let proof = prove(model, &fused.model, &fused.plan.tensors, &Default::default());
    assert!(matches!(proof, Proof::Proved { .. }), "{proof:?}");
    let again = unfold::fuse(&fused.model, &options).unwrap();
    assert_eq!(again.model.proto, fused.model.proto);
    fused.model
}

#[test]
fn a_product_of_an_open_batch_and_its_bias_are_one_gemm_where_onnxruntime_asks_for_it() {
    let gemm = ["Reshape", "Gemm", "Relu", "Gemm", "Reshape"];
    for shape in ["N 4 6", "2 N 4 6", "N 2 4 6"] {
        let before = products(shape, "3");
        assert_eq!(operators(&for_engine(Target::Onnxruntime, &before)), gemm);
        assert_eq!(operators(&unfold::fuse(&before, &options()).unwrap().model).len(), 5);
    }
}

#[test]
fn what_is_a_gemm_anyway_or_none_stays_a_product() {
    let plain = ["MatMul", "Add", "Relu", "MatMul", "Add"];
    // onnxruntime finds these; of two open extents nothing tells which is which; and one bias is for each row.
    for (shape, bias) in [("2 4 6", "3"), ("N 6", "3"), ("N M 6", "3")] {
        assert_eq!(operators(&for_engine(Target::Onnxruntime, &products(shape, bias))), plain);
    }
    let rows = operators(&for_engine(Target::Onnxruntime, &products("N 4 6", "4 1"))).join(" ");
    assert!(rows.ends_with("Relu MatMul Add"), "{rows}");
}

/// A layer that reads windows of an image, which are cut out like this.
fn windows(cut: &str, weight: &str) -> Model {
    model(&format!(
        "input x N 4 4 6
         {cut}
         weight w {weight}
         shift b 5
         q = MatMul(r, w)
         y = Add(b, q)
         output y"
    ))
}

const CUT: &str = "ints s 6 = -1 2 2 2 2 6
    ints t 3 = -1 4 6
    c = Reshape(x, s)
    p = Transpose(c) perm=[0,1,3,2,4,5]
    r = Reshape(p, t)";

#[test]
fn a_layer_comes_before_windows_where_tract_asks_for_it() {
    let kept = "ints s 6 = 0 2 2 2 2 6
        ints t 4 = 0 0 8 -1
        c = Reshape(x, s) allowzero=0
        p = Transpose(c) perm=[0,1,3,2,4,5]
        r = Reshape(p, t)";
    for cut in [CUT, kept] {
        let before = windows(cut, "6 5");
        let after = for_engine(Target::Tract, &before);
        assert_eq!(operators(&after), ["MatMul", "Add", "Reshape", "Transpose", "Reshape"]);
        assert!(!unfold::fuse(&before, &options()).unwrap().changed());
    }
}

#[test]
fn a_layer_stays_behind_what_are_no_windows_of_its_tokens() {
    let no_tokens = "ints s 4 = -1 4 2 12
        ints t 3 = -1 16 6
        c = Reshape(x, s)
        p = Transpose(c) perm=[0,2,1,3]
        r = Reshape(p, t)";
    let channels = "ints s 3 = -1 16 6
        ints t 3 = -1 16 6
        c = Reshape(x, s)
        p = Transpose(c) perm=[0,2,1]
        r = Reshape(p, t)";
    let no_order = "ints s 6 = -1 2 2 2 2 6
        ints t 3 = -1 4 6
        c = Reshape(x, s)
        m = Relu(c)
        r = Reshape(m, t)";
    let read_twice = format!("{CUT}\noutput p");
    for cut in [no_tokens, channels, no_order, &read_twice] {
        let before = windows(cut, "6 5");
        let after = for_engine(Target::Tract, &before);
        assert_eq!(operators(&after)[3..], ["MatMul", "Add"], "{cut}");
    }
}

/// The rows that a Gemm makes go through what a positive scale has passed.
#[test]
fn a_scale_that_passes_back_is_proved_though_the_rows_are_of_another_shape() {
    let before = model(
        "input x N 3 4
         weight w 4 4
         shift b 4
         weight v 4 4
         shift c 4
         const k 1 = 1.5
         m = MatMul(x, w)
         a = Add(m, b)
         r = Relu(a)
         t = Mul(r, k)
         q = Sigmoid(t)
         p = MatMul(q, v)
         y = Add(p, c)
         output y",
    );
    let options = FuseOptions { target: Target::Onnxruntime, ..options() };
    let fused = unfold::fuse(&before, &options).unwrap();
    assert_eq!(operators(&fused.model), ["Reshape", "Gemm", "Relu", "Sigmoid", "Gemm", "Reshape"]);
    let proof = prove(&before, &fused.model, &fused.plan.tensors, &Default::default());
    assert!(matches!(proof, Proof::Proved { .. }), "{proof:?}");
}

/// Its memory is warm where it cannot tell that two shapes are the same.
#[test]
fn open_extents_of_values_within_are_not_told_to_onnxruntime() {
    let mut before = model("input x N 6\nt = Tanh(x)\nr = Relu(t)\nu = Abs(r)\ny = Neg(u)\noutput y");
    let names = [("t", ["N", "6"]), ("r", ["3", "6"]), ("u", ["N", "6"])];
    let told = names.map(|(name, dims)| declared(name, DataType::Float, &dims));
    before.graph_mut().value_info = told.to_vec();
    let shapes = |model: &Model| -> Vec<bool> {
        let told = model.graph().value_info.iter();
        told.map(|info| info.r#type.as_ref().unwrap().tensor_type.as_ref().unwrap().shape.is_some()).collect()
    };
    assert_eq!(shapes(&for_engine(Target::Onnxruntime, &before)), [false, true, false]);
    assert_eq!(for_engine(Target::Portable, &before).graph().value_info, before.graph().value_info);
    let options = FuseOptions { target: Target::Onnxruntime, ..options() };
    let fused = unfold::fuse(&before, &options).unwrap();
    assert!(fused.changed() && fused.plan.tidy.untold == 2);
    assert_eq!(fused.model.graph().output, before.graph().output);
}
