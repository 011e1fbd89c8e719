//! Means of selected or rearranged places move before linear operators, with twins in which they
//! stay.

use crate::common::text::{model, print};
use crate::common::{is_proved_or_listed, operators};
use crate::passes::placement::{assert_moves, assert_stays, fused};
use crate::{fuse, same};

/// Reductions of a movement's result. `%` stands for the axes that are reduced.
fn reduced(shape: &str, movement: &str, reduction: &str) -> String {
    format!(
        "input x {shape}
         ints grid 4 = 0 2 3 4
         ints other 3 = 0 3 8
         ints rows 2 = -1 4
         ints turned 3 = 6 -1 4
         ints places 2 = -2 1
         s = Sigmoid(x)
         m = {movement}
         y = {reduction}
         output y"
    )
}

/// The operators of the result, which is asserted to be equal and proved.
fn operators_after(text: &str) -> Vec<String> {
    let before = model(text);
    let after = fuse(&before);
    same(&before, &after.model, 1e-6);
    assert!(
        is_proved_or_listed(&before, &after).is_ok(),
        "{}",
        print(&after.model)
    );
    let found = operators(&after.model);
    found.into_iter().map(|op| op.to_string()).collect()
}

#[test]
fn reduction_reads_the_value_before_its_places_are_rearranged() {
    let tokens = "batch 6 4";
    for op in ["ReduceMean", "ReduceSum"] {
        let axes = match op {
            "ReduceMean" => ") axes=[1,2]",
            _ => ", places)",
        };
        let squeezed = format!("{op}(m{axes} keepdims=0");
        let found = operators_after(&reduced(tokens, "Reshape(s, grid)", &squeezed));
        assert_eq!(found, ["Sigmoid", op]);
        let kept = format!("{op}(m{axes}");
        let found = operators_after(&reduced(tokens, "Reshape(s, grid)", &kept));
        assert_eq!(found, ["Sigmoid", op, "Unsqueeze"]);
    }
    let image = "Transpose(s) perm=[0,3,2,1]";
    let found = operators_after(&reduced(
        "batch 2 3 4",
        image,
        "ReduceMean(m) axes=[2,3] keepdims=0",
    ));
    assert_eq!(found, ["Sigmoid", "ReduceMean"]);
    // The batch is reduced too, so it may be merged with the tokens.
    let rows = reduced(
        tokens,
        "Reshape(s, rows)",
        "ReduceMean(m) axes=[0] keepdims=0",
    );
    assert_eq!(operators_after(&rows), ["Sigmoid", "ReduceMean"]);
}

/// Asserts that the result of a reduction after a movement still has the movement `kept`.
fn assert_keeps(shape: &str, movement: &str, reduction: &str, kept: &str) {
    let found = operators_after(&reduced(shape, movement, reduction));
    assert!(found.contains(&kept.to_owned()), "{found:?}");
}

#[test]
fn reduction_stays_after_a_movement_of_other_places() {
    let tokens = "batch 6 4";
    // Rows of 8 numbers hold channels of two tokens.
    let mean = "ReduceMean(m) axes=[1] keepdims=0";
    assert_keeps(tokens, "Reshape(s, other)", mean, "Reshape");
    // Only one of the two axes of places is reduced.
    assert_keeps(tokens, "Reshape(s, grid)", mean, "Reshape");
    // The Reshape keeps the order of the elements, so sample 0 is not in row 0.
    assert_keeps("batch 6 4", "Reshape(s, turned)", mean, "Reshape");
    // A maximum stays too, because no linear operator could move after it.
    let largest = reduced(tokens, "Reshape(s, grid)", "ReduceMax(m) axes=[1,2]");
    assert!(operators_after(&largest).contains(&"Reshape".to_owned()));
    // The kept axes change places.
    let turned = "Transpose(s) perm=[2,1,0]";
    assert_keeps(tokens, turned, mean, "Transpose");
    // Another node reads the rearranged value.
    let also = reduced(tokens, "Reshape(s, grid)", "ReduceMean(m) axes=[1,2]");
    let also = also.replace("output y", "z = Relu(m)\n output y z");
    assert!(operators_after(&also).contains(&"Reshape".to_owned()));
}

/// The last layer of a network on 6 tokens, and a reduction of some of them.
fn selected(slice: &str, reduction: &str) -> String {
    format!(
        "input x batch 6 128
         weight w 128 256
         weight v 256 128
         shift b 128
         ints one 1 = 1
         ints two 1 = 2
         ints end 1 = 1000
         ints both 2 = 1 2
         ints from 2 = 1 3
         ints ends 2 = 1000 1000
         s = Sigmoid(x)
         h = MatMul(s, w)
         r = Relu(h)
         p = MatMul(r, v)
         a = Add(p, b)
         z = Add(s, a)
         t = {slice}
         y = {reduction}
         output y"
    )
}

const BUT_FIRST: &str = "Slice(z, one, end, one)";

