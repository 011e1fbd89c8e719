//! A pointwise Conv over tokens along its channels, as in gMLP and ResMLP. A spatial scale moves
//! through it, as through a MatMul with the weight on the left. An Add after it holds the shift.
//! MatMul with the weight on the left; an Add after it holds the shift.

use unfold::onnx::{DataType, Model};
use unfold::refusal::Reason;

use crate::becomes;
use crate::common::text::model;
use crate::common::{declared, fuse, operators, retype};
use crate::{fused, kept};

/// A scale of the channels, which are the places of the convolution, and a product that absorbs it.
fn forward(weight: &str, attributes: &str) -> Model {
    model(&format!(
        "input x batch 6 8
         scale g 8
         n = Mul(x, g)
         weight w {weight}
         c = Conv(n, w) {attributes}
         ints flat 3 = 0 0 -1
         v = Reshape(c, flat)
         weight a 8 3
         z = MatMul(v, a)
         y = Relu(z)
         output y"
    ))
}

/// A product, the convolution, and a scale after it.
fn backward(lines: &str) -> Model {
    model(&format!(
        "input x batch 6 3
         weight a 3 8
         weight w 5 6 1
         h = MatMul(x, a)
         {lines}
         y = Sigmoid(d)
         output y"
    ))
}

#[test]
fn spatial_scale_passes_pointwise_conv_forward() {
    let straight = "input x batch 6 8
         scale g 8
         n = Mul(x, g)
         weight w 5 6 1
         c = Conv(n, w)
         weight a 8 3
         z = MatMul(c, a)
         y = Relu(z)
         output y";
    becomes(&model(straight), &["Conv", "MatMul", "Relu"]);
    let grouped = straight
        .replace("5 6 1", "4 3 1")
        .replace("Conv(n, w)", "Conv(n, w) group=2");
    becomes(&model(&grouped), &["Conv", "MatMul", "Relu"]);
}

#[test]
fn spatial_scale_passes_pointwise_conv_backward_and_shift_stays_in_an_add() {
    becomes(
        &backward("scale g 8\nc = Conv(h, w)\nd = Mul(c, g)"),
        &["MatMul", "Conv", "Sigmoid"],
    );
    let affine = "scale g 8\nshift t 8\nc = Conv(h, w)\nn = Mul(c, g)\nd = Add(n, t)";
    becomes(&backward(affine), &["MatMul", "Conv", "Add", "Sigmoid"]);
    let biased =
        "scale g 8\nshift t 8\nweight b 5\nc = Conv(h, w, b)\nn = Mul(c, g)\nd = Add(n, t)";
    becomes(&backward(biased), &["MatMul", "Conv", "Add", "Sigmoid"]);
    // For images, the scale is along rows and columns.
    let image = "input x batch 3 4 5
         weight v 6 3 1 1
         weight w 2 6 1 1
         scale g 4 5
         h = Mul(x, g)
         s = Relu(h)
         c = Conv(s, v)
         d = Conv(c, w)
         y = Sigmoid(d)
         output y";
    fused(&model(image));
}

#[test]
fn res_mlp_block_keeps_one_mul_and_one_add() {
    let block = "input x batch 6 8
         r = Relu(x)
         scale g 8
         shift t 8
         n = Mul(r, g)
         h = Add(n, t)
         weight w 5 6 1
         weight b 5
         c = Conv(h, w, b)
         scale l 8
         d = Mul(c, l)
         y = Sigmoid(d)
         output y";
    let after = fused(&model(block)).model;
    assert_eq!(operators(&after), ["Relu", "Mul", "Conv", "Add", "Sigmoid"]);
}

#[test]
fn spatial_scale_stops_at_padding_stride_bias_and_conv_transpose() {
    for (weight, attributes) in [
        ("5 6 3", "pads=[1,1]"),
        ("5 6 1", "pads=[1,1] strides=[1]"),
        ("5 6 2", "auto_pad=SAME_UPPER"),
    ] {
        assert_eq!(
            kept(&forward(weight, attributes)).0,
            Reason::WrongAxis,
            "{weight} {attributes}"
        );
    }
    let strided = backward("scale g 4\nc = Conv(h, w) strides=[2]\nd = Mul(c, g)");
    assert_eq!(kept(&strided).1, Some(Reason::WrongAxis));
    let transposed = backward("weight v 6 5 1\nscale g 8\nc = ConvTranspose(h, v)\nd = Mul(c, g)");
    assert_eq!(kept(&transposed).1, Some(Reason::WrongAxis));
    let text = "input x batch 6 8
         scale g 8
         n = Mul(x, g)
         weight w 5 6 1
         weight b 5
         c = Conv(n, w, b)
         weight a 8 3
         z = MatMul(c, a)
         y = Relu(z)
         output y";
    assert_eq!(kept(&model(text)).0, Reason::WrongAxis);
}

/// A normalizer with these extents, lines that mix the tokens after it, and a product over the
/// channels.
fn shifted(input: &str, scale: &str, lines: &str) -> Model {
    let channels = input.split_whitespace().last().unwrap_or_default();
    model(&format!(
        "input x batch {input}
         {scale}
         shift t {channels}
         r = Relu(x)
         n = Mul(r, s)
         m = Add(n, t)
         {lines}
         output y"
    ))
}

const PRODUCT: &str = "weight a 8 3\n y = MatMul(c, a)";

