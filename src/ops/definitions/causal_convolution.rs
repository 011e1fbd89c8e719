//! CausalConvWithState: a depthwise convolution of `input`, preceded by `past_state` or zeros.
//!
//! ```text
//! p = Concat(past, input)      y = activation(Conv(p, weight, bias))      present = the last k - 1 places of p
//! ```

use super::Definition;
use super::writer::Writer;
use crate::ir::builder::int;

pub(super) const DEFINITION: Definition = Definition {
    operator: ("", "CausalConvWithState"),
    attributes: &["activation"],
    inputs: 4,
    write,
};

fn write(writer: &mut Writer) -> Option<()> {
    let (input, weight) = (writer.input(0)?, writer.input(1)?);
    let [_, channels, length] = writer.extents(0)?[..] else {
        return None;
    };
    let [_, _, size] = writer.extents(1)?[..] else {
        return None;
    };
    let before = size - 1;
    let padded = match writer.input(3) {
        Some(past) => writer.concat(&[&past, &input], 2),
        None => {
            let pads = writer.maker.ints(&[0, 0, before, 0, 0, 0]);
            writer.pair("Pad", &input, &pads)
        }
    };
    let bias = writer.input(2);
    let read: Vec<&str> = [Some(padded.as_str()), Some(&weight), bias.as_deref()]
        .into_iter()
        .flatten()
        .collect();
    let sums = writer.maker.op("Conv", &read, vec![int("group", channels)]);
    let activated = match writer.text("activation", "none")?.as_str() {
        "none" => sums,
        "silu" | "swish" => writer.silu(&sums),
        _ => return None,
    };
    writer.result(0, &activated)?;
    if !writer.has_output(1) {
        return Some(());
    }
    if before == 0 {
        return None;
    }
    let [start, end] = [length, length + before].map(|place| usize::try_from(place).ok());
    let present = writer.maker.slice(&padded, &(start?..end?), 2);
    writer.result(1, &present)
}

#[cfg(test)]
mod tests {
    use tract_onnx::prelude::tensor3;

    use crate::ops::definitions::tests::{assert_close, one, run};

    #[test]
    fn causal_conv_reads_its_past_state() {
        let shapes = [
            ("x", &["1", "2", "3"][..]),
            ("w", &["2", "1", "2"]),
            ("past", &["1", "2", "1"]),
        ];
        let mut model = one(
            "",
            "CausalConvWithState x, w, , past -> y, present",
            vec![],
            &shapes,
        );
        let inputs = [
            tensor3(&[[[1_f32, 2.0, 3.0], [4.0, 5.0, 6.0]]]),
            tensor3(&[[[1_f32, 10.0]], [[2.0, 1.0]]]),
            tensor3(&[[[7_f32], [8.0]]]),
        ];
        let outputs = run(&model, &inputs);
        assert_close(
            &outputs[0],
            &tensor3(&[[[17_f32, 21.0, 32.0], [20.0, 13.0, 16.0]]]),
        );
        assert_close(&outputs[1], &tensor3(&[[[3_f32], [6.0]]]));
        model.graph_mut().input.truncate(2);
        model.graph_mut().node[0].input.truncate(2);
        let outputs = run(&model, &inputs[..2]);
        assert_close(
            &outputs[0],
            &tensor3(&[[[10_f32, 21.0, 32.0], [4.0, 13.0, 16.0]]]),
        );
    }
}
