//! CumSum of truth values that are cast to int64: replaced by a CumSum of int32.
//!
//! tract computes int64 values that may be extents in a symbolic type, and its CumSum fails on them. A sum of fewer than
//! 2³¹ truth values is an int32.

use super::Definition;
use super::writer::Writer;
use crate::ir::builder::int;
use crate::onnx::tensor::DataType;

pub(super) const DEFINITION: Definition = Definition {
    operator: ("", "CumSum"),
    attributes: &["exclusive", "reverse"],
    inputs: 2,
    write,
};

fn write(writer: &mut Writer) -> Option<()> {
    let truths = writer.cast_truths(0)?;
    let count: i64 = writer.extents(0)?.iter().product();
    if writer.data_type(0)? != DataType::Int64 || i32::try_from(count).is_err() {
        return None;
    }
    let axis = writer.input(1)?;
    let attributes = writer.attributes_but(&[]);
    let narrow = vec![int("to", DataType::Int32.code().into())];
    let narrow = writer.maker.op("Cast", &[&truths], narrow);
    let sums = writer.maker.op("CumSum", &[&narrow, &axis], attributes);
    let wide = vec![int("to", DataType::Int64.code().into())];
    let wide = writer.maker.op("Cast", &[&sums], wide);
    writer.result(0, &wide)
}

#[cfg(test)]
mod tests {
    use ndarray::arr1;
    use tract_onnx::prelude::tensor2;

    use super::*;
    use crate::onnx::proto::TensorProto;
    use crate::onnx::tensor::make_i64;
    use crate::ops::definitions::tests::run;
    use crate::ops::definitions::{LACKING, written_out};
    use crate::run::testing::{floats, model, node, value, with_int};

    #[test]
    fn truth_values_are_counted_in_int32() {
        let axis = TensorProto {
            dims: vec![],
            ..make_i64("axis", &[1])
        };
        let to_int64 = |line| with_int(node(line), "to", DataType::Int64.code().into());
        let nodes = vec![
            node("Greater x, zero -> is_positive"),
            to_int64("Cast is_positive -> ones"),
            node("CumSum ones, axis -> sums"),
            with_int(node("Cast sums -> y"), "to", DataType::Float.code().into()),
        ];
        let zero = floats("zero", &arr1(&[0.0]).into_dyn().view());
        let inputs = vec![value("x", DataType::Float, &["2", "3"])];
        let counts = model(inputs, vec![axis, zero], nodes, &["y"]);
        let written = written_out(&counts, LACKING).unwrap();
        let types = written.graph().node.iter().map(|node| node.op_type());
        let casts = types.filter(|&op| op == "Cast").count();
        assert_eq!(casts, 4);
        let x = tensor2(&[[1_f32, -1.0, 2.0], [-3.0, 4.0, -5.0]]);
        let y = tensor2(&[[1_f32, 1.0, 2.0], [0.0, 1.0, 1.0]]);
        assert_eq!(run(&written, &[x]), [y]);
    }
}