#[test]
fn spatial_shift_and_conv_bias_become_one_add() {
    let mixed = ["Relu", "Conv", "Add", "MatMul"];
    for lines in [
        "weight w 5 6 1\n weight b 5\n c = Conv(m, w, b)",
        "weight w 5 6 1\n c = Conv(m, w) dilations=[3]",
        "weight w 5 6 1\n c = Conv(m, w) auto_pad=SAME_UPPER",
        "weight w 4 3 1\n weight b 4\n c = Conv(m, w, b) group=2",
        // The summand after the convolution becomes its bias first.
        "weight w 5 6 1\n shift d 5 1\n p = Conv(m, w)\n c = Add(p, d)",
        "weight w 5 6 1\n weight b 5\n shift d 5 1\n p = Conv(m, w, b)\n c = Add(p, d)",
        "weight w 5 6 1\n weight b 5\n shift d 5 8\n p = Conv(m, w, b)\n c = Add(d, p)",
    ] {
        becomes(
            &shifted("6 8", "divisor s 8", &format!("{lines}\n {PRODUCT}")),
            &mixed,
        );
    }
    // Only a scale moves through the gate of gMLP.
    let gate = format!(
        "input u batch 5 8\n weight w 5 6 1\n weight b 5\n d = Conv(m, w, b)\n c = Mul(u, d)\n {PRODUCT}"
    );
    becomes(
        &shifted("6 8", "divisor s 8", &gate),
        &["Relu", "Conv", "Add", "Mul", "MatMul"],
    );
    // The extent of an axis along which nothing varies need not be known.
    let image = format!("weight w 5 6 1 1\n weight b 5\n c = Conv(m, w, b)\n {PRODUCT}");
    becomes(&shifted("6 high 8", "divisor s 8", &image), &mixed);
}

#[test]
fn spatial_shift_stays_before_other_convs_and_without_gain() {
    // Padding, a kernel of three places, strides, and a transposed convolution.
    for (lines, channels) in [
        (
            "weight w 5 6 1\n weight b 5\n c = Conv(m, w, b) pads=[1,1]",
            10,
        ),
        (
            "weight w 5 6 3\n weight b 5\n c = Conv(m, w, b) pads=[1,1]",
            8,
        ),
        (
            "weight w 5 6 1\n weight b 5\n c = Conv(m, w, b) strides=[2]",
            4,
        ),
        (
            "weight w 6 5 1\n weight b 5\n c = ConvTranspose(m, w, b)",
            8,
        ),
    ] {
        let lines = format!("{lines}\n weight a {channels} 3\n y = MatMul(c, a)");
        assert_eq!(
            kept(&shifted("6 8", "divisor s 8", &lines)).0,
            Reason::WrongAxis,
            "{lines}"
        );
    }
    let conv = |size: usize, group: usize, channels: usize| {
        format!(
            "weight w {size} {} 1\n weight b {size}\n c = Conv(m, w, b) group={group}\n weight a {channels} 3\n y = MatMul(c, a)",
            size / group
        )
    };
    // A shift is not divided by a scale of 0.
    assert_eq!(
        kept(&shifted("6 4", "const s 4 = 2 0 -1 0.5", &conv(6, 1, 4))).0,
        Reason::WrongAxis
    );
    let large = kept(&shifted(
        "4096 8192",
        "divisor s 8192",
        &conv(4096, 4096, 8192),
    ))
    .0;
    assert!(matches!(large, Reason::TooLarge(_)), "{large:?}");
    // Removing the parameters of a normalizer that stays saves no operator, and an Add would be an
    // additional one.
    let parameters = |shift: &str| {
        model(&format!(
            "input x batch 6 8\n divisor g 8\n {shift}\n m = LayerNormalization(x, g, t)
             weight w 5 6 1\n weight b 5\n c = Conv(m, w, b)\n {PRODUCT}\n output y"
        ))
    };
    assert_eq!(kept(&parameters("shift t 8")).0.name(), "no-gain");
    let fused = fuse(&parameters("const t 8 = 1 1 1 1 1 1 1 1")).model;
    assert_eq!(operators(&fused), ["LayerNormalization", "Conv", "MatMul"]);
    // An Add after a product without a bias is not worth it either, however large the product is.
    let head = |columns: usize| {
        model(&format!(
            "input x batch 6 8\n scale g 8\n shift t 8\n m = LayerNormalization(x, g, t)
             weight w 8 {columns}\n y = MatMul(m, w)\n output y"
        ))
    };
    for columns in [8, 9] {
        assert_eq!(
            operators(&fuse(&head(columns)).model),
            ["LayerNormalization", "MatMul"]
        );
        assert_eq!(kept(&head(columns)).0.name(), "no-gain");
    }
    // A result in float16 must not become larger.
    for (scale, goes) in [("2 4 2 4 2 4 2 4", true), ("2 0.5 2 4 2 4 2 4", false)] {
        let text = format!("const s 8 = {scale}");
        let mut half = shifted(
            "6 8",
            &text,
            &format!("weight w 5 6 1\n weight b 5\n c = Conv(m, w, b)\n {PRODUCT}"),
        );
        retype(&mut half, &["s", "t", "w", "b", "a"], DataType::Float16);
        half.graph_mut().input[0] = declared("x", DataType::Float16, &["batch", "6", "8"]);
        let site = &fuse(&half).plan.sites[0];
        assert_eq!(site.is_folded(), goes, "{site:?}");
    }
}
