//! Uninterpreted functions: their results are random, but equal functions of equal arguments have
//! equal results.

use ndarray::ArrayD;

use super::masked::elements;
use super::{Call, NotEvaluated, OpResult, axis, combine, inverses, products, windows};
use crate::onnx::operator::softmax_axis;
use crate::prove::field::{self, Arithmetic};
use crate::prove::field_value::{FieldValue, HIDDEN, row_major, slice};
use crate::prove::random::{Digest, Hash, Unknown};
use crate::recipe::broadcast;

/// An uninterpreted function of the elements that all inputs have at the same place, after
/// broadcasting.
pub(crate) fn element_wise(call: &Call, function: Digest, is_integer: bool) -> OpResult {
    let given = call.inputs.iter().flatten();
    let mut shape = vec![];
    for value in given.clone() {
        shape = broadcast(&shape, value.shape().ok_or(NotEvaluated::Uncovered)?)
            .ok_or(NotEvaluated::Misfit)?;
    }
    call.allowance.room(&shape)?;
    let mut hash = Hash::new(0, "element-wise");
    hash.digest(function);
    hash.number(call.inputs.len() as u64);
    for input in &call.inputs {
        // The function depends on which inputs are missing and which are integers.
        hash.number(match input {
            None => 0,
            Some(FieldValue::Field(_)) => 1,
            Some(_) => 2,
        });
    }
    let unknown = Unknown::new(hash.finish());
    let mut states = vec![unknown.start(); shape.iter().product()];
    for value in given {
        let images = value.images().ok_or(NotEvaluated::Uncovered)?;
        if images.len() == states.len() {
            states
                .iter_mut()
                .zip(slice(&images))
                .for_each(|(s, &x)| *s = unknown.with(*s, x.into()));
        } else if let [only] = *slice(&images) {
            states
                .iter_mut()
                .for_each(|s| *s = unknown.with(*s, only.into()));
        } else {
            let wide = images
                .broadcast(&shape[..])
                .ok_or(NotEvaluated::Uncovered)?;
            states
                .iter_mut()
                .zip(wide.iter())
                .for_each(|(s, &x)| *s = unknown.with(*s, x.into()));
        }
    }
    let elements =
        ArrayD::from_shape_vec(shape, states.into_iter().map(Unknown::element).collect());
    let elements = elements.map_err(|_| NotEvaluated::Uncovered)?;
    Ok(vec![if is_integer {
        FieldValue::varying(elements)
    } else {
        FieldValue::field(elements)
    }])
}

/// The largest number of lanes for which the results of an ArgMax are changed to be indices in
/// range.
pub(crate) const MOST_LANES: usize = 64;

/// The results of ArgMax and ArgMin, changed so that each is a random index in range: modulo the
/// number of elements of the input, it is an index along the axis. So if a graph adds the offset of
/// a lane to the index, the sum selects an element of this lane. Each result represents as many
/// random elements as there are lanes. With more than [`MOST_LANES`] lanes, the results are
/// unchanged.
pub(crate) fn in_range(call: &Call, made: Vec<FieldValue>) -> OpResult {
    let shape = call.shape(0)?;
    let extent = shape[call.axis(0, shape.len())?];
    let all: usize = shape.iter().product();
    if extent == 0 || all / extent > MOST_LANES {
        return Ok(made);
    }
    let mut limited = vec![];
    for value in made {
        limited.push(match value {
            FieldValue::Varying(elements) => {
                let [extent, all] = [extent as u32, all as u32];
                FieldValue::varying(elements.mapv(|e| e - e % all + e % extent))
            }
            other => other,
        });
    }
    Ok(limited)
}

/// BiasGelu and FastGelu: a function of the sum of the input and the bias, or of the input if there
/// is no bias.
pub(crate) fn biased(call: &Call, function: Digest) -> OpResult {
    let mut sum = call.field(0)?.clone();
    if let Some(bias) = call.optional_field(1)? {
        sum = row_major(combine(Arithmetic::Add, &sum, bias).ok_or(NotEvaluated::Misfit)?);
    }
    let call = Call {
        inputs: vec![Some(FieldValue::Field(sum))],
        ..*call
    };
    element_wise(&call, function, false)
}

/// FusedConv and FusedGemm: an element-wise function of the linear result, to which a FusedConv may
/// add another value.
pub(crate) fn activated(call: &Call, function: Digest) -> OpResult {
    let is_conv = call.node.op_type() == "FusedConv";
    let made = if is_conv {
        windows::conv(call)
    } else {
        products::gemm(call)
    }?
    .into_iter()
    .next();
    let Some(FieldValue::Field(mut sum)) = made else {
        return Err(NotEvaluated::Uncovered);
    };
    if let Some(added) = call.optional_field(3)?.filter(|_| is_conv) {
        sum = row_major(combine(Arithmetic::Add, &sum, added).ok_or(NotEvaluated::Misfit)?);
    }
    element_wise(
        &Call {
            inputs: vec![Some(FieldValue::Field(sum))],
            ..*call
        },
        function,
        false,
    )
}

/// Softsign: `x/(1 + |x|)`, so that it equals the same formula written as operators. `|x|` is
/// uninterpreted.
pub(crate) fn softsign(call: &Call, abs: Digest) -> OpResult {
    let elements = call.field(0)?;
    let sizes = element_wise(call, abs, false)?
        .into_iter()
        .find_map(|made| made.images());
    let below = sizes
        .ok_or(NotEvaluated::Uncovered)?
        .mapv(|size| field::add(size, 1))
        .into_shared();
    Ok(vec![FieldValue::field(
        combine(Arithmetic::Mul, elements, &inverses(&below)?).ok_or(NotEvaluated::Uncovered)?,
    )])
}

