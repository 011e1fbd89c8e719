//! Fused operators of onnxruntime, and operators on quantized numbers.

use anyhow::{Result, bail, ensure};
use ndarray::{ArrayD, IxDyn, indices};

use super::{Call, Value, conv, gemm, matmul, zip};

/// The result of an operator. `None` if another file computes the operator.
pub fn make(call: &Call) -> Result<Option<Value>> {
    let (domain, op) = (call.proto.domain(), call.proto.op_type());
    if domain != "com.microsoft" && !op.starts_with('Q') {
        return Ok(None);
    }
    Ok(Some(match op {
        "FusedConv" => {
            let sum = conv(call)?.floats()?.clone();
            let sum = match call.optional(3)? {
                Some(added) => zip(&sum, added.floats()?, |a, b| a + b)?,
                None => sum,
            };
            activated(call, sum)?
        }
        "FusedGemm" => activated(call, gemm(call)?.floats()?.clone())?,
        "FusedMatMul" => {
            ensure!(
                ["transA", "transB"]
                    .iter()
                    .all(|name| call.int(name, 0).is_ok_and(|turned| turned == 0))
            );
            Value::Floats(matmul(call.floats(0)?, call.floats(1)?)? * call.float("alpha", 1.0)?)
        }
        "Attention" => Value::Floats(attention(call)?),
        "MultiHeadAttention" => Value::Floats(multi_head_attention(call)?),
        "QuantizeLinear" => {
            let scale = number(call, 1)?;
            Value::Ints(call.floats(0)?.mapv(|v| quantized(v / scale)))
        }
        "QLinearMatMul" => {
            let factors = [0, 3].map(|slot| integers(call, slot));
            let [left, right] = factors;
            let scale = number(call, 1)? * number(call, 4)? / number(call, 6)?;
            let product = matmul(&left?, &right?)?;
            Value::Ints(product.mapv(|v| quantized(v * scale)))
        }
        _ => return Ok(None),
    }))
}

/// Applies the activation of a fused product.
fn activated(call: &Call, sum: ArrayD<f64>) -> Result<Value> {
    Ok(Value::Floats(match call.text("activation", "")? {
        "" => sum,
        "Relu" => sum.mapv(|v| v.max(0.0)),
        "Tanh" => sum.mapv(f64::tanh),
        other => bail!("no reference for {other}"),
    }))
}

/// Rounds a number to a signed byte.
fn quantized(value: f64) -> i64 {
    value.round_ties_even().clamp(-128.0, 127.0) as i64
}

fn number(call: &Call, slot: usize) -> Result<f64> {
    let numbers = call.floats(slot)?;
    ensure!(numbers.len() == 1, "per axis");
    Ok(numbers.sum())
}

fn integers(call: &Call, slot: usize) -> Result<ArrayD<f64>> {
    match call.value(slot)? {
        Value::Ints(numbers) => Ok(numbers.mapv(|v| v as f64)),
        Value::Floats(_) => bail!("floats"),
    }
}

/// Attention of each head to the past tokens and to those of the sequence.
fn attention(call: &Call) -> Result<ArrayD<f64>> {
    ensure!(
        call.optional(3)?.is_none() && call.optional(5)?.is_none(),
        "a mask"
    );
    let projected = zip(
        &matmul(call.floats(0)?, call.floats(1)?)?,
        call.floats(2)?,
        |a, b| a + b,
    )?;
    let past = call.optional(4)?.map(Value::floats).transpose()?;
    let heads = call.int("num_heads", 1)? as usize;
    let &[batch, tokens, wide] = projected.shape() else {
        bail!("no sequence")
    };
    let (channels, before) = (wide / 3, past.map_or(0, |past| past.shape()[3]));
    let each = channels / heads;
    // Queries, keys and values lie side by side.
    let part = |which: usize, b: usize, head: usize, token: usize, c: usize| match token
        .checked_sub(before)
    {
        Some(own) => projected[[b, own, which * channels + head * each + c]],
        None => past.map_or(0.0, |past| past[[which - 1, b, head, token, c]]),
    };
    let mut y = ArrayD::zeros(IxDyn(&[batch, tokens, channels]));
    for index in indices([batch, tokens, heads].as_slice()) {
        let (b, token, head) = (index[0], index[1], index[2]);
        let score = |other: usize| {
            let dot = |c| part(0, b, head, before + token, c) * part(1, b, head, other, c);
            ((0..each).map(dot).sum::<f64>() / (each as f64).sqrt()).exp()
        };
        let shares: Vec<f64> = (0..before + tokens).map(score).collect();
        let all: f64 = shares.iter().sum();
        for c in 0..each {
            let mixed = |(other, share): (usize, &f64)| share / all * part(2, b, head, other, c);
            y[[b, token, head * each + c]] = shares.iter().enumerate().map(mixed).sum();
        }
    }
    Ok(y)
}

/// Attention of the queries of each head to all keys, with the heads next to each other.
fn multi_head_attention(call: &Call) -> Result<ArrayD<f64>> {
    ensure!(
        call.proto.input.len() == 3 && call.int("unidirectional", 0)? == 0,
        "a mask"
    );
    let [queries, keys, values] = [0, 1, 2].map(|slot| call.floats(slot));
    let (queries, keys, values) = (queries?, keys?, values?);
    let heads = call.int("num_heads", 1)? as usize;
    let (&[batch, tokens, width], &[_, others, wide]) = (queries.shape(), values.shape()) else {
        bail!("no sequence")
    };
    let (channels, each) = (width / heads, wide / heads);
    let scale = call.float("scale", (1.0 / (channels as f64).sqrt()) as f32)?;
    let mut y = ArrayD::zeros(IxDyn(&[batch, tokens, wide]));
    for index in indices([batch, tokens, heads].as_slice()) {
        let (b, token, head) = (index[0], index[1], index[2]);
        let mut scores = vec![0.0; others];
        for (other, score) in scores.iter_mut().enumerate() {
            for c in (head * channels)..(head + 1) * channels {
                *score += scale * queries[[b, token, c]] * keys[[b, other, c]];
            }
        }
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let shares: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
        let all: f64 = shares.iter().sum();
        for c in (head * each)..(head + 1) * each {
            for (other, share) in shares.iter().enumerate() {
                y[[b, token, c]] += share / all * values[[b, other, c]];
            }
        }
    }
    Ok(y)
}
