//! The parts of a masked attention leave out the keys that the mask hides from all their queries.

use unfold::onnx::Model;
use unfold::onnx::proto::NodeProto;
use unfold::onnx::tensor::read_i64;
use unfold::plan::CutRegion;
use unfold::prove::{Proof, prove};
use unfold::{FuseOptions, Fused, Slicing};

use crate::common::text::{model, print};
use crate::common::{initializer, operators};
use crate::same;

/// The lowest finite float.
const LOWEST: &str = "-3.4028234663852886e38";

/// The number of queries, which is also the number of keys.
const TOKENS: usize = 12;

/// Attention with two heads in which the lines `masking` compute `t` from the scores `s`.
fn attention(masking: &str) -> Model {
    model(&format!(
        "input q 1 2 {TOKENS} 4
        input k 1 2 4 {TOKENS}
        input v 1 2 {TOKENS} 4
        s = MatMul(q, k)
        {masking}
        p = Softmax(t) axis=-1
        y = MatMul(p, v)
        output y"
    ))
}

/// A mask constant for all pairs of a query and a key, with the number `hidden` where `hides` is
/// true and 0 elsewhere.
fn mask(name: &str, hidden: &str, hides: fn(usize, usize) -> bool) -> String {
    let pairs = (0..TOKENS * TOKENS).map(|pair| (pair / TOKENS, pair % TOKENS));
    let numbers = pairs.map(|(query, key)| if hides(query, key) { hidden } else { "0" });
    let numbers: Vec<&str> = numbers.collect();
    format!("const {name} 1 1 {TOKENS} {TOKENS} = {}", numbers.join(" "))
}

fn is_later(query: usize, key: usize) -> bool {
    key > query
}

/// Slices an attention into three parts and asserts that this is proved. Returns the result and the
/// cut.
fn sliced(before: &Model) -> (Model, CutRegion) {
    let options = FuseOptions {
        slicing: Slicing {
            parts: Some(3),
            ..Slicing::default()
        },
        ..FuseOptions::default()
    };
    let Fused {
        model: after, plan, ..
    } = unfold::fuse(before, &options).unwrap();
    let proof = prove(before, &after, &plan.tensors, &Default::default());
    assert!(
        matches!(proof, Proof::Proved { .. }),
        "{proof:?}\n{}",
        print(&after)
    );
    let again = unfold::fuse(&after, &options).unwrap().model;
    assert_eq!(print(&again), print(&after));
    let [cut] = &plan.memory.unwrap().cuts[..] else {
        panic!("{}", print(&after));
    };
    (after, cut.clone())
}

/// The range of places that each part reads of `v`.
fn keys_of_values(after: &Model) -> Vec<[i64; 2]> {
    let nodes = after.graph().node.iter();
    let slices = nodes.filter(|node| node.op_type() == "Slice" && node.input[0] == "v");
    slices
        .map(|node| [1, 2].map(|slot| bound(after, node, slot)))
        .collect()
}

fn bound(after: &Model, node: &NodeProto, slot: usize) -> i64 {
    let tensor = initializer(after, &node.input[slot]);
    read_i64(tensor, after.externals()).unwrap()[[0]]
}

/// Asserts that a causal mask of twelve places is used in three parts: the first part sees four
/// keys, and the second eight.
fn assert_causal(masking: &str) {
    let before = attention(masking);
    let (after, cut) = sliced(&before);
    same(&before, &after, 1e-6);
    assert_keys(&after, &cut);
}

fn assert_keys(after: &Model, cut: &CutRegion) {
    let all = (cut.parts, cut.scores, cut.left_out);
    assert_eq!(all, (3, 144, 4 * 8 + 4 * 4));
    assert_eq!(cut.mask, None);
    assert_eq!(keys_of_values(after), [[0, 4], [0, 8]]);
}

#[test]
fn hidden_keys_of_an_added_mask_are_left_out() {
    for hidden in ["-inf", LOWEST] {
        let mask = mask("mask", hidden, is_later);
        assert_causal(&format!("{mask}\nt = Add(s, mask)"));
    }
}

