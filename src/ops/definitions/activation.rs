//! The activation at the end of a fused operator of `com.microsoft`.

use super::writer::Writer;
use crate::ir::builder::float;

/// Adds the nodes of an activation that is given by name and parameters, and returns the name of
/// the result. An empty name means no activation. `None` if the activation is unknown.
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
        ("Clip", &[low, high]) => return clamped(writer, [low, high], value),
        ("HardSigmoid", &[alpha, beta]) => vec![float("alpha", alpha), float("beta", beta)],
        _ => return None,
    };
    Some(writer.maker.op(name, &[value], attributes))
}

/// Adds a Clip, whose bounds are inputs. Before operator set 11 they are attributes, so the result
/// is `None`.
fn clamped(writer: &mut Writer, bounds: [f32; 2], value: &str) -> Option<String> {
    if writer.opset() < 11 {
        return None;
    }
    let [low, high] = bounds.map(|bound| writer.number(bound.into()));
    Some(writer.maker.op("Clip", &[value, &low?, &high?], vec![]))
}
