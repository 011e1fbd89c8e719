//! Writes attention with several heads as separate operators.

use super::writer::Writer;
use crate::ir::builder::int;

/// Splits the last axis of a value `[batch, token, head·channel]` into heads: `[batch, head, token,
/// channel]`.
pub(super) fn split_heads(writer: &mut Writer, value: &str, heads: i64, width: i64) -> String {
    let split = writer.maker.reshape(value, &[0, 0, heads, width / heads]);
    writer.maker.transpose(&split, &[0, 2, 1, 3])
}

/// The scaled products of queries and keys, `[batch, head, query, key]`. The scale is the attribute
/// `scale`, or `1/√channels` if it is 0 or absent.
pub(super) fn scaled_scores(
    writer: &mut Writer,
    queries: &str,
    keys: &str,
    channels: i64,
) -> Option<String> {
    let scale = match writer.float("scale", 0.0)? {
        0.0 => 1.0 / (channels as f64).sqrt(),
        scale => scale.into(),
    };
    let keys = writer.swapped(keys, 4)?;
    let products = writer.pair("MatMul", queries, &keys);
    if scale == 1.0 {
        return Some(products);
    }
    let scale = writer.number(scale)?;
    Some(writer.pair("Mul", &products, &scale))
}

/// Adds the product of the Softmax of the scores and the values, with the heads merged into
/// `[batch, token, width]`.
pub(super) fn weighted(writer: &mut Writer, scores: &str, values: &str, width: i64) -> String {
    let last = vec![int("axis", -1)];
    let shares = writer.maker.op("Softmax", &[scores], last);
    let mixed = writer.pair("MatMul", &shares, values);
    let together = writer.maker.transpose(&mixed, &[0, 2, 1, 3]);
    writer.maker.reshape(&together, &[0, 0, width])
}
