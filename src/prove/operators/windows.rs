//! Convolutions, and means over windows.

use ndarray::{ArrayD, Axis, Slice};

use super::convolution::{ConvolutionExtents, convolution};
use super::movement::transposed;
use super::{Call, NotEvaluated, OpResult};
use crate::ir::builder::ints;
use crate::onnx::proto::NodeProto;
use crate::prove::field;
use crate::prove::field_value::{Elements, FieldValue, row_major, slice};
use crate::recipe::Windows;

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

/// The limit for numbers in attributes and for extents, so that sums of them do not overflow.
const LARGEST: i64 = 1 << 31;

/// The windows of a kernel over the places of its input, and for each axis the number of zeros
/// after the last place.
fn windows(
    call: &Call,
    kernel: &[usize],
    input: &[usize],
) -> Result<(Windows, Vec<i64>), NotEvaluated> {
    let layout = KernelLayout::new(call, kernel, input)?;
    let (mut before, mut after, mut output) = (vec![], vec![], vec![]);
    for axis in 0..kernel.len() {
        let (first, last) = layout.padding(axis)?;
        let places = layout.places(axis, first, last)?;
        before.push(first);
        after.push(last);
        output.push(usize::try_from(places).map_err(|_| NotEvaluated::Uncovered)?);
    }
    let windows = Windows {
        transposed: layout.is_transposed,
        kernel: kernel.to_vec(),
        strides: layout.strides,
        dilations: layout.dilations,
        before,
        input: input.to_vec(),
        output,
    };
    Ok((windows, after))
}

/// The attributes and extents that determine the windows of a kernel.
struct KernelLayout<'l> {
    is_transposed: bool,
    kernel: &'l [usize],
    input: &'l [usize],
    strides: Vec<i64>,
    dilations: Vec<i64>,
    pads: Vec<i64>,
    /// The number of additional places in the output of a transposed convolution.
    more: Vec<i64>,
    /// The extents that `output_shape` requests for the output of a transposed convolution, or 0
    /// for each axis without the attribute.
    asked: Vec<i64>,
    auto_pad: &'l str,
    rounds_up: bool,
}

impl<'l> KernelLayout<'l> {
    fn new(call: &'l Call, kernel: &'l [usize], input: &'l [usize]) -> Result<Self, NotEvaluated> {
        let is_transposed = call.op() == "ConvTranspose";
        let spatial = kernel.len();
        let strides = numbers(call, "strides", 1, spatial, 1)?;
        let dilations = numbers(call, "dilations", 1, spatial, 1)?;
        let pads = numbers(call, "pads", 0, 2 * spatial, 0)?;
        let more = numbers(call, "output_padding", 0, spatial, 0)?;
        let asked = if is_transposed {
            numbers(call, "output_shape", 0, spatial, 0)?
        } else {
            vec![0; spatial]
        };
        let mut extents = kernel.iter().chain(input);
        if input.len() != spatial || extents.any(|&extent| extent as i64 >= LARGEST) {
            return Err(NotEvaluated::Uncovered);
        }
        let named = call.attr_ints("kernel_shape")?;
        let named = named.map(|named| named.iter().map(|&n| n as usize).collect::<Vec<_>>());
        if named.is_some_and(|named| named != kernel) {
            return Err(NotEvaluated::Misfit);
        }
        let auto_pad = call.text("auto_pad", "NOTSET")?;
        let rounds_up = call.flag("ceil_mode", false)?;
        // These combinations are refused, because engines disagree on them.
        if rounds_up && auto_pad == "VALID"
            || is_transposed && auto_pad.starts_with("SAME") && more.iter().any(|&more| more != 0)
        {
            return Err(NotEvaluated::Uncovered);
        }
        Ok(Self {
            is_transposed,
            kernel,
            input,
            strides,
            dilations,
            pads,
            more,
            asked,
            auto_pad,
            rounds_up,
        })
    }

    /// The number of places that a window spans, from its first to its last tap.
    fn reach(&self, axis: usize) -> i64 {
        (self.kernel[axis] as i64 - 1) * self.dilations[axis] + 1
    }

    /// The number of places of a transposed convolution's output before cropping.
    fn uncut(&self, axis: usize) -> i64 {
        let size = self.input[axis] as i64;
        (size - 1) * self.strides[axis] + self.more[axis] + self.reach(axis)
    }

