//! Linear operators of onnxruntime with fused activations absorb affines of their input.

use ndarray::{Array2, Ix1, Ix2};
use unfold::onnx::tensor::read_f64;
use unfold::onnx::{Externals, Model};
use unfold::refusal::Reason;

use crate::common::text::model;
use crate::common::{fuse, initializer, is_proved_or_listed, operators};
use crate::kept;

/// A normalizer, and an operator that reads it.
fn behind(input: &str, along: &str, steps: &str) -> Model {
    model(&format!(
        "input x {input}
         scale g {along}
         shift t {along}
         n = Mul(x, g)
         m = Add(n, t)
         {steps}
         output y"
    ))
}

/// The weight and the bias of the last operator, and the affine before it.
fn numbers(model: &Model, weight: &str, bias: &str) -> (Array2<f64>, Vec<f64>) {
    let read = |name: &str| read_f64(initializer(model, name), &Externals::none()).unwrap();
    let weight = read(weight).into_dimensionality::<Ix2>().unwrap();
    (
        weight,
        read(bias).into_dimensionality::<Ix1>().unwrap().to_vec(),
    )
}

/// Asserts that a weight `[channels, outputs]` has absorbed the affine: `diag(s)·W` and `beta·b +
/// t·W`.
fn assert_absorbed(before: &Model, bias: Option<&str>, beta: f64) {
    let after = fuse(before);
    assert!(after.plan.sites[0].is_folded(), "{:#?}", after.plan.sites);
    let read = |name: &str| read_f64(initializer(before, name), &Externals::none()).unwrap();
    let (scale, shift) = (
        read("g").into_raw_vec_and_offset().0,
        read("t").into_raw_vec_and_offset().0,
    );
    let weight = read("w").into_dimensionality::<Ix2>().unwrap();
    let node = &after.model.graph().node[0];
    let (made, added) = numbers(&after.model, &node.input[1], &node.input[2]);
    let own = bias.map(|bias| read(bias).into_raw_vec_and_offset().0);
    for (output, &added) in added.iter().enumerate() {
        let mut sum = own.as_ref().map_or(0.0, |own| beta * own[output]);
        for channel in 0..scale.len() {
            assert!(
                (made[[channel, output]] - scale[channel] * weight[[channel, output]]).abs() < 1e-6
            );
            sum += shift[channel] * weight[[channel, output]];
        }
        assert!((added - sum).abs() < 1e-5, "{added} {sum}");
    }
    assert!(is_proved_or_listed(before, &after).is_ok());
}

#[test]
fn fused_attention_absorbs_an_affine_of_its_input() {
    let with = |more: &str, bias: &str| {
        behind(
            "batch 5 4",
            "4",
            &format!(
                "weight w 4 12
                 shift b 12
                 indices mask batch
                 y = com.microsoft.Attention(m, w, {bias}, mask) num_heads=2 {more}"
            ),
        )
    };
    assert_absorbed(&with("unidirectional=1", "b"), Some("b"), 1.0);
    assert_absorbed(&with("", ""), None, 1.0);
    assert_eq!(
        kept(&with("fancy=1", "b")).0,
        Reason::Attribute("fancy".into())
    );
    // A scale that varies only from token to token is not a factor of the weight.
    let tokens = behind(
        "2 5 4",
        "5 1",
        "weight w 4 12\n shift b 12\n y = com.microsoft.Attention(m, w, b) num_heads=2",
    );
    assert_eq!(kept(&tokens).0, Reason::WrongAxis);
    // An affine after the Attention does not fold into its weights, because nothing moves backward
    // through it.
    let ahead = model(
        "input x batch 5 4
         weight w 4 12
         shift b 12
         scale g 4
         shift t 4
         a = com.microsoft.Attention(x, w, b) num_heads=2
         n = Mul(a, g)
         m = Add(n, t)
         y = Relu(m)
         output y",
    );
    assert_eq!(kept(&ahead).1, Some(Reason::NotLinear("Attention".into())));
}

#[test]
fn fused_gemm_and_fused_conv_absorb_an_affine_of_their_input() {
    let gemm = |added: &str| {
        behind(
            "batch 4",
            "4",
            &format!(
                "weight w 4 3\n {added}\n y = com.microsoft.FusedGemm(m, w, b) activation=Relu"
            ),
        )
    };
    assert_absorbed(&gemm("shift b 3"), Some("b"), 1.0);
    // `beta` scales the summand, and nothing scales the output.
    let scaled = |bias: &str| {
        let attributes = "activation=Relu beta=0.5";
        let text = format!(
            "weight w 4 3\n shift b 3\n y = com.microsoft.FusedGemm(m, w{bias}) {attributes}"
        );
        behind("batch 4", "4", &text)
    };
    assert_absorbed(&scaled(", b"), Some("b"), 0.5);
    assert_absorbed(&scaled(""), None, 0.5);
    // The summand is not a constant, so the shift stays before the product.
    let before = gemm("input b batch 3");
    let after = fuse(&before);
    assert_eq!(operators(&after.model), ["Add", "FusedGemm"]);
    assert!(is_proved_or_listed(&before, &after).is_ok());

    let conv = |pads: &str, added: &str| {
        behind(
            "2 4 6 6",
            "4 1 1",
            &format!(
                "weight w 3 4 2 2\n shift b 3\n y = com.microsoft.FusedConv(m, w, b{added}) activation=Relu {pads}"
            ),
        )
    };
    for added in ["", ", z\n input z 2 3 5 5"] {
        let (call, input) = added.split_once('\n').unwrap_or((added, ""));
        let mut before = conv("", call);
        if !input.is_empty() {
            before = model(&format!(
                "{input}
                 input x 2 4 6 6
                 scale g 4 1 1
                 shift t 4 1 1
                 n = Mul(x, g)
                 m = Add(n, t)
                 weight w 3 4 2 2
                 shift b 3
                 y = com.microsoft.FusedConv(m, w, b, z) activation=Relu
                 output y"
            ));
        }
        let after = fuse(&before);
        assert!(after.plan.sites[0].is_folded(), "{:#?}", after.plan.sites);
        assert_eq!(operators(&after.model), ["FusedConv"]);
        assert!(is_proved_or_listed(&before, &after).is_ok());
    }
    // At the border, the shift has another value, and an Add after the Conv would be after the
    // activation.
    let before = conv("pads=[1,1,0,0]", "");
    let after = fuse(&before);
    assert_eq!(operators(&after.model), ["Add", "FusedConv"]);
    assert!(is_proved_or_listed(&before, &after).is_ok());
}

#[test]
fn blockwise_dequantized_weight_absorbs_an_affine() {
    let before = model(
        "opset 21
         input x batch 5 4
         ints q 4 8 = 1 2 3 4 5 6 7 8 1 2 3 4 5 6 7 8 1 2 3 4 5 6 7 8 1 2 3 4 5 6 7 8
         const s 2 8 = 1 2 1 2 1 2 1 2 1 2 1 2 1 2 1 2
         scale g 8
         shift t 8
         weight w 8 3
         d = DequantizeLinear(q, s) axis=0 block_size=2
         h = MatMul(x, d)
         n = Mul(h, g)
         m = Add(n, t)
         y = MatMul(m, w)
         output y",
    );
    let after = fuse(&before);
    assert!(after.plan.sites[0].is_folded(), "{:#?}", after.plan.sites);
    assert!(is_proved_or_listed(&before, &after).is_ok());
}
