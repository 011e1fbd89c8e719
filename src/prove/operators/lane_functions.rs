//! Uninterpreted functions of lanes. Two laws are used: one for adding a number to a lane, and one
//! for multiplying a lane by a number.
//!
//! A maximum has `f(x + t) = f(x) + t`, and `f(k·x) = k·f(x)` for k > 0. GridSample and
//! RotaryEmbedding are linear, so the second law holds for every k. For these two operators, the
//! first law holds only if the weights of each result add up to 1. If both laws hold, the result is
//! `a + d·g`: a is the first element of the lane, d is the first difference from a that is not 0,
//! and g is an uninterpreted function of the normalized lane `(x − a)/d`.

use ndarray::ArrayD;

use crate::onnx::operator::MAX_POOL;
use crate::prove::field;
use crate::prove::field_value::{Elements, FieldValue, row_major, slice};
use crate::prove::matrices::{Extents, multiply};
use crate::prove::operators::movement::transposed;
use crate::prove::operators::windows::{pooled, with_bias};
use crate::prove::operators::{Call, NotEvaluated, OpResult};
use crate::prove::random::{Digest, Hash, Unknown};

/// The attributes that GridSample may have.
const GRID_SAMPLE: &[&str] = &["align_corners", "mode", "padding_mode"];

/// The attributes that RotaryEmbedding of ONNX or of `com.microsoft` may have.
const ROTARY: &[&str] = &[
    "interleaved",
    "is_packed_batching",
    "num_heads",
    "rotary_embedding_dim",
    "scale",
];

/// The attributes that DeformConv may have.
const DEFORM_CONV: &[&str] = &[
    "dilations",
    "group",
    "kernel_shape",
    "offset_group",
    "pads",
    "strides",
];

/// Finds the lane that represents a given lane, and returns its first difference. The two lanes
/// differ by a positive factor. The arguments describe the given lane: the digest of its operator
/// and its normalized elements, and its first difference.
pub(crate) type Like<'l> = &'l dyn Fn(Digest, u32) -> u32;

/// The laws that hold for a function of lanes.
#[derive(Clone, Copy)]
struct Passing<'p> {
    /// Whether `f(x + t) = f(x) + t` for a number `t`.
    shift: bool,
    multiples: Multiples<'p>,
}

/// The laws that hold for every linear function.
const LINEAR: Passing = Passing {
    shift: false,
    multiples: Multiples::All,
};

#[derive(Clone, Copy)]
enum Multiples<'p> {
    All,
    /// `f(k·x) = k·f(x)` holds only for k > 0. `None` if positive factors do not matter, because
    /// they are not used in this evaluation.
    Positive(Option<Like<'p>>),
}

/// The result of an operator on lanes, and the number of lanes that were replaced by another lane,
/// from which they differ by a positive factor.
///
/// # Errors
/// [`NotEvaluated::Uncovered`] if the operator does not compute each lane independently, if not
/// only its first result is needed, or if the shape of this result is unknown.
pub(crate) fn of_lanes(
    call: &Call,
    function: Digest,
    shape: Option<&[usize]>,
    alike: Option<Like>,
) -> Result<(Vec<FieldValue>, usize), NotEvaluated> {
    let shape = shape
        .filter(|_| call.wanted == 1)
        .ok_or(NotEvaluated::Uncovered)?;
    let elements = call.field(0)?;
    let rank = elements.ndim();
    knows(call, attributes(call.node.op_type()))?;
    let function = match call.node.op_type() {
        "ReduceMax" | "ReduceMin" => function,
        _ => with_others(call, function, 1..call.inputs.len()),
    };
    let maximum = Lanes {
        call,
        function,
        shape,
        outer: 2,
        passes: Passing {
            shift: true,
            multiples: Multiples::Positive(alike),
        },
        item: &|_| 0,
    };
    let linear = Lanes {
        passes: LINEAR,
        ..maximum
    };
    match call.node.op_type() {
        "GlobalMaxPool" => maximum.at_same_places(elements),
        "MaxPool" => {
            // A window that covers only the border has no maximum, and is refused.
            if shape.get(2..) != Some(&full_windows(call, elements)?) {
                return Err(NotEvaluated::Uncovered);
            }
            maximum.at_same_places(elements)
        }
        "ReduceMax" | "ReduceMin" => {
            let (outer, elements) = reduced_last(call, elements)?;
            Lanes { outer, ..maximum }.results(&elements)
        }
        "GridSample" => sampled(linear, elements),
        _ => {
            let rotated = Lanes {
                outer: rank.checked_sub(1).ok_or(NotEvaluated::Uncovered)?,
                item: &|lane| lane,
                ..linear
            };
            rotated.at_same_places(elements)
        }
    }
}

