//! Checks that a Softmax gives hidden places 0, and that the other places do not depend on them.

use unfold::FuseOptions;
use unfold::onnx::Model;
use unfold::prove::Proof;

use super::common::text;
use super::{is_not_proved, is_proved, proof};

/// The lowest finite float.
const LOWEST: &str = "-3.4028234663852886e38";

/// Attention of two queries to three keys. A mask with these six elements is added to the scores.
fn masked(mask: &str) -> Model {
    text::model(&format!(
        "input q 2 4
        input k 4 3
        input v 3 4
        const mask 2 3 = {mask}
        s = MatMul(q, k)
        t = Add(s, mask)
        p = Softmax(t) axis=-1
        y = MatMul(p, v)
        output y"
    ))
}

/// Attention of the first query to the first key, and of the second query to the first two keys.
fn visible_alone() -> Model {
    text::model(
        "input q 2 4
        input k 4 3
        input v 3 4
        ints zero 1 = 0
        ints one 1 = 1
        ints two 1 = 2
        ints last 1 = 1
        q0 = Slice(q, zero, one, zero)
        q1 = Slice(q, one, two, zero)
        k0 = Slice(k, zero, one, last)
        k1 = Slice(k, zero, two, last)
        v0 = Slice(v, zero, one, zero)
        v1 = Slice(v, zero, two, zero)
        s0 = MatMul(q0, k0)
        s1 = MatMul(q1, k1)
        p0 = Softmax(s0) axis=-1
        p1 = Softmax(s1) axis=-1
        y0 = MatMul(p0, v0)
        y1 = MatMul(p1, v1)
        y = Concat(y0, y1) axis=0
        output y",
    )
}

fn verdict(original: &Model) -> Proof {
    proof(original, &visible_alone(), &[])
}

#[test]
fn hidden_keys_need_not_be_computed() {
    assert!(is_proved(&verdict(&masked("0 -inf -inf 0 0 -inf"))));
    let mask = format!("0 {LOWEST} {LOWEST} 0 0 {LOWEST}");
    assert!(is_proved(&verdict(&masked(&mask))));
}

#[test]
fn selected_scores_are_hidden_like_added_masks() {
    let original = text::model(
        "input q 2 4
        input k 4 3
        input v 3 4
        ints row 2 1 = 0 1
        ints column 3 = 0 1 2
        const far = -inf
        s = MatMul(q, k)
        c = GreaterOrEqual(row, column)
        t = Where(c, s, far)
        p = Softmax(t) axis=-1
        y = MatMul(p, v)
        output y",
    );
    assert!(is_proved(&verdict(&original)));
}

#[test]
fn visible_keys_must_be_computed() {
    // Another key is visible, one key fewer is visible, or the mask is a large negative number
    // instead of −∞.
    for mask in [
        "0 0 -inf 0 0 -inf",
        "0 -inf -inf -inf 0 -inf",
        "0 -1e9 -1e9 0 0 -1e9",
        "0 -10000 -10000 0 0 -10000",
        "0.5 -inf -inf 0.5 0 -inf",
    ] {
        assert!(is_not_proved(&masked(mask), &visible_alone()), "{mask}");
    }
}

/// The function body of Attention pads its mask by a computed number of keys, which may be 0, and casts it.
#[test]
fn padded_and_cast_mask_stays_a_mask() {
    let padded = |end: &str| {
        text::model(&format!(
            "input q 2 4
            input k 4 3
            input v 3 4
            const mask 2 {end}
            const lowest = {LOWEST}
            shape = Shape(k) start=1 end=2
            stored = Shape(mask) start=1 end=2
            more = Sub(shape, stored)
            ints none 3 = 0 0 0
            pads = Concat(none, more) axis=0
            pad = Pad(mask, pads, lowest)
            like = CastLike(pad, mask)
            s = MatMul(q, k)
            t = Add(s, like)
            p = Softmax(t) axis=-1
            y = MatMul(p, v)
            output y"
        ))
    };
    let whole = padded(&format!("3 = 0 {LOWEST} {LOWEST} 0 0 {LOWEST}"));
    assert!(is_proved(&verdict(&whole)));
    let padded_by_one = padded(&format!("2 = 0 {LOWEST} 0 0"));
    assert!(is_proved(&verdict(&padded_by_one)));
    let visible = padded("2 = 0 0 0 0");
    assert!(is_not_proved(&visible, &visible_alone()));
}

#[test]
fn mask_merged_with_a_bias_stays_a_mask() {
    let model = text::model(&format!(
        "input x 2 3
        const mask 1 3 = 0 {LOWEST} {LOWEST}
        const bias 3 = 0.5 0.25 -0.125
        s = Add(x, mask)
        t = Add(s, bias)
        y = Softmax(t) axis=-1
        output y"
    ));
    let fused = unfold::fuse(&model, &FuseOptions::default()).unwrap();
    assert_eq!(fused.model.graph().node.len(), 2);
    let tensors = &fused.plan.tensors;
    assert_eq!(tensors.len(), 1);
    assert!(is_proved(&proof(&model, &fused.model, tensors)));
}

#[test]
fn row_without_visible_keys_is_no_function_of_its_mask() {
    let [one, other] = ["0 0 0 -inf -inf -inf", "0 0 0 0 0 0"].map(masked);
    assert!(is_not_proved(&one, &other));
}
