//! Attention in every notation becomes MultiHeadAttention for onnxruntime. Attention stays if
//! onnxruntime's kernel has no gain.
//! stays.

use std::collections::BTreeMap;

use unfold::onnx::Model;
use unfold::prove::{Proof, prove};
use unfold::{FuseOptions, Fused, Target};

use crate::common::numbers::Kind;
use crate::common::text::{model, print};
use crate::common::{judge, operators};

/// Attention from queries, keys and values of two heads of 2 channels, `[batch, head, token,
/// channel]`.
const BY_HEAD: &str = "t = Transpose(k) perm=[0,1,3,2]
    s = MatMul(q, t)
    p = Softmax(s) axis=-1
    o = MatMul(p, v)
    turned = Transpose(o) perm=[0,2,1,3]
    y = Reshape(turned, rows)
    output y";

/// Splits three inputs into heads.
const SEPARATE: &str = "input a batch 128 4
    input b batch 128 4
    input c batch 128 4
    ints heads 4 = 0 0 2 2
    ints rows 3 = 0 0 4
    x = Reshape(a, heads)
    q = Transpose(x) perm=[0,2,1,3]
    z = Reshape(b, heads)
    k = Transpose(z) perm=[0,2,1,3]
    w = Reshape(c, heads)
    v = Transpose(w) perm=[0,2,1,3]";

fn for_onnxruntime(model: &Model) -> Fused {
    let options = FuseOptions {
        target: Target::Onnxruntime,
        ..FuseOptions::default()
    };
    unfold::fuse(model, &options).unwrap()
}

/// Folds a model for onnxruntime, and asserts that the result is equal, proved and stable. Returns
/// its operators.
fn written(text: &str) -> (String, Model) {
    let before = model(text);
    let fused = for_onnxruntime(&before);
    let outcome = judge::inputs(&before, 1, true, Kind::Exact);
    let outcome = judge::agree(&before, &fused.model, &outcome, 1e-9);
    assert!(outcome.unwrap(), "it cannot be run");
    let proof = prove(
        &before,
        &fused.model,
        &fused.plan.tensors,
        &Default::default(),
    );
    assert!(
        matches!(proof, Proof::Proved { .. }),
        "{proof:?}\n{}",
        print(&fused.model)
    );
    let again = for_onnxruntime(&fused.model);
    assert_eq!(again.model.proto, fused.model.proto);
    let count = operators(&fused.model)
        .iter()
        .filter(|operator| **operator == "MultiHeadAttention")
        .count();
    assert_eq!(fused.plan.tidy.attentions, count);
    (operators(&fused.model).join(" "), fused.model)
}

/// The reasons for which attentions stay.
fn kept(text: &str) -> BTreeMap<String, usize> {
    let before = model(text);
    let fused = for_onnxruntime(&before);
    assert!(!operators(&fused.model).contains(&"MultiHeadAttention"));
    fused.plan.tidy.attentions_kept
}

/// Asserts that one attention stays for this reason.
fn stays(text: &str, reason: &str) {
    assert_eq!(
        kept(text),
        BTreeMap::from([(reason.to_owned(), 1)]),
        "{text}"
    );
}

#[test]
fn attention_of_separate_projections_needs_no_movements() {
    let (operators, after) = written(&format!("{SEPARATE}\n{BY_HEAD}"));
    assert_eq!(operators, "MultiHeadAttention");
    assert_eq!(after.graph().node[0].input, ["a", "b", "c"]);
    assert_eq!(after.opset("com.microsoft"), Some(1));
}

#[test]
fn attention_of_packed_projections_splits_its_rows() {
    let packed = "input a batch 128 12
        ints packed 5 = 0 0 3 2 2
        ints rows 3 = 0 0 4
        x = Reshape(a, packed)
        m = Transpose(x) perm=[2,0,3,1,4]";
    let gathered = "ints zero = 0
        ints one = 1
        ints two = 2
        q = Gather(m, zero) axis=0
        k = Gather(m, one) axis=0
        v = Gather(m, two) axis=0";
    let sliced = "ints first 1 = 0
        ints second 1 = 1
        ints third 1 = 2
        ints end 1 = 3
        l = Slice(m, first, second, first)
        q = Squeeze(l, first)
        n = Slice(m, second, third, first)
        k = Squeeze(n, first)
        r = Slice(m, third, end, first)
        v = Squeeze(r, first)";
    for parts in [gathered, sliced] {
        let (operators, after) = written(&format!("{packed}\n{parts}\n{BY_HEAD}"));
        assert_eq!(operators, "Split MultiHeadAttention");
        assert_eq!(after.graph().node[0].input[0], "a");
    }
}

