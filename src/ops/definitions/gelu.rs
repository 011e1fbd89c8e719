//! The forms of GELU, `x·Φ(x)`: the exact one uses erf, and the approximate ones use tanh or a
//! sigmoid. Some operators first add a bias.

use super::Definition;
use super::writer::Writer;

/// The constants `1/√2` and `√(2/π)`, and the coefficient of `x³` in the tanh form.
const ROOT_OF_HALF: f64 = std::f64::consts::FRAC_1_SQRT_2;
const SCALE_OF_TANH: f64 = 0.797_884_560_802_865_4;
const CUBE: f64 = 0.044_715;

/// The operator of ONNX, which exists since operator set 20.
pub(super) const GELU: Definition = Definition {
    operator: ("", "Gelu"),
    attributes: &["approximate"],
    inputs: 1,
    write: by_attribute,
};

pub(super) const EXACT: Definition = Definition {
    operator: ("com.microsoft", "Gelu"),
    attributes: &[],
    inputs: 1,
    write: exact,
};

pub(super) const BIASED: Definition = Definition {
    operator: ("com.microsoft", "BiasGelu"),
    attributes: &[],
    inputs: 2,
    write: exact,
};

pub(super) const FAST: Definition = Definition {
    operator: ("com.microsoft", "FastGelu"),
    attributes: &[],
    inputs: 2,
    write: by_tanh,
};

pub(super) const QUICK: Definition = Definition {
    operator: ("com.microsoft", "QuickGelu"),
    attributes: &["alpha"],
    inputs: 1,
    write: by_sigmoid,
};

fn by_attribute(writer: &mut Writer) -> Option<()> {
    match writer.text("approximate", "none")?.as_str() {
        "none" => exact(writer),
        "tanh" => by_tanh(writer),
        _ => None,
    }
}

/// Writes `x·½·(1 + erf(x/√2))`.
fn exact(writer: &mut Writer) -> Option<()> {
    let x = biased(writer)?;
    let factor = writer.number(ROOT_OF_HALF)?;
    let scaled = writer.pair("Mul", &x, &factor);
    let curve = writer.maker.op("Erf", &[&scaled], vec![]);
    gated(writer, &x, &curve)
}

/// Writes `x·½·(1 + tanh(√(2/π)·(x + 0.044715·x³)))`.
fn by_tanh(writer: &mut Writer) -> Option<()> {
    let x = biased(writer)?;
    let square = writer.pair("Mul", &x, &x);
    let cube = writer.pair("Mul", &square, &x);
    let [coefficient, scale] = [CUBE, SCALE_OF_TANH].map(|number| writer.number(number));
    let term = writer.pair("Mul", &cube, &coefficient?);
    let sum = writer.pair("Add", &x, &term);
    let scaled = writer.pair("Mul", &sum, &scale?);
    let curve = writer.maker.op("Tanh", &[&scaled], vec![]);
    gated(writer, &x, &curve)
}

/// Writes `x·σ(α·x)`.
fn by_sigmoid(writer: &mut Writer) -> Option<()> {
    let x = writer.input(0)?;
    let alpha = writer.float("alpha", 1.702)?;
    let factor = writer.number(alpha.into())?;
    let scaled = writer.pair("Mul", &x, &factor);
    let gate = writer.maker.op("Sigmoid", &[&scaled], vec![]);
    let product = writer.pair("Mul", &x, &gate);
    writer.result(0, &product)
}

/// Returns the first input, plus the second input if it is present.
fn biased(writer: &mut Writer) -> Option<String> {
    let x = writer.input(0)?;
    Some(match writer.input(1) {
        Some(bias) => writer.pair("Add", &x, &bias),
        None => x,
    })
}

/// Writes `x·½·(1 + curve)`.
fn gated(writer: &mut Writer, x: &str, curve: &str) -> Option<()> {
    let [half, one] = [0.5, 1.0].map(|number| writer.number(number));
    let halved = writer.pair("Mul", x, &half?);
    let gate = writer.pair("Add", curve, &one?);
    let product = writer.pair("Mul", &halved, &gate);
    writer.result(0, &product)
}

#[cfg(test)]
mod tests {
    use tract_onnx::prelude::tensor1;

    use crate::ir::builder::float;
    use crate::ops::definitions::tests::{assert_close, one, run};

    const X: [f32; 4] = [-3.0, -0.5, 0.25, 2.0];
    const BIAS: [f32; 4] = [0.5, 0.0, -1.0, 0.25];

    /// `x·Φ(x)` approximated with tanh, which differs from the exact form by less than 1e-3.
    fn near(x: f32) -> f32 {
        let inner = 0.797_884_6 * (x + 0.044_715 * x.powi(3));
        0.5 * x * (1.0 + inner.tanh())
    }

    #[test]
    fn each_form_is_a_gelu_of_the_sum() {
        for (op, is_exact) in [("BiasGelu", true), ("FastGelu", false)] {
            let shapes = [("x", &["4"][..]), ("b", &["4"])];
            let model = one("com.microsoft", &format!("{op} x, b -> y"), vec![], &shapes);
            let y = run(&model, &[tensor1(&X), tensor1(&BIAS)]);
            let found = y[0].try_as_plain_ram().unwrap();
            for ((&found, x), b) in found.as_slice::<f32>().unwrap().iter().zip(X).zip(BIAS) {
                let limit = if is_exact { 1e-3 } else { 1e-6 };
                assert!((found - near(x + b)).abs() < limit, "{op} {x}: {found}");
            }
        }
    }

    #[test]
    fn a_quick_gelu_is_gated_by_a_sigmoid() {
        let shapes = [("x", &["4"][..])];
        let model = one(
            "com.microsoft",
            "QuickGelu x -> y",
            vec![float("alpha", 2.0)],
            &shapes,
        );
        let y = run(&model, &[tensor1(&X)]);
        let expected = X.map(|x| x / (1.0 + (-2.0 * x).exp()));
        assert_close(&y[0], &tensor1(&expected));
    }
}
