//! Convolutions and means over windows.

use ndarray::{ArrayD, Axis, Slice};

use super::movement::transposed;
use super::{Allowance, Call, Made, Unmade};
use crate::ir::builder::ints;
use crate::onnx::proto::NodeProto;
use crate::prove::field;
use crate::prove::field_value::{Elements, FieldValue, row_major, slice};
use crate::prove::matrices::{Extents, multiply};
use crate::recipe::Windows;

/// The attributes of Conv.
pub(super) const CONV: &[&str] = &[
    "auto_pad",
    "dilations",
    "group",
    "kernel_shape",
    "pads",
    "strides",
];

/// The attributes of ConvTranspose.
pub(super) const CONV_TRANSPOSE: &[&str] = &[
    "auto_pad",
    "dilations",
    "group",
    "kernel_shape",
    "output_padding",
    "output_shape",
    "pads",
    "strides",
];

/// Numbers among the attributes are no larger than this.
const LARGEST: i64 = 1 << 31;

/// So many elements of windows are laid out at once.
const LAID_OUT: usize = 1 << 24;

/// A weight `[group, outer, inner, taps]` on values `[group, inner, places]`, as in a recipe.
///
/// # Errors
/// Where they have other axes, or the products are more than is allowed.
pub fn convolution(
    weight: &Elements,
    values: &Elements,
    windows: &Windows,
    allowance: &Allowance,
) -> Result<ArrayD<u32>, Unmade> {
    let (&[group, outer, inner, taps], &[_, _, places]) = (weight.shape(), values.shape()) else {
        return Err(Unmade::Uncovered);
    };
    let count: usize = windows.output.iter().product();
    allowance.room(&[group, outer, count])?;
    allowance.room(&[taps, count])?;
    allowance.products(&[group, outer, inner, taps, count])?;
    let meets: Vec<Vec<Option<usize>>> = windows.meets().collect();
    let mut sums = vec![0; group * outer * count];
    let together = (LAID_OUT / (inner * taps).max(1)).max(1);
    for g in 0..group {
        let weight = &slice(weight)[g * outer * inner * taps..][..outer * inner * taps];
        let values = &slice(values)[g * inner * places..][..inner * places];
        for first in (0..count).step_by(together) {
            let columns = together.min(count - first);
            let mut laid = Vec::with_capacity(inner * taps * columns);
            for values in values.chunks(places.max(1)) {
                for meets in &meets {
                    let element = |place: &Option<usize>| place.map_or(0, |place| values[place]);
                    laid.extend(meets[first..first + columns].iter().map(element));
                }
            }
            laid.resize(inner * taps * columns, 0);
            let extents = Extents {
                rows: outer,
                inner: inner * taps,
                columns,
            };
            let products = multiply(weight, &laid, &[(0, 0)], extents);
            for (row, products) in products.chunks(columns).enumerate() {
                sums[(g * outer + row) * count + first..][..columns].copy_from_slice(products);
            }
        }
    }
    ArrayD::from_shape_vec(vec![group, outer, count], sums).map_err(|_| Unmade::Uncovered)
}

/// How a kernel lies over the places of its input, and how many zeros stand behind the last one.
fn windows(call: &Call, kernel: &[usize], input: &[usize]) -> Result<(Windows, Vec<i64>), Unmade> {
    let transposed = call.op() == "ConvTranspose";
    let spatial = kernel.len();
    let list = |name: &str, absent: i64, count: usize, least: i64| -> Result<Vec<i64>, Unmade> {
        let list = call.attr_ints(name)?.unwrap_or_else(|| vec![absent; count]);
        let fits = list.len() == count && list.iter().all(|n| (least..LARGEST).contains(n));
        fits.then_some(list).ok_or(Unmade::Uncovered)
    };
    let (strides, dilations) = (
        list("strides", 1, spatial, 1)?,
        list("dilations", 1, spatial, 1)?,
    );
    let pads = list("pads", 0, 2 * spatial, 0)?;
    let more = list("output_padding", 0, spatial, 0)?;
    let asked = if transposed {
        list("output_shape", 0, spatial, 0)?
    } else {
        vec![0; spatial]
    };
    let fits = input.len() == spatial
        && kernel
            .iter()
            .chain(input)
            .all(|&extent| (extent as i64) < LARGEST);
    if !fits {
        return Err(Unmade::Uncovered);
    }
    let told = call.attr_ints("kernel_shape")?;
    if told.is_some_and(|told| !told.iter().map(|&n| n as usize).eq(kernel.iter().copied())) {
        return Err(Unmade::Misfit);
    }
    let (auto, up) = (
        call.text("auto_pad", "NOTSET")?,
        call.flag("ceil_mode", false)?,
    );
    // Engines disagree here.
    if up && auto == "VALID"
        || transposed && auto.starts_with("SAME") && more.iter().any(|&more| more != 0)
    {
        return Err(Unmade::Uncovered);
    }
    let (mut before, mut after, mut output) = (vec![], vec![], vec![]);
    for axis in 0..spatial {
        let (size, stride) = (input[axis] as i64, strides[axis]);
        let reach = (kernel[axis] as i64 - 1) * dilations[axis] + 1;
        // The places that a transposed convolution cuts off to reach its output extent.
        let taken = |places: i64| ((size - 1) * stride + more[axis] + reach - places).max(0);
        let (first, last) = match auto {
            auto if transposed && (asked[axis] > 0 || auto.starts_with("SAME")) => halves(
                taken(if asked[axis] > 0 {
                    asked[axis]
                } else {
                    size * stride
                }),
                auto,
            ),
            "NOTSET" => (pads[axis], pads[axis + spatial]),
            "VALID" => (0, 0),
            "SAME_UPPER" | "SAME_LOWER" if !transposed => halves(
                (((size + stride - 1) / stride - 1) * stride + reach - size).max(0),
                auto,
            ),
            _ => return Err(Unmade::Uncovered),
        };
        let room = size + first + last - reach;
        let places = match (transposed, up) {
            (true, _) => (size - 1) * stride + more[axis] + reach - first - last,
            _ if room < 0 => return Err(Unmade::Misfit),
            (_, false) => room / stride + 1,
            (_, true) => {
                let places = (room + stride - 1) / stride + 1;
                // The last window begins inside, or in the padding before.
                if (places - 1) * stride >= size + first {
                    places - 1
                } else {
                    places
                }
            }
        };
        before.push(first);
        after.push(last);
        output.push(usize::try_from(places).map_err(|_| Unmade::Uncovered)?);
    }
    let windows = Windows {
        transposed,
        kernel: kernel.to_vec(),
        strides,
        dilations,
        before,
        input: input.to_vec(),
        output,
    };
    Ok((windows, after))
}

