//! Grouped-query attention: products read keys and values without the repetition, and each head
//! reads its own key. Each rule has a twin in which the repetition stays.

use ndarray::{Array4, ArrayD, Ix4};
use unfold::refusal::Reason;

use crate::common::judge;
use crate::common::numbers::Kind;
use crate::common::reference::{self, Env, Value};
use crate::common::text::model;
use crate::passes::placement::{assert_moves, assert_stays, fused};

/// The numbers of query heads and key heads, and the channels of each head.
const HEADS: usize = 8;
const KEYS: usize = 2;
const CHANNELS: usize = 4;

/// The key that each head reads if each key is repeated in place, and if the list of all keys is
/// repeated.
const REPEATED: fn(usize) -> usize = |head| head / (HEADS / KEYS);
const TILED: fn(usize) -> usize = |head| head % KEYS;

/// Lines that repeat each key of `k` in place as `r`, so that the heads of a group are adjacent.
const SIDE_BY_SIDE: &[&str] = &[
    "ints a 1 = 2\n ints e 5 = 1 1 4 1 1\n ints s 4 = 0 8 -1 4\n u = Unsqueeze(k, a)\n x = Expand(u, e)\n r = Reshape(x, s)",
    "ints a 1 = 2\n ints e 5 = 1 1 4 1 1\n ints s 4 = 0 8 -1 4\n u = Unsqueeze(k, a)\n x = Tile(u, e)\n r = Reshape(x, s)",
    "ints a 1 = 2\n ints s 4 = 0 8 -1 4\n u = Unsqueeze(k, a)\n x = Concat(u, u, u, u) axis=2\n r = Reshape(x, s)",
    "ints g 8 = 0 0 0 0 1 1 1 1\n r = Gather(k, g) axis=1",
    // The legacy exporter computes the Reshape from the shape of the repeated keys.
    "ints a 1 = 2\n ints e 5 = 1 1 4 1 1\n ints z 1 = 0\n ints o 1 = 1\n ints f 1 = 3\n ints l 1 = 5\n ints m 1 = 8
     u = Unsqueeze(k, a)\n x = Tile(u, e)\n n = Shape(x)\n b = Slice(n, z, o)\n c = Slice(n, f, l)
     s = Concat(b, m, c) axis=0\n r = Reshape(x, s)",
];

/// Lines that repeat the list of all keys.
const IN_TURN: &[&str] = &[
    "ints e 4 = 1 4 1 1\n r = Tile(k, e)",
    "r = Concat(k, k, k, k) axis=1",
    "ints g 8 = 0 1 0 1 0 1 0 1\n r = Gather(k, g) axis=1",
    "ints a 1 = 1\n ints e 5 = 1 4 1 1 1\n ints s 4 = 0 8 -1 4\n u = Unsqueeze(k, a)\n x = Expand(u, e)\n r = Reshape(x, s)",
];

/// A model with the lines `repeat`, which repeat the keys, and the lines `behind` with the product.
fn scores(repeat: &str, behind: &str) -> String {
    format!(
        "input q batch 8 tokens 4
         input k batch 2 places 4
         {repeat}
         t = Transpose(r) perm=[0,1,3,2]
         {behind}"
    )
}

const PRODUCT: &str = "y = MatMul(q, t)\n output y";

/// The products of each query with each key that its head reads.
fn products(inputs: &Env, key: fn(usize) -> usize) -> Array4<f64> {
    let [queries, keys] = ["q", "k"].map(|name| array(inputs, name));
    let (batch, _, tokens, _) = queries.dim();
    Array4::from_shape_fn(
        (batch, HEADS, tokens, keys.dim().2),
        |(b, head, token, place)| {
            let channel = |c: usize| queries[[b, head, token, c]] * keys[[b, key(head), place, c]];
            (0..CHANNELS).map(channel).sum()
        },
    )
}

fn array(values: &Env, name: &str) -> Array4<f64> {
    let values = values[name].floats().unwrap().clone();
    values.into_dimensionality::<Ix4>().unwrap()
}