/// GridSample. Each item of the batch has its own grid.
fn sampled(linear: Lanes, elements: &Elements) -> Result<(Vec<FieldValue>, usize), NotEvaluated> {
    let padding = linear.call.text("padding_mode", "zeros")?;
    let shift = matches!(padding, "border" | "reflection");
    let channels = elements
        .shape()
        .get(1)
        .map_or(1, |&channels| channels.max(1));
    let sampled = Lanes {
        passes: Passing { shift, ..LINEAR },
        item: &|lane| lane / channels,
        ..linear
    };
    sampled.at_same_places(elements)
}

/// The attributes that an operator on lanes may have.
fn attributes(op: &str) -> &'static [&'static str] {
    match op {
        "GlobalMaxPool" => &[],
        "MaxPool" => MAX_POOL,
        "ReduceMax" | "ReduceMin" => &["axes", "keepdims", "noop_with_empty_axes"],
        "GridSample" => GRID_SAMPLE,
        _ => ROTARY,
    }
}

/// The number of axes that a reduction keeps, and the elements with the kept axes before the
/// reduced ones.
fn reduced_last(call: &Call, elements: &Elements) -> Result<(usize, Elements), NotEvaluated> {
    let rank = elements.ndim();
    let reduced = call.reduced(rank)?;
    let mut order: Vec<usize> = (0..rank).filter(|axis| !reduced.contains(axis)).collect();
    let kept = order.len();
    order.extend(reduced);
    Ok((kept, row_major(transposed(elements, &order))))
}

/// The extents of the output of a MaxPool.
///
/// # Errors
/// [`NotEvaluated::Uncovered`] if a window covers only the border.
fn full_windows(call: &Call, elements: &Elements) -> Result<Vec<usize>, NotEvaluated> {
    let input = elements.shape().get(2..).ok_or(NotEvaluated::Uncovered)?;
    let (windows, _) = pooled(call, input)?;
    let mut meets = vec![false; windows.output.iter().product()];
    for places in windows.meets() {
        for (meets, place) in meets.iter_mut().zip(places) {
            *meets |= place.is_some();
        }
    }
    if meets.iter().all(|&meets| meets) {
        Ok(windows.output)
    } else {
        Err(NotEvaluated::Uncovered)
    }
}

/// DeformConv: products of its weight with the samples at its taps. The samples are linear
/// functions of the input channels.
pub(crate) fn deformed(call: &Call, function: Digest) -> OpResult {
    knows(call, DEFORM_CONV)?;
    let (values, weight) = (call.field(0)?, call.field(1)?);
    let (group, offsets) = (call.count("group", 1)?, call.count("offset_group", 1)?);
    let (&[samples, channels, ..], &[outputs, inner, ref kernel @ ..], [_, _, places @ ..]) =
        (values.shape(), weight.shape(), call.shape(2)?)
    else {
        return Err(NotEvaluated::Uncovered);
    };
    let named = call.attr_ints("kernel_shape")?;
    let named = named.map(|named| named.iter().map(|&n| n as usize).collect::<Vec<_>>());
    let has_parts = [(group, outputs), (offsets, channels)]
        .iter()
        .all(|&(parts, of)| parts > 0 && of.is_multiple_of(parts));
    let fits = has_parts && inner.checked_mul(group) == Some(channels);
    if !fits || named.is_some_and(|named| named != kernel) {
        return Err(NotEvaluated::Misfit);
    }
    let [taps, count] = [kernel, places].map(|extents| extents.iter().product::<usize>());
    let taps_of_lanes = Lanes {
        call,
        function: with_others(call, function, [2, 4]),
        shape: &[samples, channels, taps, count],
        outer: 2,
        passes: LINEAR,
        item: &|lane| lane / channels * offsets + lane % channels / (channels / offsets),
    };
    let (sampled, _) = taps_of_lanes.results(values)?;
    let Some(FieldValue::Field(sampled)) = sampled.first() else {
        return Err(NotEvaluated::Uncovered);
    };
    call.allowance
        .products(&[samples, outputs, inner, taps, count])?;
    let extents = Extents {
        rows: outputs / group,
        inner: inner * taps,
        columns: count,
    };
    let pairs: Vec<(usize, usize)> = (0..samples * group)
        .map(|part| {
            (
                part % group * extents.rows * extents.inner,
                part * extents.inner * count,
            )
        })
        .collect();
    let made = multiply(slice(weight), slice(sampled), &pairs, extents);
    with_bias(call, 3, made, &[&[samples, outputs], places].concat())
}