/// The padding before and behind; `auto_pad` decides the end of an odd place.
fn halves(total: i64, auto: &str) -> (i64, i64) {
    let small = total / 2;
    if auto == "SAME_UPPER" {
        (small, total - small)
    } else {
        (total - small, small)
    }
}

fn count(extents: &[usize]) -> usize {
    extents.iter().product()
}

pub(super) fn conv(call: &Call) -> Made {
    let (values, weight) = (call.field(0)?, call.field(1)?);
    let group = call.count("group", 1)?;
    let (&[samples, channels, ref input @ ..], &[outputs, inner, ref kernel @ ..]) =
        (values.shape(), weight.shape())
    else {
        return Err(Unmade::Uncovered);
    };
    if group == 0 || inner.checked_mul(group) != Some(channels) || !outputs.is_multiple_of(group) {
        return Err(Unmade::Misfit);
    }
    let (windows, _) = windows(call, kernel, input)?;
    let shaped =
        weight
            .clone()
            .into_shape_with_order(vec![group, outputs / group, inner, count(kernel)]);
    let weight = shaped.map_err(|_| Unmade::Uncovered)?;
    convolved(call, values, (samples, group, inner), &weight, &windows)
}

pub(super) fn conv_transpose(call: &Call) -> Made {
    let (values, weight) = (call.field(0)?, call.field(1)?);
    let group = call.count("group", 1)?;
    let (&[samples, channels, ref input @ ..], &[own, outer, ref kernel @ ..]) =
        (values.shape(), weight.shape())
    else {
        return Err(Unmade::Uncovered);
    };
    if group == 0 || own != channels || !channels.is_multiple_of(group) {
        return Err(Unmade::Misfit);
    }
    let (windows, _) = windows(call, kernel, input)?;
    let inner = channels / group;
    let shaped = weight
        .clone()
        .into_shape_with_order(vec![group, inner, outer, count(kernel)]);
    let weight = row_major(transposed(
        &shaped.map_err(|_| Unmade::Uncovered)?,
        &[0, 2, 1, 3],
    ));
    convolved(call, values, (samples, group, inner), &weight, &windows)
}

/// Sample by sample, and the bias.
fn convolved(
    call: &Call,
    values: &Elements,
    (samples, group, inner): (usize, usize, usize),
    weight: &Elements,
    windows: &Windows,
) -> Made {
    let outputs = weight.shape()[0] * weight.shape()[1];
    let shape = [&[samples, outputs][..], &windows.output].concat();
    call.allowance.room(&shape)?;
    let size = group * inner * count(&windows.input);
    let mut made = Vec::with_capacity(count(&shape));
    for sample in 0..samples {
        let values = slice(values)[sample * size..][..size].to_vec();
        let values = ArrayD::from_shape_vec(vec![group, inner, count(&windows.input)], values);
        let values = row_major(values.map_err(|_| Unmade::Uncovered)?);
        made.extend(convolution(weight, &values, windows, call.allowance)?);
    }
    with_bias(call, 2, made, &shape)
}