/// Asserts that a fused model computes the expected numbers at several sizes of the open axes.
fn computes(text: &str, expected: impl Fn(&Env) -> Array4<f64>) {
    let before = model(text);
    let after = fused(&before).model;
    for open in [1, 2, 5] {
        let inputs = judge::inputs(&before, open, true, Kind::Exact);
        let made = reference::run(&after, &inputs).unwrap();
        let (made, expected): (&ArrayD<f64>, _) = (made[0].floats().unwrap(), expected(&inputs));
        assert_eq!(made.shape(), expected.shape());
        let difference = (made - &expected.into_dyn()).mapv(f64::abs);
        assert!(
            difference.iter().all(|&difference| difference < 1e-9),
            "{difference}"
        );
    }
}

#[test]
fn grouped_queries_become_rows_of_one_matmul() {
    for repeat in SIDE_BY_SIDE {
        let text = scores(repeat, PRODUCT);
        let placed = assert_moves(
            &text,
            "heads",
            &["Reshape", "Transpose", "MatMul", "Reshape"],
        );
        assert_eq!(
            [placed.before, placed.after],
            ["32·batch·places", "8·batch·places"]
        );
        computes(&text, |inputs| products(inputs, REPEATED));
    }
}

#[test]
fn tiled_keys_become_a_broadcast_matmul() {
    for repeat in IN_TURN {
        let text = scores(repeat, PRODUCT);
        let before = model(&text);
        let after = fused(&before).model;
        let repeats = ["Tile", "Concat", "Gather", "Expand"];
        let made = crate::common::operators(&after);
        // One Concat is left, which computes the shape of the result: two open extents move to
        // other axes, and a Reshape can infer only one.
        let left = made.iter().filter(|op| repeats.contains(op));
        assert_eq!(left.count(), 1, "{made:?}");
        crate::same(&before, &after, 1e-6);
        computes(&text, |inputs| products(inputs, TILED));
    }
}

#[test]
fn tiled_and_repeated_keys_are_not_confused() {
    for (repeats, key) in [(SIDE_BY_SIDE, TILED), (IN_TURN, REPEATED)] {
        for repeat in repeats {
            let before = model(&scores(repeat, PRODUCT));
            let inputs = judge::inputs(&before, 2, true, Kind::Exact);
            let made = reference::run(&fused(&before).model, &inputs).unwrap();
            let other = products(&inputs, key).into_dyn();
            assert_ne!(made[0].floats().unwrap(), &other, "{repeat}");
        }
    }
}

#[test]
fn irregular_head_indices_stay() {
    assert_stays(&scores(
        "ints g 8 = 0 0 0 1 1 1 1 0\n r = Gather(k, g) axis=1",
        PRODUCT,
    ));
    assert_stays(&scores(
        "ints g 8 = 1 1 1 1 0 0 0 0\n r = Gather(k, g) axis=1",
        PRODUCT,
    ));
}

#[test]
fn elementwise_operators_around_grouped_keys_move_along() {
    let lines = "const c = 0.5
         const d = 0.25
         o = Relu(t)
         z = Mul(o, c)
         p = MatMul(q, z)
         m = Mul(p, d)
         y = Tanh(m)
         output y";
    let text = scores(SIDE_BY_SIDE[0], lines);
    // Both scales merge into one Mul.
    let made = [
        "Reshape",
        "Transpose",
        "Relu",
        "MatMul",
        "Mul",
        "Tanh",
        "Reshape",
    ];
    assert_moves(&text, "heads", &made);
    computes(&text, |inputs| {
        let mut inputs = inputs.clone();
        let keys = array(&inputs, "k").mapv(|number| number.max(0.0));
        inputs.insert("k".to_owned(), Value::Floats(keys.into_dyn()));
        products(&inputs, REPEATED).mapv(|number| (number * 0.125).tanh())
    });
}

#[test]
fn cast_after_repeated_keys_moves_before_the_repetition() {
    let cast = "o = Cast(t) to=11\n p = Cast(q) to=11\n y = MatMul(p, o)\n output y";
    let text = scores(SIDE_BY_SIDE[0], cast);
    let made = ["Cast", "Reshape", "Transpose", "Cast", "MatMul", "Reshape"];
    assert_moves(&text, "heads", &made);
    computes(&text, |inputs| products(inputs, REPEATED));
}

