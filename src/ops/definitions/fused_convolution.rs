//! FusedConv of `com.microsoft`: a Conv followed by an activation. The fourth input, if present, is
//! added before the activation.

use super::Definition;
use super::activation::activated;
use super::writer::Writer;

const OWN: [&str; 2] = ["activation", "activation_params"];

pub(super) const DEFINITION: Definition = Definition {
    operator: ("com.microsoft", "FusedConv"),
    attributes: &[
        "auto_pad",
        "dilations",
        "group",
        "kernel_shape",
        "pads",
        "strides",
        OWN[0],
        OWN[1],
    ],
    inputs: 4,
    write,
};

fn write(writer: &mut Writer) -> Option<()> {
    let inputs: Vec<String> = (0..3).map_while(|slot| writer.input(slot)).collect();
    let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
    let attributes = writer.attributes_but(&OWN);
    let parameters = writer.floats("activation_params")?;
    let mut value = writer.maker.op("Conv", &inputs, attributes);
    if let Some(other) = writer.input(3) {
        value = writer.pair("Add", &value, &other);
    }
    let activated = activated(writer, &writer.text("activation", "")?, &parameters, &value)?;
    writer.result(0, &activated)
}

#[cfg(test)]
mod tests {
    use tract_onnx::prelude::{tensor1, tensor3};

    use crate::onnx::proto::{AttributeProto, AttributeType};
    use crate::ops::definitions::tests::{assert_close, one, run, text};

    #[test]
    fn fused_conv_adds_before_its_activation() {
        let shapes = [
            ("x", &["1", "1", "3"][..]),
            ("w", &["1", "1", "2"]),
            ("b", &["1"]),
            ("z", &["1", "1", "2"]),
        ];
        let attributes = vec![text("activation", "Relu")];
        let model = one(
            "com.microsoft",
            "FusedConv x, w, b, z -> y",
            attributes,
            &shapes,
        );
        let inputs = [
            tensor3(&[[[1_f32, 2.0, 4.0]]]),
            tensor3(&[[[1_f32, -1.0]]]),
            tensor1(&[0.5_f32]),
            tensor3(&[[[3_f32, 1.0]]]),
        ];
        assert_close(&run(&model, &inputs)[0], &tensor3(&[[[2.5_f32, 0.0]]]));
    }

    #[test]
    fn fused_conv_clips_to_its_parameters() {
        let shapes = [("x", &["1", "1", "3"][..]), ("w", &["1", "1", "2"])];
        let bounds = AttributeProto {
            name: Some("activation_params".to_owned()),
            r#type: Some(AttributeType::Floats.into()),
            floats: vec![-0.5, 1.5],
            ..AttributeProto::default()
        };
        let model = one(
            "com.microsoft",
            "FusedConv x, w -> y",
            vec![text("activation", "Clip"), bounds],
            &shapes,
        );
        let inputs = [
            tensor3(&[[[1_f32, 2.0, -4.0]]]),
            tensor3(&[[[1_f32, -1.0]]]),
        ];
        assert_close(&run(&model, &inputs)[0], &tensor3(&[[[-0.5_f32, 1.5]]]));
    }
}
