//! A negative Pad crops, and the remaining elements keep their affine. `ZeroPad2d((0, 0, 1, -1))`
//! shifts tokens by one.

use unfold::onnx::Model;
use unfold::refusal::Reason;

use crate::becomes;
use crate::common::text::model;
use crate::{fused, kept};

/// An affine of the channels of `x`, a Pad, and a product over the `left` channels that remain.
fn padded(extents: &str, pads: &str, mode: &str, left: usize) -> Model {
    model(&format!(
        "input x {extents}
         scale g 6
         shift t 6
         n = Mul(x, g)
         m = Add(n, t)
         ints p 6 = {pads}
         v = Pad(m, p) {mode}
         weight w {left} 3
         z = MatMul(v, w)
         y = Relu(z)
         output y"
    ))
}

#[test]
fn affine_passes_a_cropping_pad_forward() {
    for extents in ["2 4 6", "batch length 6"] {
        for pads in ["0 -1 0 0 0 0", "0 -1 0 0 -1 0", "0 0 0 0 -2 0"] {
            if extents == "2 4 6" || pads == "0 -1 0 0 0 0" {
                becomes(
                    &padded(extents, pads, "", 6),
                    &["Pad", "MatMul", "Add", "Relu"],
                );
            }
        }
        becomes(
            &padded(extents, "0 0 -1 0 0 -2", "", 3),
            &["Pad", "MatMul", "Add", "Relu"],
        );
    }
}

#[test]
fn affine_passes_a_shifting_pad_with_a_shift_per_position() {
    for pads in [
        "0 1 0 0 -1 0",
        "0 -1 0 0 1 0",
        "0 -2 0 0 3 0",
        "0 1 -1 0 -1 -2",
    ] {
        let left = if pads == "0 1 -1 0 -1 -2" { 3 } else { 6 };
        becomes(
            &padded("batch 4 6", pads, "", left),
            &["Pad", "MatMul", "Add", "Relu"],
        );
    }
    // As in RWKV, the unshifted value is read too.
    let beside = "input x batch 4 6
         scale g 6
         shift t 6
         n = Mul(x, g)
         m = Add(n, t)
         ints p 6 = 0 1 0 0 -1 0
         v = Pad(m, p)
         weight w 6 3
         weight u 6 3
         a = MatMul(v, w)
         b = MatMul(m, u)
         s = Add(a, b)
         y = Relu(s)
         output y";
    fused(&model(beside));
}

#[test]
fn affine_passes_a_cropping_pad_backward() {
    let text = |pads: &str| {
        model(&format!(
            "input x batch 4 6
             weight w 6 6
             l = MatMul(x, w)
             ints p 6 = {pads}
             v = Pad(l, p)
             scale g 6
             shift t 6
             n = Mul(v, g)
             m = Add(n, t)
             y = Relu(m)
             output y"
        ))
    };
    becomes(&text("0 -1 0 0 -1 0"), &["MatMul", "Add", "Pad", "Relu"]);
    // The shift must also be added in the border.
    assert_eq!(kept(&text("0 -1 0 0 1 0")).1, Some(Reason::Padding));
    let seen = "o = Relu(l)\noutput o";
    let text = "input x batch 4 6
         weight w 6 6
         l = MatMul(x, w)
         ints p 6 = 0 -1 0 0 -1 0
         v = Pad(l, p)
         scale g 6
         n = Mul(v, g)
         y = Sigmoid(n)
         output y";
    assert_eq!(
        kept(&model(&format!("{text}\n{seen}"))).1,
        Some(Reason::OtherReader)
    );
}

#[test]
fn shift_stops_at_pad_of_unknown_extent_channels_or_edge_mode() {
    // If the number of places is unknown, the shift is not known.
    assert_eq!(
        kept(&padded("batch length 6", "0 1 0 0 -1 0", "", 6)).0,
        Reason::Padding
    );
    // A border along the channels has no shift.
    assert_eq!(
        kept(&padded("2 4 6", "0 0 1 0 0 -1", "", 6)).0,
        Reason::Padding
    );
    // A border that repeats the edge differs from a crop.
    assert_eq!(
        kept(&padded("2 4 6", "0 0 -1 0 0 1", "mode=edge", 6)).0,
        Reason::Padding
    );
}

/// Computed numbers may be equal only because of limited precision. Padded zeros stay zeros
/// whatever the numbers are, and movements do not depend on them.
#[test]
fn computed_deviation_passes_zero_padding() {
    let windows = model(
        "opset 18
         input x batch 4 8
         const v 8 = 1 4 0.25 16 4 1 64 0.0625
         const eps = 0
         a = Add(v, eps)
         s = Sqrt(a)
         n = Div(x, s)
         ints p 6 = 0 0 0 0 2 0
         q = Pad(n, p)
         weight w 8 3
         z = MatMul(q, w)
         y = Relu(z)
         output y",
    );
    becomes(&windows, &["Pad", "MatMul", "Relu"]);
    let ones = model(
        "opset 18
         input x batch 4 8
         r = Relu(x)
         h = Shape(x)
         ints at 1 = 2
         c = Gather(h, at)
         ints one 1 = 1
         t = Concat(one, one, c) axis=0
         const g 8 = 1 1 1 1 1 1 1 1
         k = Reshape(g, t)
         m = Mul(r, k)
         y = Softmax(m) axis=-1
         output y",
    );
    becomes(&ones, &["Relu", "Softmax"]);
}
