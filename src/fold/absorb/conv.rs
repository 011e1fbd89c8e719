//! Conv and ConvTranspose of any number of spatial axes, grouped and depthwise.
//!
//! `Conv(s·x + t) = Conv'(x) + Conv(t)`. Without a border, `Conv(t)` is one number for each output
//! channel, and joins the bias. With one it depends on the place, for the border holds zeros where
//! `t` would be: then an Add behind holds it, place by place, if the extents are numbers.

use ndarray::{Array2, ArrayD, Axis, IxDyn};

use super::{Linear, Slots, only_along};
use crate::affine::Affine;
use crate::fold::{At, Rule, Side, Step};
use crate::graph::facts::extent;
use crate::graph::movement::LARGEST;
use crate::refusal::Reason;

/// Conv: weight `[O, C/group, k...]`.
pub struct Conv;

/// ConvTranspose: weight `[C, O/group, k...]`.
pub struct ConvTranspose;

macro_rules! rule {
    ($name:ident, $op:literal) => {
        impl Rule for $name {
            fn ops(&self) -> &'static [&'static str] {
                &[$op]
            }

            fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
                let affine = at.only(inputs, 0)?;
                let geometry = check(at)?;
                only_along(&Affine::scale(affine.scale.clone()), &[1])?;
                let by_place = !affine.has_no_shift() && !geometry.is_plain(&affine.shift);
                if !affine.has_no_shift() {
                    geometry.room(&affine.shift)?;
                }
                Ok(Step { by_place, ..Step::taken(Side::Operand(0), affine.clone()) })
            }

            fn backward(&self, at: &At, _: usize, affine: &Affine) -> Result<Step, Reason> {
                check(at)?;
                only_along(&Affine::scale(affine.scale.clone()), &[1])?;
                Ok(Step::taken(Side::Result, affine.clone()))
            }
        }
    };
}

rule!(Conv, "Conv");
rule!(ConvTranspose, "ConvTranspose");

fn check(at: &At) -> Result<Geometry, Reason> {
    at.weight(1)?;
    if at.graph.input(at.node, 2).is_some() {
        at.weight(2)?;
    }
    Geometry::of(at)
}

impl Linear for Conv {
    fn slots(&self, _: &At) -> Result<Slots, Reason> {
        Ok(Slots { weight: Some(1), bias: Some(2) })
    }

    fn scaled(
        &self,
        at: &At,
        weight: &ArrayD<f64>,
        side: Side,
        scale: &ArrayD<f64>,
    ) -> Result<ArrayD<f64>, Reason> {
        let group = at.attr("group", 1)?.max(1) as usize;
        match side {
            Side::Operand(_) => along_grouped(weight, scale, group, 0, 1),
            _ => along(weight, scale, 0),
        }
    }

    fn contracted(&self, at: &At) -> Result<Vec<usize>, Reason> {
        Ok((1..at.extents(1)?.len()).collect())
    }

    fn image(
        &self,
        at: &At,
        weight: Option<&ArrayD<f64>>,
        _: usize,
        shift: &ArrayD<f64>,
    ) -> Result<ArrayD<f64>, Reason> {
        let weight = weight.ok_or(Reason::NotConstant)?;
        let geometry = Geometry::of(at)?;
        geometry.image(&geometry.taps(weight, true)?, shift)
    }

    fn read_bias(&self, at: &At, bias: ArrayD<f64>) -> Result<ArrayD<f64>, Reason> {
        per_channel(at, bias)
    }

    fn write_bias(&self, at: &At, bias: &ArrayD<f64>) -> Option<ArrayD<f64>> {
        as_vector(bias, at.extents(1).ok()?[0])
    }
}

impl Linear for ConvTranspose {
    fn slots(&self, _: &At) -> Result<Slots, Reason> {
        Ok(Slots { weight: Some(1), bias: Some(2) })
    }

    fn scaled(
        &self,
        at: &At,
        weight: &ArrayD<f64>,
        side: Side,
        scale: &ArrayD<f64>,
    ) -> Result<ArrayD<f64>, Reason> {
        let group = at.attr("group", 1)?.max(1) as usize;
        match side {
            Side::Operand(_) => along(weight, scale, 0),
            _ => along_grouped(weight, scale, group, 0, 1),
        }
    }