const MOVED: &[&str] = &[
    "Sigmoid",
    "MatMul",
    "Relu",
    "Slice",
    "ReduceMean",
    "Slice",
    "ReduceMean",
    "Reshape",
    "Gemm",
    "Reshape",
    "Add",
];

#[test]
fn mean_of_all_but_the_first_token_moves_before_residual_add_and_matmul() {
    let placed = assert_moves(
        &selected(BUT_FIRST, "ReduceMean(t) axes=[1] keepdims=0"),
        "pooling",
        &[MOVED, &["Squeeze"]].concat(),
    );
    let products = 256 * 128;
    assert_eq!(placed.before, format!("{}·batch", 6 * products));
    assert_eq!(placed.after, format!("{products}·batch"));
    // The Slice takes every other token, and the number of tokens is unknown.
    let open = selected("Slice(z, one, end, one, two)", "ReduceMean(t) axes=[1]");
    let wide = open
        .replace("batch 6", "batch tokens")
        .replace("256", "512");
    let unfused = [&MOVED[..7], &["MatMul", "Add", "Add"]].concat();
    assert_moves(&wide, "pooling", &unfused);
}

#[test]
fn sum_of_selected_tokens_multiplies_a_bias_by_their_number() {
    let sum = selected(BUT_FIRST, "ReduceSum(t, one)");
    let after = fuse(&model(&sum));
    assert!(after.plan.placed.iter().any(|placed| placed.is_moved()));
    operators_after(&sum);
    // With an open number of tokens, the factor of the bias is unknown.
    assert_stays(&sum.replace("batch 6 128", "batch tokens 128"));
}

#[test]
fn mean_of_selected_channels_or_of_other_places_stays() {
    // The Slice selects channels.
    assert_stays(&selected(
        "Slice(z, one, end, two)",
        "ReduceMean(t) axes=[1]",
    ));
    // It selects tokens and channels.
    assert_stays(&selected(
        "Slice(z, from, ends, both)",
        "ReduceMean(t) axes=[1]",
    ));
    // The mean is over channels.
    assert_stays(&selected(BUT_FIRST, "ReduceMean(t) axes=[2]"));
    // A maximum is not linear.
    assert_stays(&selected(BUT_FIRST, "ReduceMax(t) axes=[1]"));
    // Another node reads all tokens.
    let mean = selected(BUT_FIRST, "ReduceMean(t) axes=[1]");
    assert_stays(&mean.replace("output y", "q = Softmax(z)\n output y q"));
}

/// The reasons of operators that could move but stay, each with the node that is the cause.
fn reasons(text: &str) -> Vec<(&'static str, String)> {
    let plan = fused(&model(text)).plan;
    let stay = plan.placed.into_iter().filter_map(|placed| placed.why);
    stay.map(|why| (why.reason.name(), why.at)).collect()
}

/// The last layer of a network on tokens, and lines that read its result `a`.
fn read(lines: &str) -> String {
    format!(
        "input x batch tokens 64
         weight w 64 64
         shift b 64
         scale g 64
         shift c 64
         ints zero = 0
         ints one 1 = 1
         ints end 1 = 1000
         s = Sigmoid(x)
         p = MatMul(s, w)
         a = Add(p, b)
         {lines}"
    )
}

#[test]
fn operator_before_a_mean_that_stays_has_a_reason() {
    let norm = "n = LayerNormalization(a, g, c)\n y = ReduceMean(n) axes=[1]\n output y";
    let found = reasons(&read(norm));
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].0, "not-linear");
    let sum = "y = ReduceSum(a, one)\n output y";
    assert_eq!(reasons(&read(sum)), [("unknown-shape", "Add_a".to_owned())]);
    let shared = "f = Gather(a, zero) axis=1
         t = Slice(a, one, end, one)
         y = ReduceMean(t) axes=[1]
         output f y";
    assert_eq!(
        reasons(&read(shared)),
        [("other-reader", "Add_a".to_owned())]
    );
    let counted = "input x batch 6 4 4
         weight w 5 6 1 1
         shift b 5
         c = Conv(x, w, b)
         y = AveragePool(c) kernel_shape=[3,3] strides=[2,2] pads=[1,1,1,1] count_include_pad=1
         output y";
    assert_eq!(reasons(counted), [("padding", "Conv_c".to_owned())]);
}

#[test]
fn operator_whose_places_are_all_read_has_no_reason() {
    let none: Vec<(&str, String)> = vec![];
    for lines in [
        "n = Relu(a)\n y = ReduceMean(n) axes=[1]\n output y",
        // Another node reads all places.
        "y = ReduceMean(a) axes=[1]\n z = Relu(a)\n output y z",
        "n = LayerNormalization(a, g, c)\n y = ReduceMean(n) axes=[1]\n z = Relu(a)\n output y z",
        // The mean is over channels.
        "n = LayerNormalization(a, g, c)\n y = ReduceMean(n) axes=[2]\n output y",
        "n = LayerNormalization(a, g, c)\n m = Relu(n)\n y = ReduceMean(m) axes=[1]\n output y",
    ] {
        assert_eq!(reasons(&read(lines)), none, "{lines}");
    }
}
