//! Relative positions. A scale moves through scores that are shifted row by row, as in
//! Transformer-XL and Conformer, although a Slice drops some of them and zeros are concatenated
//! before them.
//! drops some of them and zeros are concatenated before them.

use ndarray::arr1;
use unfold::FuseOptions;
use unfold::onnx::{DataType, Model, tensor};
use unfold::refusal::Reason;

use crate::becomes;
use crate::common::text::model;
use crate::common::{Attr, attribute, is_proved_or_listed, operators, portable};
use crate::{fused, kept, same};

/// The scores of one layer of attention: those of the keys, and the shifted ones of positions, each
/// with its own bias.
const SCORES: &str = "weight wq 8 8
     weight wk 8 8
     weight u 2 4
     weight v 2 4
     weight p 1 2 4 9
     ints heads 4 = -1 5 2 4
     ints rows 4 = -1 2 10 5
     ints whole 4 = -1 2 5 9
     ints zero 1 = 0
     ints one 1 = 1
     ints two 1 = 2
     ints three 1 = 3
     ints five 1 = 5
     ints far 1 = 9223372036854775807
     ints rest 3 = 2 5 1
     b = Shape(x) start=0 end=1
     room = Concat(b, rest) axis=0
     q = MatMul(x, wq)
     r = Reshape(q, heads)
     k = MatMul(x, wk)
     l = Reshape(k, heads)
     m = Transpose(l) perm=[0,2,3,1]
     ru = Add(r, u)
     rv = Add(r, v)
     tu = Transpose(ru) perm=[0,2,1,3]
     tv = Transpose(rv) perm=[0,2,1,3]
     content = MatMul(tu, m)
     place = MatMul(tv, p)";

/// The relative shift of the scores of positions after the zeros are concatenated, and the scale of
/// the sum.
const SHIFTED: &str = "wide = Concat(z, place) axis=3
     turned = Reshape(wide, rows)
     cut = Slice(turned, one, far, two)
     back = Reshape(cut, whole)
     near = Slice(back, zero, five, three)
     sum = Add(content, near)
     e = Div(sum, c)
     y = Sigmoid(e)";

fn attention(zeros: &str, more: &str) -> Model {
    model(&format!(
        "input x batch 5 8
         const c = 4
         {SCORES}
         {zeros}
         {SHIFTED}
         {more}
         output y"
    ))
}

const OPERATORS: &[&str] = &[
    "Shape",
    "Concat",
    "MatMul",
    "Reshape",
    "MatMul",
    "Reshape",
    "Transpose",
    "Add",
    "Add",
    "Transpose",
    "Transpose",
    "MatMul",
    "MatMul",
];

#[test]
fn scale_of_relative_scores_folds_into_keys_and_positions() {
    let rest = [
        "Concat", "Reshape", "Slice", "Reshape", "Slice", "Add", "Sigmoid",
    ];
    let expand = attention("const none = 0\nz = Expand(none, room)", "");
    becomes(&expand, &[OPERATORS, &["Expand"], &rest[..]].concat());
    becomes(
        &attention("z = ConstantOfShape(room)", ""),
        &[OPERATORS, &["ConstantOfShape"], &rest[..]].concat(),
    );
}

#[test]
fn concatenated_zeros_take_any_scale_and_ones_do_not() {
    let read = "o = Sigmoid(z)\noutput o";
    let rest = [
        "Concat", "Reshape", "Slice", "Reshape", "Slice", "Add", "Sigmoid", "Sigmoid",
    ];
    let zeros = attention("const none = 0\nz = Expand(none, room)", read);
    becomes(&zeros, &[OPERATORS, &["Expand"], &rest[..]].concat());
    let ones = attention("const some = 1\nz = Expand(some, room)", read);
    assert_eq!(kept(&ones).1, Some(Reason::OtherReader));
    // Ones without another reader absorb the scale if they are stored, but not if they are computed
    // from a shape.
    fused(&attention("const some = 1\nz = Expand(some, room)", ""));
    let mut made = attention("z = ConstantOfShape(room)", "");
    let node = made
        .graph_mut()
        .node
        .iter_mut()
        .find(|node| node.op_type() == "ConstantOfShape")
        .unwrap();
    let filler = tensor::make("", DataType::Float, &arr1(&[1.0]).into_dyn().view()).unwrap();
    node.attribute
        .push(attribute("value", Attr::Tensor(Box::new(filler))));
    assert_eq!(
        kept(&made).1,
        Some(Reason::NotLinear("ConstantOfShape".into()))
    );
}

#[test]
fn other_readers_of_shifted_scores_refuse_the_scale() {
    for read in ["place", "wide", "turned", "back"] {
        let seen = attention(
            "z = ConstantOfShape(room)",
            &format!("o = Sigmoid({read})\noutput o"),
        );
        let reasons = kept(&seen);
        assert!(
            matches!(reasons.1, Some(Reason::OtherReader | Reason::WrongAxis)),
            "{read}: {reasons:?}"
        );
    }
}

#[test]
fn scale_passes_slice_of_an_unknown_extent_backward() {
    // The extent of the sliced axis is unknown.
    let text = "input x batch length 6
         weight w 6 6
         ints zero 1 = 0
         ints two 1 = 2
         ints one 1 = 1
         scale g 6
         l = MatMul(x, w)
         s = Slice(l, zero, two, one)
         n = Mul(s, g)
         y = Sigmoid(n)
         output y";
    becomes(&model(text), &["MatMul", "Slice", "Sigmoid"]);
    let seen = model(&format!("{text}\no = Sigmoid(l)\noutput o"));
    assert_eq!(kept(&seen).1, Some(Reason::OtherReader));
}

/// The scores of windows, with the bias of relative positions and the mask of the windows.
fn masked_windows(mask: &str, windows: &str) -> Model {
    model(&format!(
        "input q N 2 3 4
         input k N 2 4 3
         weight bias 1 2 3 3
         weight mask {mask}
         ints apart 5 = {windows}
         ints together 4 = -1 2 3 3
         s = MatMul(q, k)
         b = Add(s, bias)
         w = Reshape(b, apart)
         m = Add(mask, w)
         r = Reshape(m, together)
         y = Softmax(r) axis=-1
         output y"
    ))
}

#[test]
fn relative_position_bias_and_window_mask_become_one_table() {
    let before = masked_windows("1 4 1 3 3", "-1 4 2 3 3");
    let grown = FuseOptions {
        max_growth: f64::INFINITY,
        ..portable()
    };
    let fused = unfold::fuse(&before, &grown).unwrap();
    same(&before, &fused.model, 2e-6);
    assert!(is_proved_or_listed(&before, &fused).is_ok());
    let expected = ["MatMul", "Reshape", "Add", "Reshape", "Softmax"];
    assert_eq!(operators(&fused.model), expected);
    let none = FuseOptions {
        max_growth: 0.0,
        ..portable()
    };
    let kept = unfold::fuse(&before, &none).unwrap();
    assert_eq!(operators(&kept.model), operators(&before));
}