/// Sums of this shape, and the bias of their channels.
pub(super) fn with_bias(call: &Call, slot: usize, mut made: Vec<u32>, shape: &[usize]) -> Made {
    let places = count(&shape[2..]);
    if let Some(bias) = call.optional_field(slot)? {
        if bias.shape() != [shape[1]] {
            return Err(Unmade::Misfit);
        }
        for (lane, &bias) in made
            .chunks_mut(places.max(1))
            .zip(slice(bias).iter().cycle())
        {
            lane.iter_mut()
                .for_each(|element| *element = field::add(*element, bias));
        }
    }
    Ok(vec![FieldValue::field(
        ArrayD::from_shape_vec(shape, made).map_err(|_| Unmade::Uncovered)?,
    )])
}

/// How the windows of a pooling lie over the places of an image, and how many places stand behind the last one.
pub(super) fn pooled(call: &Call, input: &[usize]) -> Result<(Windows, Vec<i64>), Unmade> {
    let kernel = call.attr_ints("kernel_shape")?.ok_or(Unmade::Uncovered)?;
    let kernel = kernel
        .into_iter()
        .map(|n| usize::try_from(n).map_err(|_| Unmade::Uncovered));
    windows(call, &kernel.collect::<Result<Vec<_>, _>>()?, input)
}

/// A MaxPool whose image has a border of nothing but −∞, of which this is the element, as one that pads by itself: a maximum
/// sees neither.
pub fn without_border(call: &Call, lowest: u32) -> Option<(NodeProto, FieldValue)> {
    (call.node.op() == ("", "MaxPool") && call.wanted == 1).then_some(())?;
    let FieldValue::Field(elements) = call.optional(0)? else {
        return None;
    };
    let is_told = call
        .text("auto_pad", "NOTSET")
        .is_ok_and(|kind| kind == "NOTSET")
        && call.flag("ceil_mode", false).is_ok_and(|up| !up);
    let spatial = elements.ndim().checked_sub(2).filter(|_| is_told)?;
    let mut pads = call
        .attr_ints("pads")
        .ok()?
        .unwrap_or_else(|| vec![0; 2 * spatial]);
    let (mut inside, mut is_around) = (elements.view(), false);
    (pads.len() == 2 * spatial).then_some(())?;
    for axis in 0..spatial {
        let along = Axis(axis + 2);
        let is_border = |&place: &usize| {
            inside
                .index_axis(along, place)
                .iter()
                .all(|&element| element == lowest)
        };
        let extent = inside.len_of(along);
        let first = (0..extent).take_while(is_border).count();
        let last = (first..extent).rev().take_while(is_border).count();
        (first < extent).then_some(())?;
        pads[axis] = pads[axis].checked_add(first as i64)?;
        pads[axis + spatial] = pads[axis + spatial].checked_add(last as i64)?;
        is_around |= first + last > 0;
        inside.slice_axis_inplace(along, Slice::from(first..extent - last));
    }
    let mut node = call.node.clone();
    node.attribute
        .retain(|attribute| attribute.name() != "pads");
    node.attribute.push(ints("pads", &pads));
    is_around.then(|| (node, FieldValue::Field(row_major(inside.to_owned()))))
}

/// AveragePool.
pub(super) fn average(call: &Call) -> Made {
    let values = call.field(0)?;
    let &[samples, channels, ref input @ ..] = values.shape() else {
        return Err(Unmade::Uncovered);
    };
    let (windows, after) = pooled(call, input)?;
    let (places, taps) = (
        count(&windows.output),
        windows
            .kernel
            .iter()
            .try_fold(1_usize, |n, &k| n.checked_mul(k)),
    );
    let shape = [&[samples, channels][..], &windows.output].concat();
    call.allowance.room(&shape)?;
    call.allowance
        .room(&[taps.ok_or(Unmade::Beyond)?, places])?;
    call.allowance
        .products(&[count(&shape), taps.ok_or(Unmade::Beyond)?])?;
    // The divisor counts the places inside, or those of the border too.
    let counted = match call.flag("count_include_pad", false)? {
        false => windows.clone(),
        true => Windows {
            input: (0..input.len())
                .map(|axis| input[axis] + (windows.before[axis] + after[axis]) as usize)
                .collect(),
            before: vec![0; input.len()],
            ..windows.clone()
        },
    };
    let mut counts = vec![0_u32; places];
    for meets in counted.meets() {
        counts
            .iter_mut()
            .zip(meets)
            .for_each(|(count, place)| *count += u32::from(place.is_some()));
    }
    field::invert(&mut counts).ok_or(Unmade::Uncovered)?;
    let size = count(input);
    let mut sums = vec![0_u64; samples * channels * places];
    for meets in windows.meets() {
        for (values, sums) in slice(values)
            .chunks(size.max(1))
            .zip(sums.chunks_mut(places.max(1)))
        {
            let met = meets
                .iter()
                .map(|place| place.map_or(0, |place| values[place]));
            sums.iter_mut()
                .zip(met)
                .for_each(|(sum, element)| *sum += u64::from(element));
        }
    }
    let means = sums
        .iter()
        .zip(counts.iter().cycle())
        .map(|(&sum, &part)| field::mul(field::reduce(sum), part));
    Ok(vec![FieldValue::field(
        ArrayD::from_shape_vec(shape, means.collect()).map_err(|_| Unmade::Uncovered)?,
    )])
}
