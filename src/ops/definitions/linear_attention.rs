//! Writes LinearAttention token by token. Each token updates a state, and the query of the token
//! reads this state.
//!
//! ```text
//! linear        S = S + k v            gated         S = exp(g) S + k v
//! delta         S = S + b k (v - k S)  gated_delta   S = exp(g) S, then as delta
//! o = scale q S
//! ```
//!
//! `S` is the state. A token has the key `k`, the value `v`, the query `q`, the decay `g` and the
//! rate `b`. Each of these tensors has the axes batch and head of keys, followed by a matrix. In
//! this matrix `k` is a column, `v` and `k S` are rows, and `q` has a row for each head of queries
//! that shares the keys.

use super::Definition;
use super::writer::Writer;

/// The maximum number of tokens. The operators are written once for each token.
const LONGEST: i64 = 64;

pub(super) const DEFINITION: Definition = Definition {
    operator: ("", "LinearAttention"),
    attributes: &[
        "chunk_size",
        "kv_num_heads",
        "q_num_heads",
        "scale",
        "update_rule",
    ],
    inputs: 6,
    write,
};

/// The extents of the inputs.
struct HeadExtents {
    batch: i64,
    tokens: i64,
    heads: i64,
    /// The number of heads of queries for each head of keys.
    group: i64,
    key: i64,
    value: i64,
}

fn write(writer: &mut Writer) -> Option<()> {
    let rule = writer.text("update_rule", "gated_delta")?;
    let is_gated = ["gated", "gated_delta"].contains(&rule.as_str());
    let is_delta = ["delta", "gated_delta"].contains(&rule.as_str());
    let (decay, beta) = (writer.input(4), writer.input(5));
    let is_known = is_gated || is_delta || rule == "linear";
    if !is_known || decay.is_some() != is_gated || beta.is_some() != is_delta {
        return None;
    }
    let sizes = sizes(writer)?;
    let scale = match writer.float("scale", 0.0)? {
        0.0 => 1.0 / (sizes.key as f64).sqrt(),
        scale => scale.into(),
    };
    let scale = writer.number(scale)?;
    let mut state = writer.input(3);
    if state.is_some() && writer.data_type(3) != writer.data_type(0) {
        return None;
    }
    let mut outputs = vec![];
    for token in 0..sizes.tokens {
        if let (true, Some(before)) = (is_gated, &state) {
            let logarithm = token_of(writer, 4, token, &column(writer, 4, &sizes)?)?;
            let factor = writer.maker.op("Exp", &[&logarithm], vec![]);
            state = Some(writer.pair("Mul", before, &factor));
        }
        let added = change(writer, token, state.as_deref(), is_delta, &sizes)?;
        let next = match &state {
            Some(before) => writer.pair("Add", before, &added),
            None => added,
        };
        let query = token_of(
            writer,
            0,
            token,
            &[sizes.batch, sizes.heads, sizes.group, sizes.key],
        )?;
        let read = writer.pair("MatMul", &query, &next);
        let scaled = writer.pair("Mul", &read, &scale);
        let width = sizes.heads * sizes.group * sizes.value;
        outputs.push(writer.maker.reshape(&scaled, &[sizes.batch, 1, width]));
        state = Some(next);
    }
    let outputs: Vec<&str> = outputs.iter().map(String::as_str).collect();
    let all = writer.concat(&outputs, 1);
    writer.result(0, &all)?;
    if writer.has_output(1) {
        writer.result(1, &state?)
    } else {
        Some(())
    }
}

fn sizes(writer: &Writer) -> Option<HeadExtents> {
    let (queries, heads) = (
        writer.int("q_num_heads", 0)?,
        writer.int("kv_num_heads", 0)?,
    );
    let [batch, tokens, width] = writer.extents(0)?[..] else {
        return None;
    };
    let [_, _, values] = writer.extents(2)?[..] else {
        return None;
    };
    let fits = heads > 0
        && queries > 0
        && queries % heads == 0
        && width % queries == 0
        && values % heads == 0;
    if !fits || !(1..=LONGEST).contains(&tokens) {
        return None;
    }
    let (group, key, value) = (queries / heads, width / queries, values / heads);
    let keys = writer.extents(1)?;
    (keys == [batch, tokens, heads * key]).then_some(HeadExtents {
        batch,
        tokens,
        heads,
        group,
        key,
        value,
    })
}

/// The part of an input that belongs to one token, reshaped to `shape`.
fn token_of(writer: &mut Writer, slot: usize, token: i64, shape: &[i64]) -> Option<String> {
    let value = writer.input(slot)?;
    let token = usize::try_from(token).ok()?;
    let part = writer.maker.slice(&value, &(token..token + 1), 1);
    Some(writer.maker.reshape(&part, shape))
}

/// The shape of the decay or the rate of one token, which broadcasts to the state. The input has an
/// element for each channel of the keys, one for each head, or one for all heads. `None` for other
/// numbers of elements.
fn column(writer: &Writer, slot: usize, sizes: &HeadExtents) -> Option<[i64; 4]> {
    let &HeadExtents {
        batch, heads, key, ..
    } = sizes;
    let width = *writer.extents(slot)?.get(2)?;
    let shapes = [
        (heads * key, [batch, heads, key, 1]),
        (heads, [batch, heads, 1, 1]),
        (1, [batch, 1, 1, 1]),
    ];
    shapes
        .into_iter()
        .find_map(|(count, shape)| (count == width).then_some(shape))
}

