//! FusedGemm of `com.microsoft`: an activation of a Gemm.

use super::Definition;
use super::activation::activated;
use super::writer::Writer;

const OWN: [&str; 4] = [
    "activation",
    "activation_alpha",
    "activation_beta",
    "activation_gamma",
];

pub const DEFINITION: Definition = Definition {
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