    /// The channels too, unless they are in groups: then each result sums over some of them only.
    fn contracted(&self, at: &At) -> Result<Vec<usize>, Reason> {
        let channels = (at.attr("group", 1)? == 1).then_some(0);
        Ok(channels.into_iter().chain(2..at.extents(1)?.len()).collect())
    }

    fn image(
        &self,
        at: &At,
        weight: Option<&ArrayD<f64>>,
        _: usize,
        shift: &ArrayD<f64>,
    ) -> Result<ArrayD<f64>, Reason> {
        let weight = weight.ok_or(Reason::NotConstant)?;
        let geometry = Geometry::of(at)?;
        geometry.image(&geometry.taps(weight, false)?, shift)
    }

    fn read_bias(&self, at: &At, bias: ArrayD<f64>) -> Result<ArrayD<f64>, Reason> {
        per_channel(at, bias)
    }

    fn write_bias(&self, at: &At, bias: &ArrayD<f64>) -> Option<ArrayD<f64>> {
        let group = at.attr("group", 1).ok()?.max(1) as usize;
        as_vector(bias, at.extents(1).ok()?[1] * group)
    }
}

/// `[O]` as `[1, O, 1...]`.
fn per_channel(at: &At, bias: ArrayD<f64>) -> Result<ArrayD<f64>, Reason> {
    let mut shape = vec![1; at.rank(0)?];
    shape[1] = bias.len();
    bias.into_shape_with_order(shape).map_err(|_| Reason::UnknownShape)
}

/// `[1, O, 1...]` as `[O]`; `None` where the bias depends on the place.
fn as_vector(bias: &ArrayD<f64>, channels: usize) -> Option<ArrayD<f64>> {
    let uniform = bias.shape().iter().enumerate().all(|(axis, &n)| axis == 1 || n == 1);
    let vector = uniform.then(|| bias.iter().copied().collect::<Vec<_>>())?;
    ArrayD::from_shape_vec(vec![vector.len()], vector).ok()?.broadcast(vec![channels]).map(|v| v.to_owned())
}

/// Multiplies along one axis of the weight by the channels of a `[1, C, 1...]` scale.
fn along(weight: &ArrayD<f64>, scale: &ArrayD<f64>, axis: usize) -> Result<ArrayD<f64>, Reason> {
    let mut shape = vec![1; weight.ndim()];
    shape[axis] = scale.len();
    let scaled = weight * &scale.to_shape(shape).map_err(|_| Reason::WrongAxis)?;
    if scaled.shape() == weight.shape() { Ok(scaled) } else { Err(Reason::WrongAxis) }
}

/// The same where the axis `inner` counts channels within a group, and the groups lie along `outer`.
fn along_grouped(
    weight: &ArrayD<f64>,
    scale: &ArrayD<f64>,
    group: usize,
    outer: usize,
    inner: usize,
) -> Result<ArrayD<f64>, Reason> {
    let (rows, columns) = (weight.shape()[outer], weight.shape()[inner]);
    if scale.len() == 1 {
        return along(weight, scale, inner);
    }
    if rows % group != 0 || scale.len() != columns * group {
        return Err(Reason::WrongAxis);
    }
    let scale: Vec<f64> = scale.iter().copied().collect();
    let mut scaled = weight.clone();
    for (row, mut lane) in scaled.axis_iter_mut(Axis(outer)).enumerate() {
        let first = row / (rows / group) * columns;
        // Without `outer` the axis `inner` is one place further left.
        for (column, mut part) in lane.axis_iter_mut(Axis(inner - 1)).enumerate() {
            part *= scale[first + column];
        }
    }
    Ok(scaled)
}

/// Which input place each tap of the kernel meets for each output place.
struct Geometry {
    transposed: bool,
    group: usize,
    /// How many channels come in, and how many go out.
    channels: [usize; 2],
    kernel: Vec<usize>,
    strides: Vec<i64>,
    dilations: Vec<i64>,
    /// Zeros before the first place, along each spatial axis; `None` where extents decide and are unknown.
    before: Option<Vec<i64>>,
    padded: bool,
    input: Vec<Option<usize>>,
    output: Vec<Option<usize>>,
}

