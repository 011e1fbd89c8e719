//! The activation at the end of a fused operator of `com.microsoft`.

use super::writer::Writer;
use crate::ir::builder::float;

/// Adds the nodes of an activation, by its name and parameters; `None` if it is unknown.
pub(super) fn activated(
    writer: &mut Writer,
    name: &str,
    parameters: &[f32],
    value: &str,
) -> Option<String> {
    let attributes = match (name, parameters) {
        ("", _) => return Some(value.to_owned()),
        ("Relu" | "Sigmoid" | "Tanh", []) => vec![],
        ("LeakyRelu", &[alpha]) => vec![float("alpha", alpha)],
        ("HardSigmoid", &[alpha, beta]) => vec![float("alpha", alpha), float("beta", beta)],
        _ => return None,
    };
    Some(writer.maker.op(name, &[value], attributes))
}
