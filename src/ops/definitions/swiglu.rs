//! SwiGLU: `A sigmoid(alpha A) B`.

use super::Definition;
use super::writer::Writer;

pub const DEFINITION: Definition = Definition {
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
