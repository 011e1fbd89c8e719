//! Forms for the sake of one engine.

use unfold::FuseOptions;
use unfold::fold::target::Target;
use unfold::onnx::Model;
use unfold::prove::{Proof, prove};

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

fn for_onnxruntime(model: &Model) -> Model {
    let options = FuseOptions { target: Target::Onnxruntime, ..options() };
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
    let gemm = ["Reshape", "Gemm", "Reshape", "Relu", "Reshape", "Gemm", "Reshape"];
    for shape in ["N 4 6", "2 N 4 6", "N 2 4 6"] {
        let before = products(shape, "3");
        assert_eq!(operators(&for_onnxruntime(&before)), gemm);
        assert_eq!(operators(&unfold::fuse(&before, &options()).unwrap().model).len(), 5);
    }
}

#[test]
fn what_is_a_gemm_anyway_or_none_stays_a_product() {
    let plain = ["MatMul", "Add", "Relu", "MatMul", "Add"];
    // onnxruntime finds these; of two open extents nothing tells which is which; and one bias is for each row.
    for (shape, bias) in [("2 4 6", "3"), ("N 6", "3"), ("N M 6", "3")] {
        assert_eq!(operators(&for_onnxruntime(&products(shape, bias))), plain);
    }
    let rows = operators(&for_onnxruntime(&products("N 4 6", "4 1"))).join(" ");
    assert!(rows.ends_with("Relu MatMul Add"), "{rows}");
}
