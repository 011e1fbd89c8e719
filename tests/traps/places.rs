//! A convolution of kernel 1 over tokens that lie along its channels, as of gMLP and ResMLP, hands a scale of the places on,
//! as a MatMul with the weight on the left does.

use unfold::onnx::Model;
use unfold::refusal::Reason;

use crate::branches::becomes;
use crate::common::text::model;
use crate::{fused, kept};

/// A scale of the channels, which are the places of the convolution, and a product that takes it in.
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

/// A product, the convolution, and what is scaled behind it.
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
fn a_scale_of_places_passes_a_kernel_of_one_forward() {
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
    let grouped = straight.replace("5 6 1", "4 3 1").replace("Conv(n, w)", "Conv(n, w) group=2");
    becomes(&model(&grouped), &["Conv", "MatMul", "Relu"]);
}

#[test]
fn it_goes_back_past_it_and_leaves_what_is_added_to_an_add() {
    becomes(&backward("scale g 8\nc = Conv(h, w)\nd = Mul(c, g)"), &["MatMul", "Conv", "Sigmoid"]);
    let affine = "scale g 8\nshift t 8\nc = Conv(h, w)\nn = Mul(c, g)\nd = Add(n, t)";
    becomes(&backward(affine), &["MatMul", "Conv", "Add", "Sigmoid"]);
    let biased = "scale g 8\nshift t 8\nweight b 5\nc = Conv(h, w, b)\nn = Mul(c, g)\nd = Add(n, t)";
    becomes(&backward(biased), &["MatMul", "Conv", "Add", "Sigmoid"]);
    // Of images it is a scale of rows and columns.
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
fn the_normalizers_of_a_block_of_res_mlp_are_one_scale_and_one_add() {
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
    assert_eq!(crate::operators(&after), ["Relu", "Mul", "Conv", "Add", "Sigmoid"]);
}

#[test]
fn what_reads_other_places_or_adds_stops_it() {
    for (weight, attributes) in
        [("5 6 3", "pads=[1,1]"), ("5 6 1", "pads=[1,1] strides=[1]"), ("5 6 2", "auto_pad=SAME_UPPER")]
    {
        assert_eq!(kept(&forward(weight, attributes)).0, Reason::WrongAxis, "{weight} {attributes}");
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