    /// The number of zeros before and after the places of an axis. For a transposed convolution,
    /// the number of places that are cropped at the beginning and the end of the axis.
    fn padding(&self, axis: usize) -> Result<(i64, i64), NotEvaluated> {
        let (size, stride) = (self.input[axis] as i64, self.strides[axis]);
        let (asked, auto_pad) = (self.asked[axis], self.auto_pad);
        if self.is_transposed && (asked > 0 || auto_pad.starts_with("SAME")) {
            let places = if asked > 0 { asked } else { size * stride };
            return Ok(halves((self.uncut(axis) - places).max(0), auto_pad));
        }
        match auto_pad {
            "NOTSET" => Ok((self.pads[axis], self.pads[axis + self.kernel.len()])),
            "VALID" => Ok((0, 0)),
            "SAME_UPPER" | "SAME_LOWER" if !self.is_transposed => {
                let last = ((size + stride - 1) / stride - 1) * stride;
                Ok(halves((last + self.reach(axis) - size).max(0), auto_pad))
            }
            _ => Err(NotEvaluated::Uncovered),
        }
    }

    /// The number of places of the output with the padding `first` and `last`. Refused if the input
    /// is smaller than a window.
    fn places(&self, axis: usize, first: i64, last: i64) -> Result<i64, NotEvaluated> {
        let (size, stride) = (self.input[axis] as i64, self.strides[axis]);
        if self.is_transposed {
            return Ok(self.uncut(axis) - first - last);
        }
        let room = size + first + last - self.reach(axis);
        if room < 0 {
            return Err(NotEvaluated::Misfit);
        }
        if !self.rounds_up {
            return Ok(room / stride + 1);
        }
        let places = (room + stride - 1) / stride + 1;
        // A last window that would begin in the padding after the input is left out.
        if (places - 1) * stride >= size + first {
            Ok(places - 1)
        } else {
            Ok(places)
        }
    }
}

/// An attribute that is a list of `count` integers, each at least `least`.
fn numbers(
    call: &Call,
    name: &str,
    absent: i64,
    count: usize,
    least: i64,
) -> Result<Vec<i64>, NotEvaluated> {
    let numbers = call.attr_ints(name)?.unwrap_or_else(|| vec![absent; count]);
    let fits = numbers.len() == count && numbers.iter().all(|n| (least..LARGEST).contains(n));
    fits.then_some(numbers).ok_or(NotEvaluated::Uncovered)
}

/// Splits padding into the parts before and after. If `total` is odd, `auto_pad` decides which part
/// is larger.
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

pub(super) fn conv(call: &Call) -> OpResult {
    let (values, weight) = (call.field(0)?, call.field(1)?);
    let group = call.count("group", 1)?;
    let (&[samples, channels, ref input @ ..], &[outputs, inner, ref kernel @ ..]) =
        (values.shape(), weight.shape())
    else {
        return Err(NotEvaluated::Uncovered);
    };
    if group == 0 || inner.checked_mul(group) != Some(channels) || !outputs.is_multiple_of(group) {
        return Err(NotEvaluated::Misfit);
    }
    let (windows, _) = windows(call, kernel, input)?;
    let extents = ConvolutionExtents {
        samples,
        group,
        outer: outputs / group,
        inner,
    };
    convolved(call, values, weight, extents, &windows)
}

pub(super) fn conv_transpose(call: &Call) -> OpResult {
    let (values, weight) = (call.field(0)?, call.field(1)?);
    let group = call.count("group", 1)?;
    let (&[samples, channels, ref input @ ..], &[own, outer, ref kernel @ ..]) =
        (values.shape(), weight.shape())
    else {
        return Err(NotEvaluated::Uncovered);
    };
    if group == 0 || own != channels || !channels.is_multiple_of(group) {
        return Err(NotEvaluated::Misfit);
    }
    let (windows, _) = windows(call, kernel, input)?;
    let inner = channels / group;
    let shaped = weight
        .clone()
        .into_shape_with_order(vec![group, inner, outer, count(kernel)]);
    let weight = row_major(transposed(
        &shaped.map_err(|_| NotEvaluated::Uncovered)?,
        &[0, 2, 1, 3],
    ));
    let extents = ConvolutionExtents {
        samples,
        group,
        outer,
        inner,
    };
    convolved(call, values, &weight, extents, &windows)
}

/// Convolves, and adds the bias.
fn convolved(
    call: &Call,
    values: &Elements,
    weight: &Elements,
    extents: ConvolutionExtents,
    windows: &Windows,
) -> OpResult {
    let (values, weight) = (slice(values), slice(weight));
    let sums = convolution(weight, values, extents, windows, call.allowance)?;
    let outputs = extents.group * extents.outer;
    let shape = [&[extents.samples, outputs][..], &windows.output].concat();
    with_bias(call, 2, sums, &shape)
}

