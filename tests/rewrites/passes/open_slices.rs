//! An axis with an open extent is sliced into parts whose ends are computed, and the results are
//! equal at every size.

use unfold::onnx::Model;
use unfold::prove::{Proof, ProveOptions, prove};
use unfold::{MemoryGoal, Slicing};

use super::slice::{assert_whole, fused, sliced, with_goal, with_parts};
use crate::common::judge;
use crate::common::numbers::Kind;
use crate::common::text::{model, print};

/// An MLP with an output bias, and attention, on an open number of tokens.
const OPEN: &str = "opset 20
    input x 1 tokens 4
    weight wq 4 8
    weight wk 4 8
    weight wv 4 8
    ints heads 4 = 1 -1 2 4
    ints joined 3 = 1 -1 8
    q = MatMul(x, wq)
    k = MatMul(x, wk)
    v = MatMul(x, wv)
    qr = Reshape(q, heads)
    kr = Reshape(k, heads)
    vr = Reshape(v, heads)
    qh = Transpose(qr) perm=[0,2,1,3]
    kh = Transpose(kr) perm=[0,2,3,1]
    vh = Transpose(vr) perm=[0,2,1,3]
    s = MatMul(qh, kh)
    p = Softmax(s) axis=-1
    o = MatMul(p, vh)
    ot = Transpose(o) perm=[0,2,1,3]
    oj = Reshape(ot, joined)
    weight w 8 64
    shift b 64
    weight u 64 4
    shift c 4
    h = MatMul(oj, w)
    a = Add(h, b)
    g = Gelu(a)
    m = MatMul(g, u)
    y = Add(m, c)
    output y";

fn expecting(slicing: Slicing, sizes: &[(&str, usize)]) -> Slicing {
    let expect = sizes.iter().map(|&(name, size)| (name.to_owned(), size));
    Slicing {
        expect: expect.collect(),
        ..slicing
    }
}

/// Asserts that both models have equal outputs at each size of all open dimensions.
fn agree_at(model: &Model, after: &Model, sizes: &[usize]) {
    for &size in sizes {
        let inputs = judge::inputs(model, size, true, Kind::Exact);
        assert_eq!(judge::agree(model, after, &inputs, 0.0), Ok(true), "{size}");
    }
}

#[test]
fn open_tokens_are_sliced_for_the_expected_number() {
    let model = model(OPEN);
    let (after, change) = sliced(&model, &expecting(with_parts(4), &[("tokens", 30)]));
    let cuts = change.cuts.iter().map(|cut| (cut.parts, cut.extent));
    assert_eq!(cuts.collect::<Vec<_>>(), [(4, 30); 3], "{}", print(&after));
    // A part has at least 8 places, a quarter of 30 tokens rounded up.
    agree_at(&model, &after, &[0, 1, 2, 7, 8, 9, 16, 17, 30, 31, 33, 64]);
    let options = ProveOptions {
        dims: "tokens=30".parse().unwrap(),
        ..ProveOptions::default()
    };
    let proof = prove(&model, &after, &[], &options);
    assert!(matches!(proof, Proof::Proved { .. }), "{proof:?}");
}

#[test]
fn all_parts_of_an_open_axis_are_proved() {
    let model = model(OPEN);
    let (after, _) = sliced(&model, &expecting(with_parts(4), &[("tokens", 30)]));
    // Swaps the last two parts, which makes no difference with fewer than 17 tokens.
    let mut wrong = after.clone();
    let graph = wrong.graph_mut();
    let split = graph
        .node
        .iter()
        .position(|node| node.op_type() == "Split")
        .unwrap();
    graph.node[split].output.swap(2, 3);
    agree_at(&model, &wrong, &[1, 8, 16]);
    let proof = prove(&model, &wrong, &[], &ProveOptions::default());
    assert!(matches!(proof, Proof::Disproved { .. }), "{proof:?}");
}

#[test]
fn open_samples_are_sliced_for_the_expected_number() {
    let text = OPEN
        .replace("x 1 tokens", "x batch tokens")
        .replace("4 = 1 -1", "4 = 0 -1")
        .replace("3 = 1 -1", "3 = 0 -1");
    let model = model(&text);
    let slicing = expecting(with_parts(4), &[("batch", 8), ("tokens", 6)]);
    let (after, change) = sliced(&model, &slicing);
    assert!(!change.cuts.is_empty(), "{}", print(&after));
    agree_at(&model, &after, &[1, 2, 3, 5, 8, 9]);
}

#[test]
fn open_axis_without_an_expected_size_stays_whole() {
    assert_whole(OPEN);
    let fused = fused(&model(OPEN), &with_goal(MemoryGoal::Percent(50.0)));
    let change = fused.plan.memory.unwrap();
    let reason = "the size of `x` is not known; `--expect NAME=SIZE` gives that of a dimension";
    assert_eq!(change.reason.as_deref(), Some(reason));
    // If the peak is unknown, the goal counts as missed.
    assert!(change.is_missed() && change.cuts.is_empty());
}

#[test]
fn open_axis_stays_whole_before_split_reads_lengths() {
    let text = "opset 12
        input x 1 tokens 4
        weight w 4 32
        weight v 32 4
        h = MatMul(x, w)
        a = Tanh(h)
        s = Softmax(a) axis=2
        y = MatMul(s, v)
        output y";
    let slicing = expecting(with_parts(2), &[("tokens", 30)]);
    for (opset, cuts) in [("opset 12", 0), ("opset 13", 1)] {
        let model = model(&text.replace("opset 12", opset));
        let change = fused(&model, &slicing).plan.memory.unwrap();
        assert_eq!(change.cuts.len(), cuts, "{opset}");
    }
}

#[test]
fn operators_that_need_places_are_not_sliced_along_an_open_axis() {
    let text = "opset 21
        input x batch 4 64
        scale g 4
        shift b 4
        weight w 64 512
        weight v 512 2
        n = GroupNormalization(x, g, b) num_groups=2
        h = MatMul(n, w)
        a = Tanh(h)
        y = MatMul(a, v)
        output y";
    let scores = "opset 21
        input x batch 2 2 4
        weight w 4 64
        q = MatMul(x, w)
        s = Einsum(q, q) equation=bhid,bhjd->bhij
        p = Softmax(s) axis=-1
        y = ReduceMax(p) keepdims=0
        output y";
    // The heads of the Einsum may be cut, since their number is fixed.
    for (text, operator, extents) in [
        (text, "GroupNormalization", &[][..]),
        (scores, "Einsum", &[2]),
    ] {
        let slicing = expecting(with_parts(3), &[("batch", 7)]);
        let change = fused(&model(text), &slicing).plan.memory.unwrap();
        assert!(!change.cuts.is_empty(), "{operator}");
        let cuts = change.cuts.iter();
        let those = cuts.filter(|cut| cut.operators.iter().any(|op| op == operator));
        let cut: Vec<usize> = those.map(|cut| cut.extent).collect();
        assert_eq!(cut, extents, "{operator}");
    }
}
