//! Operators that interpolate between places, recurrent operators, and rotary embeddings.

use anyhow::{Context, Result, ensure};
use ndarray::{ArrayD, ArrayView2, Axis, IxDyn, indices};

use super::{Call, Value};

/// The result of an operator. `None` if another file computes the operator.
pub fn make(call: &Call) -> Result<Option<Value>> {
    Ok(Some(Value::Floats(match call.proto.op_type() {
        "Resize" => resized(call)?,
        "GRU" | "LSTM" | "RNN" => recurrent(call)?,
        "RotaryEmbedding" => turned(call)?,
        "GridSample" => sampled(call)?,
        "DeformConv" => deformed(call)?,
        _ => return Ok(None),
    })))
}

/// Resizes axis by axis. Takes the nearest place before, or interpolates between two places.
fn resized(call: &Call) -> Result<ArrayD<f64>> {
    let mut y = call.floats(0)?.clone();
    let (sizes, factors) = (call.optional(3)?, call.optional(2)?);
    let (mode, place) = (
        call.text("mode", "nearest")?,
        call.text("coordinate_transformation_mode", "half_pixel")?,
    );
    let nearest = |at: f64| {
        Ok(match call.text("nearest_mode", "round_prefer_floor")? {
            "floor" => at.floor(),
            "ceil" => at.ceil(),
            "round_prefer_floor" => (at - 0.5).ceil(),
            "round_prefer_ceil" => (at + 0.5).floor(),
            other => anyhow::bail!("the nearest by {other}"),
        })
    };
    for axis in 0..y.ndim() {
        let from = y.shape()[axis];
        let (to, factor) = match (sizes, factors) {
            (Some(sizes), _) => (
                sizes.ints()?[axis] as usize,
                sizes.ints()?[axis] as f64 / from as f64,
            ),
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
                "tf_half_pixel_for_nn" => (o as f64 + 0.5) / factor,
                "align_corners" if to == 1 => 0.0,
                "align_corners" => o as f64 * (from as f64 - 1.0) / (to as f64 - 1.0),
                _ => anyhow::bail!("places by {place}"),
            };
            let inside =
                |place: f64| y.index_axis(Axis(axis), place.clamp(0.0, from as f64 - 1.0) as usize);
            let at = if mode == "linear" { at } else { nearest(at)? };
            let part = at - at.floor();
            lane += &(inside(at.floor()).mapv(|v| v * (1.0 - part))
                + inside(at.floor() + 1.0).mapv(|v| v * part));
        }
        y = next;
    }
    Ok(y)
}

