//! Products of few rows read tokens instead of their projections. Similar models stay.

use crate::passes::placement::{assert_moves, assert_stays};

/// An attention of four heads, whose keys and values are projections of `x`.
fn attention(rows: &str, tokens: &str, lines: &str) -> String {
    format!(
        "input x batch {tokens} 64
         input q batch 4 {rows} 16
         weight w 64 128
         shift b 128
         ints parts 5 = 0 0 2 4 16
         ints first = 0
         ints second = 1
         {lines}"
    )
}

/// Keys and values from one packed product, with the queries as an input.
const PACKED: &str = "p = MatMul(x, w)
    a = Add(p, b)
    r = Reshape(a, parts)
    t = Transpose(r) perm=[2,0,3,1,4]
    k = Gather(t, first) axis=0
    v = Gather(t, second) axis=0
    c = Transpose(k) perm=[0,1,3,2]
    s = MatMul(q, c)
    m = Softmax(s)
    y = MatMul(m, v)
    output y";

/// The operators of the result, in the order of the nodes.
const FEW_ROWS: &[&str] = &[
    "MatMul",
    "Reshape",
    "Transpose",
    "MatMul",
    "Reshape",
    "MatMul",
    "Add",
    "Softmax",
    "Reshape",
    "MatMul",
    "Reshape",
    "MatMul",
    "Add",
];

#[test]
fn one_query_reads_tokens_instead_of_packed_keys_and_values() {
    let placed = assert_moves(&attention("1", "36", PACKED), "association", FEW_ROWS);
    // The keys take 64·64 products for each of 36 tokens, and the scores take 64.
    let before = (64 * 64 + 4 * 16) * 36;
    // Each of 4 rows takes 64 products for each of 36 tokens, and for each of 16 channels.
    let after = 4 * 64 * 36 + 4 * 64 * 16;
    assert_eq!(
        [placed.before, placed.after],
        [before, after].map(|products| format!("{products}·batch"))
    );
}

#[test]
fn one_query_of_an_open_number_of_tokens_reads_the_tokens() {
    assert_moves(&attention("1", "tokens", PACKED), "association", FEW_ROWS);
    assert_moves(&attention("2", "48", PACKED), "association", FEW_ROWS);
    // With two tokens, two queries would need more products.
    assert_stays(&attention("2", "tokens", PACKED));
}

#[test]
fn as_many_queries_as_tokens_read_projections() {
    assert_stays(&attention("36", "36", PACKED));
    assert_stays(&attention("rows", "36", PACKED));
}

#[test]
fn projection_with_another_reader_stays() {
    let also = PACKED.replace("output y", "output y v");
    assert_stays(&attention("1", "36", &also));
    let also = PACKED.replace("output y", "z = Relu(k)\n output y z");
    assert_stays(&attention("1", "36", &also));
}

/// The mean of values, with the weights that a line computes.
fn mean(weights: &str, bias: &str) -> String {
    let lines = format!(
        "input g batch 4 1 36
         ints heads 4 = 0 0 8 16
         {weights}
         p = MatMul(x, w)
         {bias}
         r = Reshape(a, heads)
         t = Transpose(r) perm=[0,2,1,3]
         n = Slice(t, zero, four, one)
         y = MatMul(m, n)
         output y"
    );
    let bounds = "ints zero 1 = 0\n ints four 1 = 4\n ints one 1 = 1\n";
    attention("1", "36", &format!("{bounds}{lines}"))
}

#[test]
fn bias_of_values_passes_only_weights_that_add_up_to_one() {
    let [biased, plain] = ["a = Add(p, b)", "a = Identity(p)"];
    let [shares, sums] = ["m = Softmax(g)", "m = Sigmoid(g)"];
    let values = ["Reshape", "MatMul", "Reshape", "MatMul"];
    let with_bias = [&["Softmax"], &values[..], &["Add"]].concat();
    assert_moves(&mean(shares, biased), "association", &with_bias);
    assert_moves(
        &mean(sums, plain),
        "association",
        &[&["Sigmoid"], &values[..]].concat(),
    );
    assert_stays(&mean(sums, biased));
    assert_stays(&mean("m = Softmax(g) axis=1", biased));
}

/// An attention as torch's MultiheadAttention exports it: samples and heads are one axis, and the
/// tokens are the first axis of `x`. `queries` computes `q`.
fn merged(queries: &str, split: &str) -> String {
    format!(
        "input x 64 batch 64
         weight w 64 128
         shift b 128
         weight v 64 128
         shift c 128
         ints heads 3 = {split}
         {queries}
         p = MatMul(x, w)
         a = Add(p, b)
         k = Reshape(a, heads)
         l = MatMul(x, v)
         d = Add(l, c)
         n = Reshape(d, heads)
         columns = Transpose(k) perm=[1,2,0]
         rows = Transpose(n) perm=[1,0,2]
         s = MatMul(q, columns)
         m = Softmax(s)
         y = MatMul(m, rows)
         output y"
    )
}

#[test]
fn one_query_reads_tokens_if_samples_and_heads_are_one_axis() {
    let moved = [
        "Reshape",
        "Transpose",
        "Reshape",
        "MatMul",
        "Reshape",
        "Transpose",
        "MatMul",
        "Reshape",
        "MatMul",
        "Reshape",
        "Add",
        "Softmax",
        "Reshape",
        "Transpose",
        "MatMul",
        "Reshape",
        "MatMul",
        "Add",
        "Reshape",
    ];
    for rows in [1, 2] {
        let queries = format!(
            "input g {rows} batch 128
             ints own 3 = {rows} -1 16
             h = Reshape(g, own)
             q = Transpose(h) perm=[1,0,2]"
        );
        // The Reshape and the Transpose of one query are merged with the next Reshape.
        let skipped = if rows == 1 { 2 } else { 0 };
        assert_moves(
            &merged(&queries, "64 -1 16"),
            "association",
            &moved[skipped..],
        );
    }
}

#[test]
fn queries_read_projections_whose_samples_or_tokens_are_merged_otherwise() {
    // Row `h·batch + b` of the operands is head h of sample b.
    assert_stays(
        "input x 64 batch 64
         input g 1 batch 128
         weight w 64 128
         ints heads 4 = 0 0 8 16
         ints joined 3 = 0 -1 16
         p = MatMul(x, w)
         r = Reshape(p, heads)
         t = Transpose(r) perm=[0,2,1,3]
         k = Reshape(t, joined)
         columns = Transpose(k) perm=[1,2,0]
         e = Reshape(g, heads)
         f = Transpose(e) perm=[0,2,1,3]
         h = Reshape(f, joined)
         q = Transpose(h) perm=[1,0,2]
         y = MatMul(q, columns)
         output y",
    );
    // The heads are merged with the tokens.
    assert_stays(&merged("input q batch 1 16", "512 -1 16"));
}