impl Geometry {
    fn of(at: &At) -> Result<Self, Reason> {
        let transposed = at.proto().op_type() == "ConvTranspose";
        let known = &[
            "auto_pad",
            "dilations",
            "group",
            "kernel_shape",
            "pads",
            "strides",
            "output_padding",
            "output_shape",
        ];
        at.only_attributes(if transposed { known } else { &known[..6] })?;
        let weight = at.extents(1)?;
        if weight.len() < 3 {
            return Err(Reason::UnknownShape);
        }
        let kernel = weight[2..].to_vec();
        let spatial = kernel.len();
        let list = |name: &str| -> Result<Vec<i64>, Reason> {
            let list = at.attr_ints(name)?.unwrap_or_else(|| vec![1; spatial]);
            if list.len() == spatial { Ok(list) } else { Err(Reason::Attribute(name.into())) }
        };
        let (strides, dilations) = (list("strides")?, list("dilations")?);
        let extents = |shape: crate::graph::facts::Shape| -> Result<Vec<Option<usize>>, Reason> {
            if shape.len() != spatial + 2 {
                return Err(Reason::UnknownShape);
            }
            Ok(shape[2..].iter().map(extent).collect())
        };
        let (input, output) = (extents(at.shape(0)?)?, extents(at.output_shape(0)?)?);
        let auto = at.attr_text("auto_pad", "NOTSET")?;
        let pads = at.attr_ints("pads")?.unwrap_or_else(|| vec![0; 2 * spatial]);
        let explicit = at.attr_ints("output_shape")?.is_some();
        let before = match auto {
            "VALID" => Some(vec![0; spatial]),
            "NOTSET" if pads.len() == 2 * spatial && !explicit => Some(pads[..spatial].to_vec()),
            "SAME_UPPER" | "SAME_LOWER" if !transposed => {
                let total = |axis: usize| {
                    let (input, output) = (input[axis]? as i64, output[axis]? as i64);
                    let reach = (kernel[axis] as i64 - 1) * dilations[axis] + 1;
                    Some(((output - 1) * strides[axis] + reach - input).max(0))
                };
                let half = |total: i64| if auto == "SAME_UPPER" { total / 2 } else { (total + 1) / 2 };
                (0..spatial).map(|axis| total(axis).map(half)).collect()
            }
            _ => None,
        };
        let padded = match auto {
            "VALID" => false,
            "NOTSET" => pads.iter().any(|&pad| pad != 0),
            _ => true,
        };
        let group = at.attr("group", 1)?.max(1) as usize;
        let mut channels = [weight[1] * group, weight[0]];
        if transposed {
            channels = [weight[0], weight[1] * group];
        }
        Ok(Geometry {
            transposed,
            group,
            channels,
            kernel,
            strides,
            dilations,
            before,
            padded,
            input,
            output,
        })
    }

    /// Whether the image of this shift is the same at every place.
    fn is_plain(&self, shift: &ArrayD<f64>) -> bool {
        let uniform = shift.shape()[2..].iter().all(|&n| n == 1);
        uniform && !self.padded && !self.transposed
    }

    /// The spatial extents of input and output, where all are numbers.
    fn places(&self) -> Result<(Vec<usize>, Vec<usize>), Reason> {
        let numbers = |list: &[Option<usize>]| list.iter().copied().collect::<Option<Vec<_>>>();
        match (numbers(&self.input), numbers(&self.output), &self.before) {
            (Some(input), Some(output), Some(_)) => Ok((input, output)),
            _ => Err(Reason::Padding),
        }
    }

    /// The spatial extents over which the image of a shift is computed, of input and output.
    fn room(&self, shift: &ArrayD<f64>) -> Result<(Vec<usize>, Vec<usize>), Reason> {
        // One place stands for all where nothing depends on it.
        let ones = || vec![1; self.kernel.len()];
        let (input, output) = if self.is_plain(shift) { (ones(), ones()) } else { self.places()? };
        let places = [&input, &output].map(|extents| extents.iter().product::<usize>());
        let size = self.channels[0].saturating_mul(places[0]).saturating_add(self.channels[1] * places[1]);
        match shift.shape()[0] {
            1 if size <= LARGEST => Ok((input, output)),
            1 => Err(Reason::TooLarge(size)),
            _ => Err(Reason::WrongAxis),
        }
    }

