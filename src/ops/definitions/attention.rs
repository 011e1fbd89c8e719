//! Attention of `com.microsoft` without a cache. One MatMul computes queries, keys and values.
//!
//! ```text
//! q, k, v = Split(input weights + bias), by heads      output = softmax(scale q k^T + mask) v
//! ```
//!
//! The mask `[batch, key]` is 0 for each hidden key. `mask_filter_value` is added to the scores of
//! hidden keys.

use super::Definition;
use super::heads::{scaled_scores, split_heads, weighted};
use super::writer::Writer;
use crate::onnx::tensor::DataType;

/// The default of `mask_filter_value`.
const HIDDEN: f32 = -10_000.0;

pub(super) const DEFINITION: Definition = Definition {
    operator: ("com.microsoft", "Attention"),
    attributes: &[
        "do_rotary",
        "mask_filter_value",
        "num_heads",
        "qkv_hidden_sizes",
        "scale",
        "unidirectional",
    ],
    inputs: 6,
    write,
};

fn write(writer: &mut Writer) -> Option<()> {
    let is_plain = writer.int("do_rotary", 0)? == 0 && writer.int("unidirectional", 0)? == 0;
    if !is_plain || writer.input(4).is_some() || writer.has_output(1) {
        return None;
    }
    let [_, width] = writer.extents(1)?[..] else {
        return None;
    };
    let heads = writer.int("num_heads", 0)?;
    let widths = match writer.ints("qkv_hidden_sizes")? {
        given if given.is_empty() => vec![width / 3; 3],
        given => given,
    };
    let &[queries, keys, values] = &widths[..] else {
        return None;
    };
    let divides = heads > 0 && widths.iter().all(|width| width % heads == 0);
    if !divides || queries != keys || queries + keys + values != width {
        return None;
    }
    let (input, weights) = (writer.input(0)?, writer.input(1)?);
    let mut product = writer.pair("MatMul", &input, &weights);
    if let Some(bias) = writer.input(2) {
        product = writer.pair("Add", &product, &bias);
    }
    let parts = writer.maker.split(&product, 2, &widths);
    let mut by_head = vec![];
    for (part, width) in parts.iter().zip(&widths) {
        by_head.push(split_heads(writer, part, heads, *width));
    }
    let scores = masked_scores(writer, &by_head, queries / heads)?;
    let output = weighted(writer, &scores, &by_head[2], values);
    writer.result(0, &output)
}

/// The scores of queries and keys, with the mask applied.
fn masked_scores(writer: &mut Writer, by_head: &[String], width: i64) -> Option<String> {
    let mut scores = scaled_scores(writer, &by_head[0], &by_head[1], width)?;
    if let Some(mask) = writer.input(3) {
        if writer.extents(3)? != writer.extents(0)?[..2] {
            return None;
        }
        let shown = writer.maker.cast(&mask, DataType::Bool);
        let shown = writer.maker.unsqueeze(&shown, &[1, 2]);
        let hidden = writer.number(writer.float("mask_filter_value", HIDDEN)?.into())?;
        let zero = writer.number(0.0)?;
        let added = writer.maker.op("Where", &[&shown, &zero, &hidden], vec![]);
        scores = writer.pair("Add", &scores, &added);
    }
    if let Some(bias) = writer.input(5) {
        scores = writer.pair("Add", &scores, &bias);
    }
    Some(scores)
}

#[cfg(test)]
mod tests {
    use tract_onnx::prelude::{tensor2, tensor3};

    use crate::ir::builder::int;
    use crate::onnx::tensor::DataType;
    use crate::ops::definitions::tests::{assert_close, one, run};
    use crate::ops::definitions::{LACKING, written_out};
    use crate::run::testing::value;

    #[test]
    fn onnxruntime_attention_applies_its_mask() {
        let shapes = [("x", &["1", "2", "2"][..]), ("w", &["2", "6"])];
        let attributes = vec![int("num_heads", 1)];
        let mut model = one(
            "com.microsoft",
            "Attention x, w, , mask -> y",
            attributes,
            &shapes,
        );
        model
            .graph_mut()
            .input
            .push(value("mask", DataType::Int32, &["1", "2"]));
        let weights = [
            [1_f32, 0.0, 1.0, 0.0, 2.0, 0.0],
            [0.0, 1.0, 0.0, 1.0, 0.0, 3.0],
        ];
        let x = tensor3(&[[[1_f32, 0.0], [0.0, 2.0]]]);
        let [hidden, open] =
            [[1, 0], [1, 1]].map(|mask: [i32; 2]| [x.clone(), tensor2(&weights), tensor2(&[mask])]);
        // With the mask, each token reads only the first value.
        assert_close(
            &run(&model, &hidden)[0],
            &tensor3(&[[[2_f32, 0.0], [2.0, 0.0]]]),
        );
        let [[a, b], [c, d]] = [[1_f32, 0.0], [0.0, 4.0]].map(|scores| {
            let [one, other] = scores.map(|score| (score / 2_f32.sqrt()).exp());
            [one / (one + other), other / (one + other)]
        });
        let expected = tensor3(&[[[2.0 * a, 6.0 * b], [2.0 * c, 6.0 * d]]]);
        assert_close(&run(&model, &open)[0], &expected);
        model.graph_mut().node[0]
            .attribute
            .push(int("unidirectional", 1));
        assert!(written_out(&model, LACKING).is_none());
    }
}
