//! FusedMatMul of `com.microsoft`: `alpha * A' B'`, where `'` optionally swaps the last two axes.

use super::Definition;
use super::writer::Writer;

pub const DEFINITION: Definition = Definition {
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

/// An operand, transposed on request of the attribute.
fn operand(writer: &mut Writer, slot: usize, transposed: &str) -> Option<String> {
    let value = writer.input(slot)?;
    match writer.int(transposed, 0)? {
        0 => Some(value),
        _ => writer.swapped(&value, writer.rank(slot)?),
    }
}