#[test]
fn scale_per_head_stays_after_the_matmul() {
    let scaled = "scale c 8 1 1\n z = MatMul(q, t)\n y = Mul(z, c)\n output y";
    let made = ["Reshape", "Transpose", "MatMul", "Reshape", "Mul"];
    assert_moves(&scores(SIDE_BY_SIDE[0], scaled), "heads", &made);
    // After a scale per head, the keys of a group differ.
    assert_stays(&scores(
        SIDE_BY_SIDE[0],
        "scale c 8 1 1\n z = Mul(t, c)\n y = MatMul(q, z)\n output y",
    ));
}

/// A step of a decoder: it appends to the cache, repeats keys and values, and hides places with a
/// mask.
fn step(repeat: fn(&str, &str) -> String) -> String {
    format!(
        "input q batch 8 tokens 4
         input new batch 2 tokens 4
         input value batch 2 tokens 4
         input keys batch 2 past 4
         input values batch 2 past 4
         input mask batch 1 tokens all
         ints a 1 = 2
         k = Concat(keys, new) axis=2
         v = Concat(values, value) axis=2
         {}
         {}
         t = Transpose(kr) perm=[0,1,3,2]
         const c = 0.5
         p = MatMul(q, t)
         m = Mul(p, c)
         h = Add(m, mask)
         w = Softmax(h) axis=-1
         y = MatMul(w, vr)
         output y k v",
        repeat("k", "kr"),
        repeat("v", "vr"),
    )
}

#[test]
fn decoder_step_with_cache_repeats_no_keys_or_values() {
    let expanded = |from: &str, to: &str| {
        format!(
            "ints {from}e 5 = 1 1 4 1 1\n ints {from}s 4 = 0 8 -1 4
             {from}u = Unsqueeze({from}, a)\n {from}x = Expand({from}u, {from}e)\n {to} = Reshape({from}x, {from}s)"
        )
    };
    let gathered = |from: &str, to: &str| {
        format!("ints {from}g 8 = 0 0 0 0 1 1 1 1\n {to} = Gather({from}, {from}g) axis=1")
    };
    for repeat in [expanded as fn(&str, &str) -> String, gathered] {
        let text = step(repeat);
        let before = model(&text);
        let after = fused(&before);
        let heads = after
            .plan
            .placed
            .iter()
            .filter(|placed| placed.rule == "heads");
        assert_eq!(heads.count(), 2, "{:?}", after.plan.placed);
        let kept = crate::common::operators(&after.model);
        assert!(
            !kept
                .iter()
                .any(|op| ["Expand", "Gather", "Unsqueeze"].contains(op)),
            "{kept:?}"
        );
        let inputs = sizes(&before, [3, 2, 5]);
        let made = reference::run(&after.model, &inputs).unwrap();
        let difference = made[0].floats().unwrap() - &attention(&inputs).into_dyn();
        assert!(
            difference.iter().all(|difference| difference.abs() < 1e-9),
            "{difference}"
        );
    }
}

/// Inputs of a step for the given numbers of samples, tokens and cached places.
fn sizes(before: &unfold::onnx::Model, [batch, tokens, past]: [usize; 3]) -> Env {
    let shapes = [
        ("q", [batch, HEADS, tokens, CHANNELS]),
        ("new", [batch, KEYS, tokens, CHANNELS]),
        ("value", [batch, KEYS, tokens, CHANNELS]),
        ("keys", [batch, KEYS, past, CHANNELS]),
        ("values", [batch, KEYS, past, CHANNELS]),
        ("mask", [batch, 1, tokens, past + tokens]),
    ];
    let mut inputs = judge::inputs(before, 1, true, Kind::Exact);
    for (name, shape) in shapes {
        let number = |(b, c, t, d): (usize, usize, usize, usize)| {
            ((b * 7 + c * 5 + t * 3 + d * 2 + name.len()) % 11) as f64 / 4.0 - 1.0
        };
        let numbers = Array4::from_shape_fn(shape, number).into_dyn();
        inputs.insert(name.to_owned(), Value::Floats(numbers));
    }
    inputs
}

