//! Functions of lanes, known only by how a factor, and a summand of a whole lane, pass them.
//!
//! A maximum has `f(x + t) = f(x) + t`, and `f(k·x) = k·f(x)` for k > 0. Sampling of images and
//! rotation of channel pairs are linear: they have the second law for every k, and the first where
//! their weights add up to 1. So the result is the first element of the lane, plus the first
//! difference to it times an uninterpreted function of the normalized lane.

use crate::onnx::operator::MAX_POOL;
use crate::prove::field;
use crate::prove::field_value::{Elements, FieldValue, row_major, slice};
use crate::prove::matrices::{Extents, multiply};
use crate::prove::operators::movement::transposed;
use crate::prove::operators::windows::{pooled, with_bias};
use crate::prove::operators::{Call, Made, Unmade};
use crate::prove::random::{Digest, Hash, Unknown};

/// The attributes of GridSample.
const GRID_SAMPLE: &[&str] = &["align_corners", "mode", "padding_mode"];

/// The attributes of RotaryEmbedding, of ONNX and of `com.microsoft`.
const ROTARY: &[&str] = &[
    "interleaved",
    "is_packed_batching",
    "num_heads",
    "rotary_embedding_dim",
    "scale",
];

/// The attributes of DeformConv.
const DEFORM_CONV: &[&str] = &[
    "dilations",
    "group",
    "kernel_shape",
    "offset_group",
    "pads",
    "strides",
];

/// The first difference of the lane that one is taken for, by what the operator makes of it divided by its own, and by that.
pub type Like<'l> = &'l dyn Fn(Digest, u32) -> u32;

/// The laws of a function of lanes.
#[derive(Clone, Copy)]
struct Passing<'p> {
    /// Whether a summand of a lane is added to its results.
    shift: bool,
    multiples: Multiples<'p>,
}

#[derive(Clone, Copy)]
enum Multiples<'p> {
    All,
    /// Factors that count as positive, where those are used.
    Positive(Option<Like<'p>>),
}

/// The result of an operator on lanes, and the number of lanes identified with others up to a
/// positive factor.
///
/// # Errors
/// [`Unmade::Uncovered`] where it does not compute each of them by itself, or nothing says what it makes.
pub fn of_lanes(
    call: &Call,
    function: Digest,
    shape: Option<&[usize]>,
    alike: Option<Like>,
) -> Result<(Vec<FieldValue>, usize), Unmade> {
    let shape = shape
        .filter(|_| call.wanted == 1)
        .ok_or(Unmade::Uncovered)?;
    let elements = call.field(0)?;
    let rank = elements.ndim();
    let function = with_others(call, function, 1..call.inputs.len());
    let maximum = Passing {
        shift: true,
        multiples: Multiples::Positive(alike),
    };
    let linear = Passing {
        shift: false,
        multiples: Multiples::All,
    };
    let lanes = |outer, passes, item: &dyn Fn(usize) -> usize| {
        let starts = shape
            .get(..outer)
            .is_some_and(|start| elements.shape().starts_with(start));
        if starts {
            each(call, elements, outer, shape, function, passes, item)
        } else {
            Err(Unmade::Uncovered)
        }
    };
    match call.node.op_type() {
        "GlobalMaxPool" => {
            knows(call, &[])?;
            lanes(2, maximum, &|_| 0)
        }
        "MaxPool" => {
            knows(call, MAX_POOL)?;
            let (windows, _) = pooled(call, elements.shape().get(2..).ok_or(Unmade::Uncovered)?)?;
            let mut meets = vec![false; windows.output.iter().product()];
            for places in windows.meets() {
                meets
                    .iter_mut()
                    .zip(places)
                    .for_each(|(meets, place)| *meets |= place.is_some());
            }
            // A window over the border alone has no maximum.
            let fits = shape.get(2..) == Some(&windows.output) && meets.iter().all(|&meets| meets);
            if fits {
                lanes(2, maximum, &|_| 0)
            } else {
                Err(Unmade::Uncovered)
            }
        }
        "ReduceMax" | "ReduceMin" => {
            knows(call, &["axes", "keepdims", "noop_with_empty_axes"])?;
            let reduced = call.reduced(rank)?;
            let mut order: Vec<usize> = (0..rank).filter(|axis| !reduced.contains(axis)).collect();
            let outer = order.len();
            order.extend(reduced);
            let elements = row_major(transposed(elements, &order));
            each(call, &elements, outer, shape, function, maximum, &|_| 0)
        }
        "GridSample" => {
            knows(call, GRID_SAMPLE)?;
            let shift = matches!(call.text("padding_mode", "zeros")?, "border" | "reflection");
            let channels = elements.shape().get(1).copied().unwrap_or_default().max(1);
            // Each item has its own grid.
            lanes(2, Passing { shift, ..linear }, &|lane| lane / channels)
        }
        _ => {
            knows(call, ROTARY)?;
            lanes(
                rank.checked_sub(1).ok_or(Unmade::Uncovered)?,
                linear,
                &|lane| lane,
            )
        }
    }
}

