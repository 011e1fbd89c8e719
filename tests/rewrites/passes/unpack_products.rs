//! A packed product becomes one product for each part, with twins in which it stays.

use unfold::Target;
use unfold::onnx::Model;

use super::legalize::for_engine;
use crate::common::text::model;
use crate::operators;

/// The scores of queries and keys times values, all three computed by one product. The lines
/// `apart` take them apart.
fn attention(apart: &str) -> Model {
    model(&format!(
        "input x N 5 8
         weight w 8 192
         shift b 192
         ints s 5 = -1 5 3 2 32
         ints one 1 = 1
         ints ones 3 = 1 1 1
         ints zero 1 = 0
         ints two 1 = 2
         ints three 1 = 3
         p = MatMul(x, w)
         a = Add(p, b)
         h = Reshape(a, s)
         t = Transpose(h) perm=[2,0,3,1,4]
         {apart}
         u = Transpose(k) perm=[0,1,3,2]
         z = MatMul(q, u)
         y = MatMul(z, v)
         output y"
    ))
}

const SPLIT: &str = "c, d, e = Split(t, ones) axis=0
    q = Squeeze(c, zero)
    k = Squeeze(d, zero)
    v = Squeeze(e, zero)";

const SLICES: &str = "c = Slice(t, zero, one, zero)
    d = Slice(t, one, two, zero)
    e = Slice(t, two, three, zero)
    q = Squeeze(c, zero)
    k = Squeeze(d, zero)
    v = Squeeze(e, zero)";

const GATHERS: &str = "ints i0 = 0
    ints i1 = 1
    ints i2 = -1
    q = Gather(t, i0) axis=0
    k = Gather(t, i1) axis=0
    v = Gather(t, i2) axis=0";

#[test]
fn packed_queries_keys_and_values_become_three_products() {
    for apart in [SPLIT, SLICES, GATHERS] {
        let after = for_engine(Target::Cpu, &attention(apart));
        let mut operators = operators(&after);
        operators.sort_unstable();
        let expected = [
            "Gemm",
            "Gemm",
            "Gemm",
            "MatMul",
            "MatMul",
            "Reshape",
            "Reshape",
            "Reshape",
            "Reshape",
            "Transpose",
            "Transpose",
            "Transpose",
        ];
        assert_eq!(operators, expected, "{apart}");
    }
}

/// A gated layer: one half of the channels of a product times the other half.
fn gated(input: &str, width: usize, apart: &str) -> Model {
    model(&format!(
        "input x {input}
         weight w 8 {width}
         ints minus 1 = -1
         ints zero 1 = 0
         ints from 1 = 64
         ints to 1 = 128
         a = MatMul(x, w)
         {apart}
         n = Neg(c)
         y = Mul(n, d)
         output y"
    ))
}

const HALVES: &str = "c = Slice(a, zero, from, minus)
    d = Slice(a, from, to, minus)";

#[test]
fn gate_and_value_become_two_products() {
    for target in [Target::Cpu, Target::Onnxruntime, Target::Tract] {
        let after = for_engine(target, &gated("N 5 8", 128, HALVES));
        let mut operators = operators(&after);
        operators.sort_unstable();
        assert_eq!(operators, ["MatMul", "MatMul", "Mul", "Neg"]);
    }
}

#[test]
fn packed_product_stays() {
    let narrow = "c, d = Split(a) axis=-1";
    let read = "c = Slice(a, zero, from, minus)
        d = Slice(a, from, to, minus)
        z = Relu(a)
        output z";
    let portable = (Target::Portable, "N 5 8", 128, HALVES);
    let kept = [
        portable,
        (Target::Cpu, "N 5 8", 126, narrow),
        (Target::Cpu, "N 5 8", 128, read),
        (Target::Cpu, "N 1 8", 128, HALVES),
        (Target::Cpu, "N 8", 128, HALVES),
    ];
    for (target, input, width, apart) in kept {
        let after = for_engine(target, &gated(input, width, apart));
        let products = operators(&after)
            .iter()
            .filter(|op| **op == "MatMul")
            .count();
        assert_eq!(products, 1, "{target} {input} {width} {apart}");
    }
}

#[test]
fn parts_that_share_a_column_stay_in_one_product() {
    let shared = "c = Slice(a, zero, to, minus)
        d = Slice(a, from, to, minus)
        n = Relu(c)
        m = Neg(d)
        output m";
    let before = model(&format!(
        "input x N 5 8
         weight w 8 192
         ints minus 1 = -1
         ints zero 1 = 0
         ints from 1 = 64
         ints to 1 = 128
         a = MatMul(x, w)
         {shared}
         output n"
    ));
    let after = for_engine(Target::Cpu, &before);
    let products = operators(&after)
        .iter()
        .filter(|op| **op == "MatMul")
        .count();
    assert_eq!(products, 1);
}