/// Adds the bias of each channel, if there is a bias, to sums of this shape.
pub(super) fn with_bias(call: &Call, slot: usize, mut made: Vec<u32>, shape: &[usize]) -> OpResult {
    let places = count(&shape[2..]);
    if let Some(bias) = call.optional_field(slot)? {
        if bias.shape() != [shape[1]] {
            return Err(NotEvaluated::Misfit);
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
        ArrayD::from_shape_vec(shape, made).map_err(|_| NotEvaluated::Uncovered)?,
    )])
}

/// The windows of a pooling operator over the places of an image, and for each axis the padding
/// after the last place.
pub(super) fn pooled(call: &Call, input: &[usize]) -> Result<(Windows, Vec<i64>), NotEvaluated> {
    let kernel = call
        .attr_ints("kernel_shape")?
        .ok_or(NotEvaluated::Uncovered)?;
    let kernel = kernel
        .into_iter()
        .map(|n| usize::try_from(n).map_err(|_| NotEvaluated::Uncovered));
    windows(call, &kernel.collect::<Result<Vec<_>, _>>()?, input)
}

/// If the input of a MaxPool has a border of −∞, turns this border into padding of the operator.
/// Returns the changed MaxPool, and the input without the border. `None` if there is no such
/// border, if all elements are −∞, or if the MaxPool also returns indices, rounds up or pads
/// automatically. `lowest` represents −∞. The result is the same, because a maximum ignores both −∞
/// and padding.
pub(crate) fn without_border(call: &Call, lowest: u32) -> Option<(NodeProto, FieldValue)> {
    (call.node.op() == ("", "MaxPool") && call.wanted == 1).then_some(())?;
    let FieldValue::Field(elements) = call.optional(0)? else {
        return None;
    };
    let pads_alone = call.text("auto_pad", "NOTSET") == Ok("NOTSET");
    let rounds_down = call.flag("ceil_mode", false) == Ok(false);
    let spatial = elements.ndim().checked_sub(2)?;
    let pads = call.attr_ints("pads").ok()?;
    let mut pads = pads.unwrap_or_else(|| vec![0; 2 * spatial]);
    let (mut inside, mut is_around) = (elements.view(), false);
    (pads_alone && rounds_down && pads.len() == 2 * spatial).then_some(())?;
    for axis in 0..spatial {
        let along = Axis(axis + 2);
        let is_border: Vec<bool> = inside
            .axis_iter(along)
            .map(|place| place.iter().all(|&element| element == lowest))
            .collect();
        let extent = is_border.len();
        let first = is_border.iter().take_while(|&&is_border| is_border).count();
        let rest = is_border[first..].iter().rev();
        let last = rest.take_while(|&&is_border| is_border).count();
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

/// The inverse of the number of places in each window. Padding is counted only if
/// `count_include_pad` is set.
fn parts(call: &Call, windows: &Windows, after: &[i64]) -> Result<Vec<u32>, NotEvaluated> {
    let counted = match call.flag("count_include_pad", false)? {
        false => windows.clone(),
        true => Windows {
            input: (0..windows.input.len())
                .map(|axis| windows.input[axis] + (windows.before[axis] + after[axis]) as usize)
                .collect(),
            before: vec![0; windows.input.len()],
            ..windows.clone()
        },
    };
    let mut counts = vec![0_u32; count(&windows.output)];
    for meets in counted.meets() {
        for (count, place) in counts.iter_mut().zip(meets) {
            *count += u32::from(place.is_some());
        }
    }
    field::invert(&mut counts).ok_or(NotEvaluated::Uncovered)?;
    Ok(counts)
}

/// AveragePool.
pub(super) fn average(call: &Call) -> OpResult {
    let values = call.field(0)?;
    let &[samples, channels, ref input @ ..] = values.shape() else {
        return Err(NotEvaluated::Uncovered);
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
        .room(&[taps.ok_or(NotEvaluated::Beyond)?, places])?;
    call.allowance
        .products(&[count(&shape), taps.ok_or(NotEvaluated::Beyond)?])?;
    let parts = parts(call, &windows, &after)?;
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
        .zip(parts.iter().cycle())
        .map(|(&sum, &part)| field::mul(field::reduce(sum), part));
    Ok(vec![FieldValue::field(
        ArrayD::from_shape_vec(shape, means.collect()).map_err(|_| NotEvaluated::Uncovered)?,
    )])
}