    /// The weight as one matrix `[O/group, C/group]` for each group and tap.
    fn taps(&self, weight: &ArrayD<f64>, output_first: bool) -> Result<Vec<Vec<Array2<f64>>>, Reason> {
        let count: usize = self.kernel.iter().product();
        let flat = [weight.shape()[0], weight.shape()[1], count];
        let flat = weight.to_shape(flat).map_err(|_| Reason::UnknownShape)?;
        let rows = flat.shape()[0] / self.group;
        let of_group = |group: usize| {
            let part = flat.slice_axis(Axis(0), (group * rows..(group + 1) * rows).into());
            (0..count)
                .map(|tap| {
                    let matrix = part.index_axis(Axis(2), tap).to_owned();
                    if output_first { matrix } else { matrix.reversed_axes() }
                })
                .collect()
        };
        Ok((0..self.group).map(of_group).collect())
    }

    fn image(&self, taps: &[Vec<Array2<f64>>], shift: &ArrayD<f64>) -> Result<ArrayD<f64>, Reason> {
        let plain = self.is_plain(shift);
        let (input, output) = self.room(shift)?;
        let (inner, outer) = (taps[0][0].ncols(), taps[0][0].nrows());
        let (from, to): (usize, usize) = (input.iter().product(), output.iter().product());
        let wide = [&[1, inner * self.group][..], &input].concat();
        let shift = shift.broadcast(IxDyn(&wide)).ok_or(Reason::WrongAxis)?;
        let shift = shift.to_shape((inner * self.group, from)).map_err(|_| Reason::UnknownShape)?;
        let mut image = Array2::<f64>::zeros((outer * self.group, to));
        for (tap, offsets) in indices(&self.kernel).enumerate() {
            // (input place, output place) pairs that this tap joins.
            let pairs: Vec<(usize, usize)> = if plain {
                vec![(0, 0)]
            } else if self.transposed {
                let join =
                    |(place, at): (usize, Vec<usize>)| Some((place, self.target(&at, &offsets, &output)?));
                indices(&input).enumerate().filter_map(join).collect()
            } else {
                let join =
                    |(place, at): (usize, Vec<usize>)| Some((self.source(&at, &offsets, &input)?, place));
                indices(&output).enumerate().filter_map(join).collect()
            };
            let sources: Vec<usize> = pairs.iter().map(|pair| pair.0).collect();
            for (group, matrices) in taps.iter().enumerate() {
                let channels = shift.slice_axis(Axis(0), (group * inner..(group + 1) * inner).into());
                let values = matrices[tap].dot(&channels.select(Axis(1), &sources));
                let mut rows = image.slice_axis_mut(Axis(0), (group * outer..(group + 1) * outer).into());
                for (column, &(_, place)) in values.axis_iter(Axis(1)).zip(&pairs) {
                    let mut cell = rows.index_axis_mut(Axis(1), place);
                    cell += &column;
                }
            }
        }
        let shape = [&[1, outer * self.group][..], &output].concat();
        image.into_dyn().into_shape_with_order(shape).map_err(|_| Reason::UnknownShape)
    }

    /// The input place that a tap of a convolution meets, flat; `None` in the border.
    fn source(&self, output: &[usize], tap: &[usize], input: &[usize]) -> Option<usize> {
        let before = self.before.as_ref()?;
        (0..input.len()).try_fold(0, |flat, axis| {
            let place = output[axis] as i64 * self.strides[axis] + tap[axis] as i64 * self.dilations[axis]
                - before[axis];
            let place = usize::try_from(place).ok().filter(|&place| place < input[axis])?;
            Some(flat * input[axis] + place)
        })
    }

    /// The output place to which a tap of a transposed convolution adds, flat.
    fn target(&self, input: &[usize], tap: &[usize], output: &[usize]) -> Option<usize> {
        let before = self.before.as_ref()?;
        (0..output.len()).try_fold(0, |flat, axis| {
            let place = input[axis] as i64 * self.strides[axis] + tap[axis] as i64 * self.dilations[axis]
                - before[axis];
            let place = usize::try_from(place).ok().filter(|&place| place < output[axis])?;
            Some(flat * output[axis] + place)
        })
    }
}

/// All index tuples below `extents`, row-major.
fn indices(extents: &[usize]) -> impl Iterator<Item = Vec<usize>> + '_ {
    let count: usize = extents.iter().product();
    (0..count).map(move |mut flat| {
        let mut index = vec![0; extents.len()];
        for (slot, &extent) in index.iter_mut().zip(extents).rev() {
            *slot = flat % extent;
            flat /= extent;
        }
        index
    })
}
