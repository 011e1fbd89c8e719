//! SwiGLU: `A sigmoid(alpha A) B` for the inputs `A` and `B`.

use super::Definition;
use super::writer::Writer;

pub(super) const DEFINITION: Definition = Definition {
    operator: ("", "SwiGLU"),
    attributes: &["alpha"],
    inputs: 2,
    write,
};

fn write(writer: &mut Writer) -> Option<()> {
    let (a, b) = (writer.input(0)?, writer.input(1)?);
    let alpha = writer.number(writer.float("alpha", 1.0)?.into())?;
    let scaled = writer.pair("Mul", &a, &alpha);
    let gate = writer.maker.op("Sigmoid", &[&scaled], vec![]);
    let swish = writer.pair("Mul", &a, &gate);
    let gated = writer.pair("Mul", &swish, &b);
    writer.result(0, &gated)
}

#[cfg(test)]
mod tests {
    use tract_onnx::prelude::tensor1;

    use crate::ir::builder::float;
    use crate::ops::definitions::tests::{assert_close, one, run};

    #[test]
    fn swiglu_is_a_product_with_a_swish() {
        let shapes = [("a", &["2"][..]), ("b", &["2"])];
        let model = one("", "SwiGLU a, b -> y", vec![float("alpha", 2.0)], &shapes);
        let y = run(&model, &[tensor1(&[1_f32, -0.5]), tensor1(&[3_f32, 4.0])]);
        let expected = [(1_f32, 3.0), (-0.5, 4.0)].map(|(a, b)| b * a / (1.0 + (-2.0 * a).exp()));
        assert_close(&y[0], &tensor1(&expected));
    }
}