#[test]
fn attention_in_windows_of_several_batch_axes_is_one_batch() {
    let (operators, _) = written(
        "input a 2 3 128 4
        ints heads 5 = 2 3 128 2 2
        ints rows 4 = 2 3 128 4
        x = Reshape(a, heads)
        q = Transpose(x) perm=[0,1,3,2,4]
        t = Transpose(x) perm=[0,1,3,4,2]
        s = MatMul(q, t)
        p = Softmax(s) axis=-1
        o = MatMul(p, q)
        turned = Transpose(o) perm=[0,1,3,2,4]
        y = Reshape(turned, rows)
        output y",
    );
    assert_eq!(operators, "Reshape MultiHeadAttention Reshape");
}

#[test]
fn scale_of_scores_and_another_width_of_values_are_kept() {
    let (operators, after) = written(
        "input a 1 3 4
        input b 1 200 4
        input c 1 200 6
        ints heads 4 = 0 0 2 2
        ints wide 4 = 0 0 2 3
        ints rows 3 = 0 0 6
        const half = 0.25
        x = Reshape(a, heads)
        q = Transpose(x) perm=[0,2,1,3]
        z = Reshape(b, heads)
        t = Transpose(z) perm=[0,2,3,1]
        w = Reshape(c, wide)
        v = Transpose(w) perm=[0,2,1,3]
        m = MatMul(q, t)
        s = Mul(half, m)
        p = Softmax(s) axis=-1
        o = MatMul(p, v)
        turned = Transpose(o) perm=[0,2,1,3]
        y = Reshape(turned, rows)
        output y",
    );
    assert_eq!(operators, "MultiHeadAttention");
    assert_eq!(after.graph().node[0].attr_f("scale").unwrap(), Some(0.25));
}

#[test]
fn long_sequences_in_another_order_are_transposed() {
    let text = |keys: usize| {
        format!(
            "input q 1 2 3 2
            input t 1 2 2 {keys}
            input v 1 2 {keys} 2
            s = MatMul(q, t)
            p = Softmax(s) axis=-1
            y = MatMul(p, v)
            output y"
        )
    };
    let (operators, _) = written(&text(512));
    assert!(
        operators.contains("MultiHeadAttention Reshape Transpose"),
        "{operators}"
    );
    let reason = "the operands are not in rows, and there are fewer than 512 keys";
    stays(&text(511), reason);
    stays(&text(128), reason);
}

#[test]
fn attention_without_a_gain_stays() {
    let attention = format!("{SEPARATE}\n{BY_HEAD}");
    let scores = "s = MatMul(q, t)";
    let few = attention.replace("128", "127");
    stays(&few, "there are fewer than 128 keys");
    let masked = format!("input mask 1 1 1 128\n{attention}")
        .replace(scores, "m = MatMul(q, t)\ns = Add(m, mask)");
    stays(&masked, "the scores have a mask or a bias");
    let capped = attention.replace(scores, "m = MatMul(q, t)\ns = Tanh(m)");
    stays(&capped, "another function of the scores than a scale");
    let read = format!("{attention}\noutput s");
    stays(&read, "another operator reads the scores");
    let shares = format!("{attention}\noutput p");
    stays(&shares, "another operator reads the scores");
    let tokens = attention
        .replace("b batch 128", "b batch keys")
        .replace("c batch 128", "c batch keys");
    stays(&tokens, "the number of keys may be 0");
}

#[test]
fn attention_of_shared_keys_stays() {
    let reason = "queries, keys and values have different batches or heads";
    stays(
        "input q 1 4 128 2
        input t 1 1 2 128
        input v 1 1 128 2
        s = MatMul(q, t)
        p = Softmax(s) axis=-1
        y = MatMul(p, v)
        output y",
        reason,
    );
}

#[test]
fn products_without_a_softmax_of_the_keys_are_no_attention() {
    let attention = format!("{SEPARATE}\n{BY_HEAD}");
    let queries = attention.replace("axis=-1", "axis=2");
    assert!(kept(&queries).is_empty());
    let weight = "input q 1 2 128 4
        weight t 4 128
        input v 1 2 128 4
        s = MatMul(q, t)
        p = Softmax(s) axis=-1
        y = MatMul(p, v)
        output y";
    assert!(kept(weight).is_empty());
}

#[test]
fn only_onnxruntime_gets_its_operator() {
    let before = model(&format!("{SEPARATE}\n{BY_HEAD}"));
    for target in [Target::Cpu, Target::Portable, Target::Tract] {
        let options = FuseOptions {
            target,
            ..FuseOptions::default()
        };
        let fused = unfold::fuse(&before, &options).unwrap();
        assert!(!operators(&fused.model).contains(&"MultiHeadAttention"));
        assert_eq!(fused.model.opset("com.microsoft"), None);
    }
}
