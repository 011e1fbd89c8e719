//! Operators that interpolate between places, and those that go through them one after the other.

use anyhow::{Context, Result, ensure};
use ndarray::{ArrayD, Axis, IxDyn};

use super::{Call, Value};

/// What an operator makes; `None` of one that is not here.
pub fn make(call: &Call) -> Result<Option<Value>> {
    Ok(Some(Value::Floats(match call.proto.op_type() {
        "Resize" => resized(call)?,
        "GRU" | "LSTM" | "RNN" => recurrent(call)?,
        _ => return Ok(None),
    })))
}

/// Axis by axis, to the nearest place before or between two.
fn resized(call: &Call) -> Result<ArrayD<f64>> {
    let mut y = call.floats(0)?.clone();
    let (sizes, factors) = (call.optional(3)?, call.optional(2)?);
    let (mode, place) =
        (call.text("mode", "nearest")?, call.text("coordinate_transformation_mode", "half_pixel")?);
    ensure!(mode == "linear" || call.text("nearest_mode", "")? == "floor", "another place");
    for axis in 0..y.ndim() {
        let from = y.shape()[axis];
        let (to, factor) = match (sizes, factors) {
            (Some(sizes), _) => (sizes.ints()?[axis] as usize, sizes.ints()?[axis] as f64 / from as f64),
            (None, factors) => {
                let factor = factors.context("neither sizes nor factors")?.floats()?[axis];
                ((from as f64 * factor).floor() as usize, factor)
            }
        };
        let mut made = y.shape().to_vec();
        made[axis] = to;
        let mut next = ArrayD::zeros(made);
        for (o, mut lane) in next.axis_iter_mut(Axis(axis)).enumerate() {
            let at = match place {
                "half_pixel" => (o as f64 + 0.5) / factor - 0.5,
                "asymmetric" => o as f64 / factor,
                _ => anyhow::bail!("places by {place}"),
            };
            let inside = |place: f64| y.index_axis(Axis(axis), place.clamp(0.0, from as f64 - 1.0) as usize);
            let part = if mode == "linear" { at - at.floor() } else { 0.0 };
            lane += &(inside(at.floor()).mapv(|v| v * (1.0 - part))
                + inside(at.floor() + 1.0).mapv(|v| v * part));
        }
        y = next;
    }
    Ok(y)
}

/// The states of all steps.
fn recurrent(call: &Call) -> Result<ArrayD<f64>> {
    ensure!((4..8).all(|slot| matches!(call.optional(slot), Ok(None))), "lengths, or states to begin with");
    let op = call.proto.op_type();
    ensure!(op != "GRU" || call.int("linear_before_reset", 0)? == 1, "the reset comes first");
    let batch_first = call.int("layout", 0)? == 1;
    let (mut x, w, r) = (call.floats(0)?.clone(), call.floats(1)?, call.floats(2)?);
    if batch_first {
        x.swap_axes(0, 1);
    }
    let (steps, batch, inner) = (x.shape()[0], x.shape()[1], x.shape()[2]);
    let (directions, rows, hidden) = (w.shape()[0], w.shape()[1], r.shape()[2]);
    let none = ArrayD::zeros(vec![directions, 2 * rows]);
    let bias = call.optional(3)?.map_or(Ok(&none), |bias| bias.floats())?;
    let reversed = call.text("direction", "forward")? == "reverse";
    let sigmoid = |v: f64| 1.0 / (1.0 + (-v).exp());
    let mut y = ArrayD::zeros(IxDyn(&[steps, directions, batch, hidden]));
    for d in 0..directions {
        for b in 0..batch {
            let (mut h, mut c) = (vec![0.0; hidden], vec![0.0; hidden]);
            for step in 0..steps {
                let t = if reversed || d == 1 { steps - 1 - step } else { step };
                let of_input = |row: usize| {
                    (0..inner).map(|i| w[[d, row, i]] * x[[t, b, i]]).sum::<f64>() + bias[[d, row]]
                };
                let of_state = |row: usize| {
                    (0..hidden).map(|j| r[[d, row, j]] * h[j]).sum::<f64>() + bias[[d, rows + row]]
                };
                let sum = |gate: usize, k: usize| of_input(gate * hidden + k) + of_state(gate * hidden + k);
                let state = |k: usize| match op {
                    "RNN" => (sum(0, k).tanh(), 0.0),
                    "LSTM" => {
                        let cell = sigmoid(sum(2, k)) * c[k] + sigmoid(sum(0, k)) * sum(3, k).tanh();
                        (sigmoid(sum(1, k)) * cell.tanh(), cell)
                    }
                    _ => {
                        let (update, reset) = (sigmoid(sum(0, k)), sigmoid(sum(1, k)));
                        let row = 2 * hidden + k;
                        let new = (of_input(row) + reset * of_state(row)).tanh();
                        ((1.0 - update) * new + update * h[k], 0.0)
                    }
                };
                (h, c) = (0..hidden).map(state).unzip();
                for k in 0..hidden {
                    y[[t, d, b, k]] = h[k];
                }
            }
        }
    }
    if batch_first {
        return Ok(y.permuted_axes(IxDyn(&[2, 0, 1, 3])));
    }
    Ok(y)
}
