//! FusedConv of `com.microsoft`: an activation of a Conv, to which another value may be added first.

use super::Definition;
use super::activation::activated;
use super::writer::Writer;

const OWN: [&str; 2] = ["activation", "activation_params"];

pub const DEFINITION: Definition = Definition {
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