/// DeformConv: products of its weight with what its taps sample, which is linear in the image of each channel.
pub fn deformed(call: &Call, function: Digest) -> Made {
    knows(call, DEFORM_CONV)?;
    let (values, weight) = (call.field(0)?, call.field(1)?);
    let (group, offsets) = (call.count("group", 1)?, call.count("offset_group", 1)?);
    let (&[samples, channels, ..], &[outputs, inner, ref kernel @ ..], [_, _, places @ ..]) =
        (values.shape(), weight.shape(), call.shape(2)?)
    else {
        return Err(Unmade::Uncovered);
    };
    let told = call.attr_ints("kernel_shape")?;
    let is_told =
        told.is_none_or(|told| told.iter().map(|&n| n as usize).eq(kernel.iter().copied()));
    let is_whole = |parts: usize, of: usize| parts > 0 && of.is_multiple_of(parts);
    let fits = is_whole(group, outputs)
        && is_whole(offsets, channels)
        && inner.checked_mul(group) == Some(channels);
    if !fits || !is_told {
        return Err(Unmade::Misfit);
    }
    let [taps, count] = [kernel, places].map(|extents| extents.iter().product::<usize>());
    let function = with_others(call, function, [2, 4]);
    let linear = Passing {
        shift: false,
        multiples: Multiples::All,
    };
    let sampled = [samples, channels, taps, count];
    let (sampled, _) = each(call, values, 2, &sampled, function, linear, &|lane| {
        lane / channels * offsets + lane % channels / (channels / offsets)
    })?;
    let Some(FieldValue::Field(sampled)) = sampled.first() else {
        return Err(Unmade::Uncovered);
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

/// Refuses attributes that are not known.
fn knows(call: &Call, known: &[&str]) -> Result<(), Unmade> {
    let all = call
        .node
        .attribute
        .iter()
        .all(|attribute| known.contains(&attribute.name()));
    if all { Ok(()) } else { Err(Unmade::Uncovered) }
}

/// A function with others of its inputs in it.
fn with_others(call: &Call, function: Digest, slots: impl IntoIterator<Item = usize>) -> Digest {
    let mut hash = Hash::new(0, "of lanes");
    hash.digest(function);
    for input in slots.into_iter().map(|slot| call.optional(slot)) {
        hash.number(input.is_some().into());
        input.iter().for_each(|input| hash.digest(input.digest(0)));
    }
    hash.finish()
}

/// A function of each lane, which lies along all axes from one on, and of the item that it belongs to.
fn each(
    call: &Call,
    elements: &Elements,
    outer: usize,
    shape: &[usize],
    function: Digest,
    passes: Passing,
    item: &dyn Fn(usize) -> usize,
) -> Result<(Vec<FieldValue>, usize), Unmade> {
    call.allowance.room(shape)?;
    let [count, length] = [&elements.shape()[..outer], &elements.shape()[outer..]]
        .map(|extents| extents.iter().product());
    let results = shape
        .iter()
        .product::<usize>()
        .checked_div(count)
        .ok_or(Unmade::Uncovered)?;
    if length == 0 || results * count != shape.iter().product::<usize>() {
        return Err(Unmade::Uncovered);
    }
    let (mut made, mut taken) = (Vec::with_capacity(results * count), 0);
    for (place, lane) in slice(elements).chunks(length).enumerate() {
        let start = if passes.shift { lane[0] } else { 0 };
        let rest = || lane.iter().map(|&element| field::sub(element, start));
        let Some(first) = rest().find(|&difference| difference != 0) else {
            made.extend(std::iter::repeat_n(start, results));
            continue;
        };
        let part = field::inverse(first).ok_or(Unmade::Uncovered)?;
        let rest: Vec<u32> = rest()
            .map(|difference| field::mul(difference, part))
            .collect();
        let mut hash = Hash::new(0, "lane");
        hash.digest(function);
        hash.number(item(place) as u64);
        hash.number(results as u64);
        hash.all(&rest, u32::to_le_bytes);
        let digest = hash.finish();
        let like = match passes.multiples {
            Multiples::All => 1,
            Multiples::Positive(None) => first,
            Multiples::Positive(Some(alike)) => alike(digest, first),
        };
        taken += usize::from(matches!(passes.multiples, Multiples::Positive(_)) && like != first);
        let mut hash = Hash::new(0, "results of a lane");
        hash.digest(digest);
        hash.number(like.into());
        let unknown = Unknown::new(hash.finish());
        let times = field::mul(first, field::inverse(like).ok_or(Unmade::Uncovered)?);
        let result = |place| field::add(start, field::mul(times, unknown.value(place as u64)));
        made.extend((0..results).map(result));
    }
    let made = ndarray::ArrayD::from_shape_vec(shape, made).map_err(|_| Unmade::Uncovered)?;
    Ok((vec![FieldValue::field(made)], taken))
}
