//! FusedMatMul of `com.microsoft`: `alpha * A' B'`, where `'` optionally swaps the last two axes.

use super::Definition;
use super::writer::Writer;

pub(super) const DEFINITION: Definition = Definition {
    operator: ("com.microsoft", "FusedMatMul"),
    attributes: &["alpha", "transA", "transB", "transBatchA", "transBatchB"],
    inputs: 2,
    write,
};

fn write(writer: &mut Writer) -> Option<()> {
    for name in ["transBatchA", "transBatchB"] {
        if writer.int(name, 0)? != 0 {
            return None;
        }
    }
    let a = operand(writer, 0, "transA")?;
    let b = operand(writer, 1, "transB")?;
    let product = writer.pair("MatMul", &a, &b);
    let alpha = writer.number(writer.float("alpha", 1.0)?.into())?;
    let scaled = writer.pair("Mul", &product, &alpha);
    writer.result(0, &scaled)
}

/// The operand in a slot, transposed if the attribute `transposed` is set.
fn operand(writer: &mut Writer, slot: usize, transposed: &str) -> Option<String> {
    let value = writer.input(slot)?;
    match writer.int(transposed, 0)? {
        0 => Some(value),
        _ => writer.swapped(&value, writer.rank(slot)?),
    }
}

#[cfg(test)]
mod tests {
    use tract_onnx::prelude::tensor2;

    use crate::ir::builder::{float, int};
    use crate::onnx::Model;
    use crate::onnx::proto::AttributeProto;
    use crate::ops::definitions::tests::{assert_close, one, run};
    use crate::ops::definitions::{LACKING, written_out};

    fn product(attributes: Vec<AttributeProto>) -> Model {
        let shapes = [("a", &["2", "2"][..]), ("b", &["2", "2"])];
        one(
            "com.microsoft",
            "FusedMatMul a, b -> y",
            attributes,
            &shapes,
        )
    }

    #[test]
    fn fused_matmul_transposes_and_scales() {
        let inputs = [
            tensor2(&[[1_f32, 2.0], [3.0, 4.0]]),
            tensor2(&[[5_f32, 6.0], [7.0, 8.0]]),
        ];
        let y = run(
            &product(vec![int("transB", 1), float("alpha", 0.5)]),
            &inputs,
        );
        assert_close(&y[0], &tensor2(&[[8.5_f32, 11.5], [19.5, 26.5]]));
        let y = run(&product(vec![int("transA", 1)]), &inputs);
        assert_close(&y[0], &tensor2(&[[26_f32, 30.0], [38.0, 44.0]]));
        assert!(written_out(&product(vec![int("transBatchA", 1)]), LACKING).is_none());
        assert!(written_out(&product(vec![int("unknown", 1)]), LACKING).is_none());
    }
}