/// The largest integer that is recognized as the difference between the bounds of a Clip, or as the
/// inverse of a slope.
const WHOLE: u32 = 64;

/// Expresses a Clip between two bounds with an integer difference, HardSigmoid and HardSwish by one
/// function of an element, the clip to `0..=1`.
pub(crate) fn ramp(call: &Call, unit: Digest) -> OpResult {
    let elements = call.field(0)?;
    let (times, plus, height, low) = match call.node.op_type() {
        "Clip" => {
            let [low, high] = [bound(call, 1, "min")?, bound(call, 2, "max")?];
            let height = field::sub(high, low);
            let is_whole = (1..=WHOLE).contains(&height);
            let times = field::inverse(height)
                .filter(|_| is_whole)
                .ok_or(NotEvaluated::Uncovered)?;
            (times, field::sub(0, field::mul(low, times)), height, low)
        }
        "HardSigmoid" => (
            slope(
                call.node
                    .attr_f("alpha")
                    .map_err(|_| NotEvaluated::Uncovered)?
                    .unwrap_or(0.2),
            )?,
            call.float("beta", 0.5)?,
            1,
            0,
        ),
        _ => (
            slope(1.0 / 6.0)?,
            field::of_float(0.5).ok_or(NotEvaluated::Uncovered)?,
            1,
            0,
        ),
    };
    let inner = elements
        .mapv(|x| field::add(field::mul(x, times), plus))
        .into_shared();
    let inner = Call {
        inputs: vec![Some(FieldValue::Field(inner))],
        ..*call
    };
    let steps = element_wise(&inner, unit, false)?
        .into_iter()
        .find_map(|made| made.images());
    let steps = steps
        .ok_or(NotEvaluated::Uncovered)?
        .mapv(|step| field::add(field::mul(step, height), low))
        .into_shared();
    match call.node.op_type() {
        "HardSwish" => Ok(vec![FieldValue::field(
            combine(Arithmetic::Mul, elements, &steps).ok_or(NotEvaluated::Uncovered)?,
        )]),
        _ => Ok(vec![FieldValue::Field(steps)]),
    }
}

/// A bound of a Clip, which was an attribute before operator set 11. Refused if there is no bound.
fn bound(call: &Call, slot: usize, name: &str) -> Result<u32, NotEvaluated> {
    if call.opset < 11 {
        return call.float(name, f32::NAN);
    }
    match slice(call.field(slot)?)[..] {
        [number] => Ok(number),
        _ => Err(NotEvaluated::Uncovered),
    }
}

/// The image of a slope. A slope that is the rounded value of `1/n` gets the image of the exact
/// `1/n`.
fn slope(number: f32) -> Result<u32, NotEvaluated> {
    let inverse = (1..=WHOLE).find(|&n| (1.0 / f64::from(n)) as f32 == number);
    inverse
        .map_or_else(|| field::of_float(number.into()), field::inverse)
        .ok_or(NotEvaluated::Uncovered)
}

/// Softmax and LogSoftmax: functions of the differences between the elements of a lane and its
/// first element. The results of a Softmax sum to 1. The result is 0 at hidden places of a lane,
/// and the results at other places do not depend on hidden ones.
pub(crate) fn softmax(call: &Call, function: Digest) -> OpResult {
    let elements = elements(call, 0)?;
    let shape = elements.shape();
    call.allowance.room(shape)?;
    let (absent, alone) = softmax_axis(call.opset);
    let along = axis(call.attr("axis", absent)?, shape.len())?;
    let behind = if alone { along + 1 } else { shape.len() };
    let (lane, inner) = (
        shape[along..behind].iter().product::<usize>(),
        shape[behind..].iter().product::<usize>(),
    );
    let unknown = Unknown::new(function);
    let are_shares = call.node.op_type() == "Softmax";
    let mut made = slice(elements).to_vec();
    let mut own = vec![];
    for block in made.chunks_mut((lane * inner).max(1)) {
        for start in 0..inner {
            let places = (start..lane * inner).step_by(inner);
            own.clear();
            own.extend(places.clone().map(|place| block[place]));
            lane_shares(&mut own, unknown, are_shares);
            for (place, &number) in places.zip(&own) {
                block[place] = number;
            }
        }
    }
    let made = ArrayD::from_shape_vec(shape, made).map_err(|_| NotEvaluated::Uncovered)?;
    Ok(vec![FieldValue::field(made)])
}

/// Replaces a lane by its Softmax or LogSoftmax. If all places of the lane are hidden, all of them
/// count as visible.
fn lane_shares(lane: &mut [u32], unknown: Unknown, are_shares: bool) {
    if lane.iter().all(|element| element & HIDDEN != 0) {
        lane.iter_mut().for_each(|element| *element &= !HIDDEN);
    }
    let visible = lane.iter().filter(|&element| element & HIDDEN == 0);
    let first = visible.clone().next().copied().unwrap_or_default();
    // Uses two states of 64 bits, because collisions in one state become likely with many lanes of
    // many elements.
    let states = visible
        .clone()
        .fold([unknown.start(), !unknown.start()], |states, &element| {
            let difference = field::sub(element, first).into();
            states.map(|state| unknown.with(state, difference))
        });
    let of_lane = Unknown::new(u128::from(states[0]) << 64 | u128::from(states[1]));
    let mut numbers = (0..).map(|count| of_lane.value(count));
    let sum = numbers.clone().take(visible.count()).fold(0, field::add);
    let share = field::inverse(sum).filter(|_| are_shares).unwrap_or(1);
    for element in lane {
        *element = match *element & HIDDEN {
            0 => field::mul(numbers.next().unwrap_or_default(), share),
            _ => 0,
        };
    }
}