/// Refuses a node that has an attribute other than `names`.
fn knows(call: &Call, names: &[&str]) -> Result<(), NotEvaluated> {
    let all = call
        .node
        .attribute
        .iter()
        .all(|attribute| names.contains(&attribute.name()));
    if all {
        Ok(())
    } else {
        Err(NotEvaluated::Uncovered)
    }
}

/// The digest of a function together with the inputs in these slots, which count as its parameters.
fn with_others(call: &Call, function: Digest, slots: impl IntoIterator<Item = usize>) -> Digest {
    let mut hash = Hash::new(0, "of lanes");
    hash.digest(function);
    for input in slots.into_iter().map(|slot| call.optional(slot)) {
        hash.number(input.is_some().into());
        input.iter().for_each(|input| hash.digest(input.digest(0)));
    }
    hash.finish()
}

/// A function of lanes. A lane consists of all axes after the first `outer` ones.
struct Lanes<'l> {
    call: &'l Call<'l>,
    function: Digest,
    /// The extents of the results.
    shape: &'l [usize],
    /// The number of axes that index the lanes.
    outer: usize,
    passes: Passing<'l>,
    /// The item of the batch to which a lane belongs. Each item has its own function.
    item: &'l dyn Fn(usize) -> usize,
}

impl Lanes<'_> {
    /// The results. Refused if the first axes of the result are not the axes that index the lanes.
    fn at_same_places(
        &self,
        elements: &Elements,
    ) -> Result<(Vec<FieldValue>, usize), NotEvaluated> {
        let outer = self
            .shape
            .get(..self.outer)
            .ok_or(NotEvaluated::Uncovered)?;
        if elements.shape().starts_with(outer) {
            self.results(elements)
        } else {
            Err(NotEvaluated::Uncovered)
        }
    }

    /// The results, and the number of lanes that were replaced by another lane, from which they
    /// differ by a positive factor.
    fn results(&self, elements: &Elements) -> Result<(Vec<FieldValue>, usize), NotEvaluated> {
        self.call.allowance.room(self.shape)?;
        let (outer, along) = elements.shape().split_at(self.outer);
        let [count, length] = [outer, along].map(|extents| extents.iter().product());
        let all = self.shape.iter().product::<usize>();
        let results = all.checked_div(count).ok_or(NotEvaluated::Uncovered)?;
        if length == 0 || results * count != all {
            return Err(NotEvaluated::Uncovered);
        }
        let (mut made, mut taken) = (Vec::with_capacity(all), 0);
        for (place, lane) in slice(elements).chunks(length).enumerate() {
            taken += usize::from(self.add_results(place, lane, results, &mut made)?);
        }
        let made = ArrayD::from_shape_vec(self.shape, made).map_err(|_| NotEvaluated::Uncovered)?;
        Ok((vec![FieldValue::field(made)], taken))
    }

    /// Appends the results of a lane to `made`. Returns whether another lane replaced this lane.
    fn add_results(
        &self,
        place: usize,
        lane: &[u32],
        results: usize,
        made: &mut Vec<u32>,
    ) -> Result<bool, NotEvaluated> {
        let start = if self.passes.shift { lane[0] } else { 0 };
        let mut rest: Vec<u32> = lane
            .iter()
            .map(|&element| field::sub(element, start))
            .collect();
        let Some(first) = rest.iter().copied().find(|&difference| difference != 0) else {
            made.extend(std::iter::repeat_n(start, results));
            return Ok(false);
        };
        let part = field::inverse(first).ok_or(NotEvaluated::Uncovered)?;
        for difference in &mut rest {
            *difference = field::mul(*difference, part);
        }
        let mut hash = Hash::new(0, "lane");
        hash.digest(self.function);
        hash.number((self.item)(place) as u64);
        hash.number(results as u64);
        hash.all(&rest, u32::to_le_bytes);
        let digest = hash.finish();
        let (like, is_positive) = match self.passes.multiples {
            Multiples::All => (1, false),
            Multiples::Positive(None) => (first, true),
            Multiples::Positive(Some(alike)) => (alike(digest, first), true),
        };
        let mut hash = Hash::new(0, "results of a lane");
        hash.digest(digest);
        hash.number(like.into());
        let unknown = Unknown::new(hash.finish());
        let times = field::mul(first, field::inverse(like).ok_or(NotEvaluated::Uncovered)?);
        let values = (0..results as u64).map(|place| unknown.value(place));
        made.extend(values.map(|value| field::add(start, field::mul(times, value))));
        Ok(is_positive && like != first)
    }
}