#[test]
fn hidden_keys_of_a_selection_are_left_out() {
    let places: Vec<String> = (0..TOKENS).map(|place| place.to_string()).collect();
    let places = places.join(" ");
    let ranges = format!("ints row {TOKENS} 1 = {places}\nints column {TOKENS} = {places}");
    for far in ["-inf", LOWEST] {
        let before = attention(&format!(
            "{ranges}
            const far = {far}
            c = Greater(column, row)
            t = Where(c, far, s)"
        ));
        let (after, cut) = sliced(&before);
        assert_keys(&after, &cut);
    }
}

#[test]
fn hidden_keys_of_a_computed_triangle_are_left_out() {
    let before = attention(
        "ints shape 2 = 12 12
        const far = -inf
        const zero = 0
        const one = 1
        wide = Expand(one, shape)
        past = Trilu(wide) upper=0
        c = Equal(past, zero)
        mask = Where(c, far, zero)
        t = Add(s, mask)",
    );
    let (after, cut) = sliced(&before);
    assert_keys(&after, &cut);
}

#[test]
fn scaled_scores_are_hidden_like_others() {
    let mask = mask("mask", LOWEST, is_later);
    assert_causal(&format!(
        "{mask}
        const half = 0.5
        r = Mul(s, half)
        t = Add(mask, r)"
    ));
}

#[test]
fn sliding_window_leaves_out_keys_on_both_sides() {
    let mask = mask("mask", "-inf", |query, key| key > query || key + 2 < query);
    let before = attention(&format!("{mask}\nt = Add(s, mask)"));
    let (after, cut) = sliced(&before);
    same(&before, &after, 1e-6);
    // The three parts see the keys 0–3, 2–7 and 6–11.
    assert_eq!(keys_of_values(&after), [[0, 4], [2, 8], [6, 12]]);
    assert_eq!((cut.scores, cut.left_out), (144, 4 * 8 + 4 * 6 + 4 * 6));
}

#[test]
fn large_negative_numbers_are_not_masks() {
    for hidden in ["-1e9", "-10000", "-3.4e38"] {
        let mask = mask("mask", hidden, is_later);
        let (_, cut) = sliced(&attention(&format!("{mask}\nt = Add(s, mask)")));
        assert_eq!(
            (cut.scores, cut.left_out, cut.mask),
            (0, 0, None),
            "{hidden}"
        );
    }
}

#[test]
fn mask_that_hides_a_row_is_not_used() {
    for hidden in ["-inf", LOWEST] {
        let mask = mask("mask", hidden, |query, key| key > query || query == 4);
        let before = attention(&format!("{mask}\nt = Add(s, mask)"));
        let cut = cut_alone(&before);
        let reason = "its mask leaves query 4 no key";
        assert_eq!((cut.left_out, cut.mask.as_deref()), (0, Some(reason)));
    }
}

#[test]
fn lowest_number_needs_a_place_with_nothing_added() {
    // Each query sees one key, to whose score a bias is added.
    let bias = mask("bias", "1", |query, key| key == query);
    let mask = mask("mask", LOWEST, |query, key| key != query);
    let before = attention(&format!(
        "{mask}\n{bias}\nr = Add(s, bias)\nt = Add(r, mask)"
    ));
    let cut = cut_alone(&before);
    assert_eq!(cut.mask.as_deref(), Some("its mask leaves query 0 no key"));
}

#[test]
fn padding_mask_of_an_input_is_refused_with_a_reason() {
    let mask = mask("mask", "-inf", is_later);
    let added = format!("input padding 1 1 1 12\n{mask}\nr = Add(s, padding)\nt = Add(r, mask)");
    let selected = format!(
        "indices lengths 1 1 1 12
        const far = -inf
        {mask}
        padding = Cast(lengths) to=9
        r = Where(padding, s, far)
        t = Add(r, mask)"
    );
    for masking in [added, selected] {
        let cut = cut_alone(&attention(&masking));
        let reason = "its mask depends on `padding`, which may hide all keys of a query";
        assert_eq!((cut.left_out, cut.mask.as_deref()), (0, Some(reason)));
    }
}