/// The output of attention in which each head reads the keys and values of its group.
fn attention(inputs: &Env) -> Array4<f64> {
    let joined = |old: &str, new: &str| {
        ndarray::concatenate(
            ndarray::Axis(2),
            &[array(inputs, old).view(), array(inputs, new).view()],
        )
        .unwrap()
    };
    let (keys, values) = (joined("keys", "new"), joined("values", "value"));
    let (queries, mask) = (array(inputs, "q"), array(inputs, "mask"));
    let mut made = Array4::zeros(queries.raw_dim());
    for ((b, head, token, channel), number) in made.indexed_iter_mut() {
        let group = head / (HEADS / KEYS);
        let weights: Vec<f64> = (0..keys.dim().2)
            .map(|place| {
                let product: f64 = (0..CHANNELS)
                    .map(|c| queries[[b, head, token, c]] * keys[[b, group, place, c]])
                    .sum();
                (product * 0.5 + mask[[b, 0, token, place]]).exp()
            })
            .collect();
        let sum: f64 = weights.iter().sum();
        let weighted = weights
            .iter()
            .enumerate()
            .map(|(place, weight)| weight * values[[b, group, place, channel]]);
        *number = weighted.sum::<f64>() / sum;
    }
    made
}

/// The reason why a product with a repeated second operand stays.
fn reason(text: &str) -> Reason {
    assert_stays(text);
    let placed = fused(&model(text)).plan.placed;
    let [refused] = &placed[..] else {
        panic!("{placed:?}")
    };
    refused.why.clone().unwrap().reason
}

#[test]
fn repeated_keys_with_another_reader_stay() {
    let other = "y = MatMul(q, t)\n z = Relu(r)\n output y z";
    assert_eq!(reason(&scores(SIDE_BY_SIDE[0], other)), Reason::OtherReader);
    let output = "y = MatMul(q, t)\n output y r";
    assert_eq!(
        reason(&scores(SIDE_BY_SIDE[0], output)),
        Reason::GraphOutput
    );
    // The repeated keys are the first operand too, as themselves or as a shape of it.
    for rows in [
        "y = MatMul(r, t)\n output y",
        "n = Shape(r)\n p = Expand(q, n)\n y = MatMul(p, t)\n output y",
    ] {
        assert_eq!(reason(&scores(IN_TURN[0], rows)), Reason::OtherReader);
    }
}

#[test]
fn keys_repeated_along_rows_or_columns_stay() {
    let product = |keys: &str, repeat: &str| {
        format!(
            "input q batch 2 tokens 4\n input k batch 2 {keys}\n {repeat}\n y = MatMul(q, r)\n output y"
        )
    };
    // First the rows are repeated, over which the product sums, and then the columns.
    let rows = "ints g 4 = 0 0 1 1\n r = Gather(k, g) axis=2";
    assert_eq!(reason(&product("2 5", rows)), Reason::RepeatedAxis);
    let columns = "ints g 10 = 0 0 1 1 2 2 3 3 4 4\n r = Gather(k, g) axis=3";
    assert_eq!(reason(&product("4 5", columns)), Reason::RepeatedAxis);
}

#[test]
fn repeated_keys_with_one_shared_query_stay() {
    let text = "input q batch 1 tokens 4
         input k batch 2 4 places
         ints g 8 = 0 0 0 0 1 1 1 1
         r = Gather(k, g) axis=1
         y = MatMul(q, r)
         output y";
    assert_eq!(reason(text), Reason::UnknownShape);
}

#[test]
fn heads_without_batch_or_on_a_separate_axis_are_grouped() {
    let without = "input q 8 tokens 4
         input k 2 4 places
         ints g 8 = 0 0 0 0 1 1 1 1
         r = Gather(k, g) axis=0
         y = MatMul(q, r)
         output y";
    assert_moves(without, "heads", &["Reshape", "MatMul", "Reshape"]);
    let apart = "input q batch 2 4 tokens 4
         input k batch 2 1 4 places
         ints e 5 = 1 1 4 1 1
         r = Expand(k, e)
         y = MatMul(q, r)
         output y";
    assert_moves(apart, "heads", &["Reshape", "MatMul", "Reshape"]);
}

#[test]
fn heads_before_another_batch_axis_become_a_broadcast() {
    let text = |samples: &str| {
        format!(
            "input q 8 {samples} tokens 4
             input k 2 {samples} 4 places
             ints g 8 = 0 0 0 0 1 1 1 1
             r = Gather(k, g) axis=0
             y = MatMul(q, r)
             output y"
        )
    };
    for samples in ["3", "batch"] {
        let before = model(&text(samples));
        let after = fused(&before).model;
        let made = crate::common::operators(&after);
        assert!(!made.contains(&"Gather"), "{made:?}");
        crate::same(&before, &after, 1e-6);
    }
}