/// The states of all steps.
fn recurrent(call: &Call) -> Result<ArrayD<f64>> {
    ensure!(
        [4, 7]
            .iter()
            .all(|&slot| matches!(call.optional(slot), Ok(None))),
        "lengths, or peepholes"
    );
    let op = call.proto.op_type();
    ensure!(
        op != "GRU" || call.int("linear_before_reset", 0)? == 1,
        "the reset comes first"
    );
    let batch_first = call.int("layout", 0)? == 1;
    let (mut x, w, r) = (call.floats(0)?.clone(), call.floats(1)?, call.floats(2)?);
    if batch_first {
        x.swap_axes(0, 1);
    }
    let (steps, batch, inner) = (x.shape()[0], x.shape()[1], x.shape()[2]);
    let (directions, rows, hidden) = (w.shape()[0], w.shape()[1], r.shape()[2]);
    let none = ArrayD::zeros(vec![directions, 2 * rows]);
    let bias = call.optional(3)?.map_or(Ok(&none), |bias| bias.floats())?;
    let first = |slot: usize| call.optional(slot)?.map(Value::floats).transpose();
    let (first_state, first_cell) = (first(5)?, first(6)?);
    ensure!(
        !batch_first || first_state.is_none() && first_cell.is_none(),
        "states by sample"
    );
    let reversed = call.text("direction", "forward")? == "reverse";
    let sigmoid = |v: f64| 1.0 / (1.0 + (-v).exp());
    let mut y = ArrayD::zeros(IxDyn(&[steps, directions, batch, hidden]));
    for d in 0..directions {
        for b in 0..batch {
            let begin = |states: Option<&ArrayD<f64>>| -> Vec<f64> {
                (0..hidden)
                    .map(|k| states.map_or(0.0, |states| states[[d, b, k]]))
                    .collect()
            };
            let (mut h, mut c) = (begin(first_state), begin(first_cell));
            for step in 0..steps {
                let t = if reversed || d == 1 {
                    steps - 1 - step
                } else {
                    step
                };
                let of_input = |row: usize| {
                    (0..inner)
                        .map(|i| w[[d, row, i]] * x[[t, b, i]])
                        .sum::<f64>()
                        + bias[[d, row]]
                };
                let of_state = |row: usize| {
                    (0..hidden).map(|j| r[[d, row, j]] * h[j]).sum::<f64>() + bias[[d, rows + row]]
                };
                let sum = |gate: usize, k: usize| {
                    of_input(gate * hidden + k) + of_state(gate * hidden + k)
                };
                let state = |k: usize| match op {
                    "RNN" => (sum(0, k).tanh(), 0.0),
                    "LSTM" => {
                        let cell =
                            sigmoid(sum(2, k)) * c[k] + sigmoid(sum(0, k)) * sum(3, k).tanh();
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

/// Rotates pairs of channels of each head by the angles of the token.
fn turned(call: &Call) -> Result<ArrayD<f64>> {
    ensure!(
        call.int("rotary_embedding_dim", 0)? == 0,
        "some channels stay"
    );
    let x = call.floats(0)?;
    let is_own = call.proto.domain().is_empty();
    let [cos, sin, places] = if is_own { [1, 2, 3] } else { [2, 3, 1] };
    let (cos, sin) = (call.floats(cos)?, call.floats(sin)?);
    let (half, interleaved) = (
        *cos.shape().last().context("no angles")?,
        call.int("interleaved", 0)? == 1,
    );
    let mut y = x.clone();
    for (at, y) in y.indexed_iter_mut() {
        let (item, channel) = (at[0], at[x.ndim() - 1]);
        let (token, channel) = (at[x.ndim() - 2], channel % (2 * half));
        let angle = |table: &ArrayD<f64>, pair: usize| match call.optional(places) {
            Ok(Some(Value::Ints(places))) => table[[places[[item, token]] as usize, pair]],
            _ => table[[item, token, pair]],
        };
        let (pair, is_second, other) = match interleaved {
            true => (channel / 2, channel % 2 == 1, channel ^ 1),
            false => (
                channel % half,
                channel >= half,
                (channel + half) % (2 * half),
            ),
        };
        let mut from = at.clone();
        from[x.ndim() - 1] = at[x.ndim() - 1] - channel + other;
        let sign = if is_second { 1.0 } else { -1.0 };
        *y = x[&at] * angle(cos, pair) + sign * x[&from] * angle(sin, pair);
    }
    Ok(y)
}

/// Interpolates an image at a place. Outside of the image, takes zeros or the nearest place inside.
fn between(image: ArrayView2<f64>, row: f64, column: f64, has_border: bool) -> f64 {
    let inside = |row: f64, column: f64| {
        let (rows, columns) = (image.nrows() as f64 - 1.0, image.ncols() as f64 - 1.0);
        let (near, along) = (row.clamp(0.0, rows), column.clamp(0.0, columns));
        let is_inside = has_border || (near == row && along == column);
        if is_inside {
            image[[near as usize, along as usize]]
        } else {
            0.0
        }
    };
    let (top, left) = (row.floor(), column.floor());
    let (down, right) = (row - top, column - left);
    inside(top, left) * (1.0 - down) * (1.0 - right)
        + inside(top, left + 1.0) * (1.0 - down) * right
        + inside(top + 1.0, left) * down * (1.0 - right)
        + inside(top + 1.0, left + 1.0) * down * right
}

fn sampled(call: &Call) -> Result<ArrayD<f64>> {
    ensure!(
        ["linear", "bilinear"].contains(&call.text("mode", "linear")?),
        "another mode"
    );
    ensure!(
        call.int("align_corners", 0)? == 1,
        "another place of the corners"
    );
    let has_border = match call.text("padding_mode", "zeros")? {
        "border" => true,
        "zeros" => false,
        other => anyhow::bail!("{other} around the image"),
    };
    let (x, grid) = (call.floats(0)?, call.floats(1)?);
    let &[items, channels, height, width] = x.shape() else {
        anyhow::bail!("no image")
    };
    let shape = [items, channels, grid.shape()[1], grid.shape()[2]];
    Ok(ArrayD::from_shape_fn(IxDyn(&shape), |at| {
        let place = |part: usize, extent: usize| {
            let place = (grid[[at[0], at[2], at[3], part]] + 1.0) / 2.0 * (extent as f64 - 1.0);
            if has_border {
                place.clamp(0.0, extent as f64 - 1.0)
            } else {
                place
            }
        };
        between(
            image(x, at[0], at[1]),
            place(1, height),
            place(0, width),
            has_border,
        )
    }))
}

fn image(x: &ArrayD<f64>, item: usize, channel: usize) -> ArrayView2<'_, f64> {
    let image = x
        .index_axis(Axis(0), item)
        .index_axis_move(Axis(0), channel);
    image.into_dimensionality().expect("two axes")
}

/// A convolution whose taps are moved by offsets and weighted by a mask.
fn deformed(call: &Call) -> Result<ArrayD<f64>> {
    let (x, w, offset) = (call.floats(0)?, call.floats(1)?, call.floats(2)?);
    let (bias, mask) = (call.optional(3)?, call.optional(4)?);
    let mask = mask.map(Value::floats).transpose()?;
    let bias = bias.map(Value::floats).transpose()?;
    let (group, parts) = (
        call.int("group", 1)? as usize,
        call.int("offset_group", 1)? as usize,
    );
    let [strides, dilations] = ["strides", "dilations"].map(|name| call.ints_or(name, vec![1; 2]));
    let (strides, dilations, pads) = (strides?, dilations?, call.ints_or("pads", vec![0; 4])?);
    let &[outputs, inner, rows, columns] = w.shape() else {
        anyhow::bail!("no image")
    };
    ensure!(
        x.shape()[1] == inner * group,
        "{:?} on {:?}",
        w.shape(),
        x.shape()
    );
    let shape = [x.shape()[0], outputs, offset.shape()[2], offset.shape()[3]];
    Ok(ArrayD::from_shape_fn(IxDyn(&shape), |at| {
        let mut sum = bias.map_or(0.0, |bias| bias[[at[1]]]);
        for (channel, row, column) in indices((inner, rows, columns)) {
            let from = at[1] / (outputs / group) * inner + channel;
            let tap = (from / (x.shape()[1] / parts) * rows + row) * columns + column;
            let moved = |part: usize, tap_at: usize| {
                let grid = at[2 + part] as i64 * strides[part] + tap_at as i64 * dilations[part]
                    - pads[part];
                grid as f64 + offset[[at[0], 2 * tap + part, at[2], at[3]]]
            };
            let value = between(
                image(x, at[0], from),
                moved(0, row),
                moved(1, column),
                false,
            );
            let share = mask.map_or(1.0, |mask| mask[[at[0], tap, at[2], at[3]]]);
            sum += w[[at[1], channel, row, column]] * value * share;
        }
        sum
    }))
}
