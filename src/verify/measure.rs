//! Measures the differences between the outputs of two models.

use tract_onnx::prelude::{Datum, DatumType, Tensor, TractResult};

use super::OutputError;

/// Finds the largest errors of each output over all runs. Returns `Err` with the reason if the
/// outputs cannot be compared.
pub(super) fn measure(
    names: &[String],
    reference: &[Vec<Tensor>],
    outputs: &[Vec<Tensor>],
) -> Result<Vec<OutputError>, String> {
    let mut worst: Vec<OutputError> = names.iter().map(|name| OutputError::none(name)).collect();
    for (reference, outputs) in reference.iter().zip(outputs) {
        for ((a, b), worst) in reference.iter().zip(outputs).zip(&mut worst) {
            let name = &worst.name;
            if (a.datum_type(), a.shape()) != (b.datum_type(), b.shape()) {
                let (a, b) = ((a.datum_type(), a.shape()), (b.datum_type(), b.shape()));
                return Err(format!(
                    "its output `{name}` is {:?} {:?}, and should be {:?} {:?}",
                    b.0, b.1, a.0, a.1
                ));
            }
            let (absolute, relative, mismatched) = apart(a, b)
                .map_err(|error| format!("its output `{name}` cannot be compared: {error}"))?;
            worst.absolute = worst.absolute.max(absolute);
            worst.relative = worst.relative.max(relative);
            worst.mismatched += mismatched;
        }
    }
    Ok(worst)
}

/// The largest difference between two tensors, this difference divided by the largest magnitude of
/// `a`, and the number of elements that differ beyond any tolerance.
fn apart(a: &Tensor, b: &Tensor) -> TractResult<(f64, f64, usize)> {
    if !a.datum_type().is_float() {
        return Ok((0.0, 0.0, unequal(a, b)?));
    }
    let (a, b) = (a.cast_to::<f64>()?, b.cast_to::<f64>()?);
    let (a, b) = (
        a.try_as_plain_ram()?.as_slice::<f64>()?,
        b.try_as_plain_ram()?.as_slice::<f64>()?,
    );
    let (mut absolute, mut magnitude, mut mismatched) = (0.0_f64, 0.0_f64, 0);
    for (&a, &b) in a.iter().zip(b) {
        if a.is_finite() && b.is_finite() {
            absolute = absolute.max((a - b).abs());
            magnitude = magnitude.max(a.abs());
        } else if a != b && !(a.is_nan() && b.is_nan()) {
            mismatched += 1;
        }
    }
    let relative = if absolute == 0.0 {
        0.0
    } else {
        absolute / magnitude
    };
    Ok((absolute, relative, mismatched))
}

/// The number of elements that differ in two tensors of integers, booleans or strings.
fn unequal(a: &Tensor, b: &Tensor) -> TractResult<usize> {
    fn count<T: Datum + PartialEq>(a: &Tensor, b: &Tensor) -> TractResult<usize> {
        let (a, b) = (
            a.try_as_plain_ram()?.as_slice::<T>()?,
            b.try_as_plain_ram()?.as_slice::<T>()?,
        );
        Ok(a.iter().zip(b).filter(|(a, b)| a != b).count())
    }
    match a.datum_type() {
        DatumType::Bool => count::<bool>(a, b),
        DatumType::U64 => count::<u64>(a, b),
        DatumType::String => count::<String>(a, b),
        _ => count::<i64>(&*a.cast_to::<i64>()?, &*b.cast_to::<i64>()?),
    }
}

/// Whether outputs carry no information: all are floats, and each element is 0, NaN or infinite, or
/// all elements of an output are equal. For example, a Relu may return only zeros, and the shares of
/// an attention between equal tokens are equal. False if no output has elements.
pub(super) fn is_mute(runs: &[Vec<Tensor>]) -> bool {
    let mut outputs = runs
        .iter()
        .flatten()
        .filter(|tensor| tensor.len() > 0)
        .peekable();
    outputs.peek().is_some() && outputs.all(is_mute_output)
}

fn is_mute_output(output: &Tensor) -> bool {
    let Ok(floats) = output.cast_to::<f64>() else {
        return false;
    };
    let Ok(floats) = floats.to_plain_array_view::<f64>() else {
        return false;
    };
    let is_void = |number: &f64| !number.is_finite() || *number == 0.0;
    let first = floats.first();
    let are_equal = floats.len() > 1 && floats.iter().all(|number| Some(number) == first);
    output.datum_type().is_float() && (are_equal || floats.iter().all(is_void))
}
