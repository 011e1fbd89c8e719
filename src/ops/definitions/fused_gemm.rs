//! FusedGemm of `com.microsoft`: a Gemm followed by an activation.

use super::Definition;
use super::activation::activated;
use super::writer::Writer;

const OWN: [&str; 4] = [
    "activation",
    "activation_alpha",
    "activation_beta",
    "activation_gamma",
];

pub(super) const DEFINITION: Definition = Definition {
    operator: ("com.microsoft", "FusedGemm"),
    attributes: &["alpha", "beta", "transA", "transB", OWN[0], OWN[1], OWN[2]],
    inputs: 3,
    write,
};

fn write(writer: &mut Writer) -> Option<()> {
    let inputs: Vec<String> = (0..3).map_while(|slot| writer.input(slot)).collect();
    let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
    let attributes = writer.attributes_but(&OWN);
    let product = writer.maker.op("Gemm", &inputs, attributes);
    let name = writer.text("activation", "")?;
    let parameters = match name.as_str() {
        "LeakyRelu" => vec![writer.float("activation_alpha", 0.01)?],
        "HardSigmoid" => vec![
            writer.float("activation_alpha", 0.2)?,
            writer.float("activation_beta", 0.5)?,
        ],
        _ => vec![],
    };
    let activated = activated(writer, &name, &parameters, &product)?;
    writer.result(0, &activated)
}

#[cfg(test)]
mod tests {
    use tract_onnx::prelude::tensor2;

    use crate::ir::builder::float;
    use crate::onnx::Model;
    use crate::ops::definitions::tests::{assert_close, one, run, text};
    use crate::ops::definitions::{LACKING, written_out};

    fn gemm(activation: &str, slope: f32) -> Model {
        let shapes = [("a", &["1", "2"][..]), ("b", &["2", "2"])];
        let attributes = vec![
            text("activation", activation),
            float("activation_alpha", slope),
            float("alpha", 2.0),
        ];
        one("com.microsoft", "FusedGemm a, b -> y", attributes, &shapes)
    }

    #[test]
    fn fused_gemm_applies_its_activation() {
        let inputs = [
            tensor2(&[[1_f32, -1.0]]),
            tensor2(&[[1_f32, 5.0], [3.0, 2.0]]),
        ];
        let y = run(&gemm("LeakyRelu", 0.25), &inputs);
        assert_close(&y[0], &tensor2(&[[-1_f32, 6.0]]));
        let y = run(&gemm("Relu", 0.25), &inputs);
        assert_close(&y[0], &tensor2(&[[0_f32, 6.0]]));
        assert!(written_out(&gemm("Softplus", 0.25), LACKING).is_none());
    }
}
