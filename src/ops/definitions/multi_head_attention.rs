//! MultiHeadAttention of `com.microsoft`: attention of rows `[batch, token, head·channel]`, without
//! a cache, a mask or packed operands.
//!
//! ```text
//! q, k, v by heads      output = softmax(scale q k^T + bias) v, with the heads next to each other
//! ```

use super::Definition;
use super::heads::{scaled_scores, split_heads, weighted};
use super::writer::Writer;

pub(super) const DEFINITION: Definition = Definition {
    operator: ("com.microsoft", "MultiHeadAttention"),
    attributes: &["mask_filter_value", "num_heads", "scale", "unidirectional"],
    inputs: 6,
    write,
};

fn write(writer: &mut Writer) -> Option<()> {
    let has_others = [3, 4].iter().any(|&slot| writer.input(slot).is_some());
    let has_states = (1..4).any(|slot| writer.has_output(slot));
    if has_others || has_states || writer.int("unidirectional", 0)? != 0 {
        return None;
    }
    let heads = writer.int("num_heads", 0)?;
    let mut by_head = vec![];
    for slot in 0..3 {
        let value = writer.input(slot)?;
        let width = writer
            .width(slot)
            .filter(|_| writer.rank(slot) == Some(3))?;
        if heads <= 0 || width % heads != 0 {
            return None;
        }
        by_head.push(split_heads(writer, &value, heads, width));
    }
    let channels = writer.width(0)? / heads;
    let mut scores = scaled_scores(writer, &by_head[0], &by_head[1], channels)?;
    if let Some(bias) = writer.input(5) {
        scores = writer.pair("Add", &scores, &bias);
    }
    let width = writer.width(2)?;
    let output = weighted(writer, &scores, &by_head[2], width);
    writer.result(0, &output)
}

#[cfg(test)]
mod tests {
    use tract_onnx::prelude::tensor3;

    use crate::ir::builder::{float, int};
    use crate::onnx::Model;
    use crate::onnx::proto::AttributeProto;
    use crate::ops::definitions::tests::{assert_close, one, run};
    use crate::ops::definitions::{LACKING, written_out};

    /// A model with one query and two keys. There are two heads with two channels for queries and
    /// keys, and one channel for values.
    fn attention(attribute: Vec<AttributeProto>) -> Model {
        let shapes = [
            ("q", &["1", "1", "4"][..]),
            ("k", &["1", "2", "4"]),
            ("v", &["1", "2", "2"]),
        ];
        let line = "MultiHeadAttention q, k, v -> y";
        one("com.microsoft", line, attribute, &shapes)
    }

    #[test]
    fn each_head_weighs_its_own_values() {
        let inputs = [
            tensor3(&[[[1_f32, 0.0, 0.0, 2.0]]]),
            tensor3(&[[[1_f32, 9.0, 9.0, 0.0], [0.0, 9.0, 9.0, 1.0]]]),
            tensor3(&[[[1_f32, 10.0], [2.0, 30.0]]]),
        ];
        for (attributes, scale) in [
            (vec![int("num_heads", 2)], 0.5_f32.sqrt()),
            (vec![int("num_heads", 2), float("scale", 3.0)], 3.0),
        ] {
            // The scores of the first head are s and 0, those of the second head are 0 and 2·s.
            let first = scale.exp() / (scale.exp() + 1.0);
            let second = 1.0 / (1.0 + (2.0 * scale).exp());
            let expected = [
                first + 2.0 * (1.0 - first),
                10.0 * second + 30.0 * (1.0 - second),
            ];
            let y = run(&attention(attributes), &inputs);
            assert_close(&y[0], &tensor3(&[[expected]]));
        }
    }

    #[test]
    fn a_causal_attention_keeps_its_operator() {
        let attributes = vec![int("num_heads", 2), int("unidirectional", 1)];
        assert!(written_out(&attention(attributes), LACKING).is_none());
        assert!(written_out(&attention(vec![int("num_heads", 3)]), LACKING).is_none());
    }
}