/// The term that a token adds to the state.
fn change(
    writer: &mut Writer,
    token: i64,
    state: Option<&str>,
    is_delta: bool,
    sizes: &HeadExtents,
) -> Option<String> {
    let &HeadExtents {
        batch,
        heads,
        key,
        value,
        ..
    } = sizes;
    let column_of_key = token_of(writer, 1, token, &[batch, heads, key, 1])?;
    let mut row = token_of(writer, 2, token, &[batch, heads, 1, value])?;
    if is_delta {
        if let Some(state) = state {
            let row_of_key = token_of(writer, 1, token, &[batch, heads, 1, key])?;
            let known = writer.pair("MatMul", &row_of_key, state);
            row = writer.pair("Sub", &row, &known);
        }
        let rate = token_of(writer, 5, token, &column(writer, 5, sizes)?)?;
        row = writer.pair("Mul", &row, &rate);
    }
    Some(writer.pair("Mul", &column_of_key, &row))
}

#[cfg(test)]
mod tests {
    use crate::ir::builder::{float, int};
    use crate::ops::definitions::tests::{assert_close, one, run, text};
    use crate::run::Tensor;

    /// Computes the outputs for two tokens by the recurrence of the operator on scalars. Two heads
    /// of queries share one head of keys.
    fn attended(rule: &str, past: Option<[[f32; 2]; 2]>, tokens: [[f32; 9]; 2]) -> Vec<f32> {
        let mut state = past.unwrap_or_default();
        let mut outputs = vec![];
        for [q0, q1, q2, q3, k0, k1, v0, v1, gate] in tokens {
            let (keys, mut values) = ([k0, k1], [v0, v1]);
            if rule.starts_with("gated") {
                state
                    .iter_mut()
                    .flatten()
                    .for_each(|number| *number *= gate.exp());
            }
            if rule.ends_with("delta") {
                for (column, value) in values.iter_mut().enumerate() {
                    *value -= keys[0] * state[0][column] + keys[1] * state[1][column];
                    *value *= 0.5;
                }
            }
            for (row, key) in keys.into_iter().enumerate() {
                state[row][0] += key * values[0];
                state[row][1] += key * values[1];
            }
            for query in [[q0, q1], [q2, q3]] {
                for column in [0, 1] {
                    let sum = query[0] * state[0][column] + query[1] * state[1][column];
                    outputs.push(sum * 0.25);
                }
            }
        }
        outputs
    }

    const TOKENS: [[f32; 9]; 2] = [
        [1.0, 2.0, -1.0, 0.5, 0.6, 0.8, 3.0, -2.0, -0.1],
        [0.5, -1.0, 2.0, 1.0, -0.8, 0.6, 1.0, 4.0, -0.7],
    ];

    /// A range of the columns of `TOKENS`, as an input.
    fn columns(columns: std::ops::Range<usize>) -> Tensor {
        let rows: Vec<f32> = TOKENS
            .iter()
            .flat_map(|token| token[columns.clone()].to_vec())
            .collect();
        Tensor::from_shape(&[1, 2, columns.len()], &rows).unwrap()
    }

    #[test]
    fn linear_attention_matches_its_recurrence() {
        let past = [[0.5, -0.5], [1.0, 2.0]];
        let state = Tensor::from_shape(&[1, 1, 2, 2], past.as_flattened()).unwrap();
        let rate = Tensor::from_shape(&[1, 2, 1], &[0.5_f32, 0.5]).unwrap();
        for (rule, line) in [
            ("linear", "LinearAttention q, k, v, past -> y, present"),
            ("gated", "LinearAttention q, k, v, past, g -> y, present"),
            ("delta", "LinearAttention q, k, v, past, , b -> y, present"),
            (
                "gated_delta",
                "LinearAttention q, k, v, past, g, b -> y, present",
            ),
        ] {
            for given in [Some(past), None] {
                let attributes = vec![
                    int("q_num_heads", 2),
                    int("kv_num_heads", 1),
                    float("scale", 0.25),
                    text("update_rule", rule),
                ];
                let mut shapes = vec![
                    ("q", &["1", "2", "4"][..]),
                    ("k", &["1", "2", "2"]),
                    ("v", &["1", "2", "2"]),
                ];
                let mut inputs = vec![columns(0..4), columns(4..6), columns(6..8)];
                let line = if given.is_none() {
                    line.replace("past", "")
                } else {
                    line.to_owned()
                };
                if given.is_some() {
                    shapes.push(("past", &["1", "1", "2", "2"]));
                    inputs.push(state.clone());
                }
                if rule.starts_with("gated") {
                    shapes.push(("g", &["1", "2", "1"]));
                    inputs.push(columns(8..9));
                }
                if rule.ends_with("delta") {
                    shapes.push(("b", &["1", "2", "1"]));
                    inputs.push(rate.clone());
                }
                let outputs = run(&one("", &line, attributes, &shapes), &inputs);
                let expected = attended(rule, given, TOKENS);
                assert_close(
                    &outputs[0],
                    &Tensor::from_shape(&[1, 2, 4], &expected).unwrap(),
                );
                assert_eq!(outputs[1].shape(), [1, 1, 2, 2]);
            }
        }
    }
}