#[test]
fn weights_with_another_reader_keep_all_keys() {
    let mask = mask("mask", "-inf", is_later);
    let before = model(&format!(
        "input q 1 2 12 4
        input k 1 2 4 12
        input v 1 2 12 4
        {mask}
        s = MatMul(q, k)
        t = Add(s, mask)
        p = Softmax(t) axis=-1
        e = Exp(p)
        y = MatMul(e, v)
        output y"
    ));
    let cut = cut_alone(&before);
    let reason = "other nodes read the scores or the weights of hidden keys";
    assert_eq!((cut.left_out, cut.mask.as_deref()), (0, Some(reason)));
}

#[test]
fn mask_of_each_head_leaves_out_what_all_heads_hide() {
    // The first head sees the past, and the second sees the past without the last two keys.
    let pairs = (0..2 * 144).map(|place| (place / 144, place / 12 % 12, place % 12));
    let numbers = pairs.map(|(head, query, key)| {
        let hides = key > query || head == 1 && key > 0 && key + 2 > query;
        if hides { "-inf" } else { "0" }
    });
    let numbers: Vec<&str> = numbers.collect();
    let mask = format!("const mask 1 2 12 12 = {}", numbers.join(" "));
    let (after, _) = sliced(&attention(&format!("{mask}\nt = Add(s, mask)")));
    assert_eq!(keys_of_values(&after), [[0, 4], [0, 8]]);
}

/// Causal attention of two heads of 768 queries, with 4.7 MB of scores.
fn large() -> Model {
    let places: Vec<String> = (0..768).map(|place| place.to_string()).collect();
    let places = places.join(" ");
    model(&format!(
        "input q 1 2 768 4
        input k 1 2 4 768
        input v 1 2 768 4
        ints row 768 1 = {places}
        ints column 768 = {places}
        const far = -inf
        s = MatMul(q, k)
        c = Greater(column, row)
        t = Where(c, far, s)
        p = Softmax(t) axis=-1
        y = MatMul(p, v)
        output y"
    ))
}

#[test]
fn large_masked_attention_is_cut_by_default() {
    let before = large();
    let Fused {
        model: after, plan, ..
    } = unfold::fuse(&before, &FuseOptions::default()).unwrap();
    let change = plan.memory.unwrap();
    let [cut] = &change.cuts[..] else {
        panic!("{change:?}");
    };
    // Of each pair of parts, only the later part sees the keys of the other.
    assert_eq!((cut.parts, cut.left_out), (8, 96 * 96 * 28));
    assert!(change.after < change.before);
    let proof = prove(&before, &after, &plan.tensors, &Default::default());
    assert!(matches!(proof, Proof::Proved { .. }), "{proof:?}");
    let again = unfold::fuse(&after, &FuseOptions::default()).unwrap();
    assert_eq!(
        (print(&again.model), again.plan.memory),
        (print(&after), None)
    );
}

#[test]
fn large_masked_attention_stays_whole_for_any_engine_and_on_request() {
    let portable = FuseOptions {
        target: unfold::Target::Portable,
        ..FuseOptions::default()
    };
    let skipping = FuseOptions {
        skip: vec!["slicing".into()],
        ..FuseOptions::default()
    };
    for options in [portable, skipping] {
        let fused = unfold::fuse(&large(), &options).unwrap();
        assert_eq!(fused.plan.memory, None);
        assert!(!operators(&fused.model).contains(&"Split"));
    }
}

/// The cut of an attention. Does not compare results.
fn cut_alone(before: &Model) -> CutRegion {
    let options = FuseOptions {
        slicing: Slicing {
            parts: Some(3),
            ..Slicing::default()
        },
        ..FuseOptions::default()
    };
    let fused = unfold::fuse(before, &options).unwrap();
    assert!(operators(&fused.model).contains(&"Split"));
    fused.plan.memory.unwrap().cuts[0].clone()
}
