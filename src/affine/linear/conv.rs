//! Conv and ConvTranspose of any number of spatial axes, grouped and depthwise.
//!
//! `Conv(s·x + t) = Conv'(x) + Conv(t)`. Without a border, `Conv(t)` is one number for each output
//! channel, and joins the bias. With one it depends on the place, for the border holds zeros where
//! `t` would be: then an Add behind holds it, place by place, if the extents are numbers.
//!
//! Where every result depends on one place, as where a kernel of one mixes tokens that lie along
//! the channels, a scale of the places commutes: `W·(x·diag(s)) = (W·x)·diag(s)`. An Add holds the
//! summands then: `(W·x + b)·diag(s) + t` is `W·(x·diag(s)) + (b·diag(s) + t)`, and
//! `W·(x·diag(s) + t) + b` is `(W·x + (b/s + W·(t/s)))·diag(s)`.

use crate::affine::Affine;
use crate::affine::fold::{At, Rule, Side, Step};
use crate::affine::linear::{Linear, Slots, known_attributes, only_along};
use crate::analysis::broadcast::LARGEST;
use crate::recipe::{Numbers, Recipe, Windows};
use crate::refusal::Reason;
use crate::shape::facts::extent;

/// Conv: weight `[O, C/group, k...]`.
pub struct Conv;

/// ConvTranspose: weight `[C, O/group, k...]`.
pub struct ConvTranspose;

impl Rule for Conv {
    fn ops(&self) -> &'static [&'static str] {
        &["Conv"]
    }

    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        let affine = at.only(inputs, 0)?;
        forward(at, inputs).or_else(|reason| {
            let places = passes_places(at, affine).map_err(|_| reason.clone())?;
            let scale = Affine::scale(affine.scale.clone());
            if affine.has_no_shift() {
                // A scale alone would leave an Add of the bias in its place.
                let has_bias = at.graph.input(at.node, 2).is_some();
                return if has_bias {
                    Err(reason)
                } else {
                    Ok(Step::pass_on(0, scale))
                };
            }
            let inverse = scale.inverse().ok_or(reason)?;
            let shift = &affine.shift * &inverse.scale;
            Geometry::from_node(at)?.room(&shift)?;
            let folds = vec![
                (Side::Result, inverse),
                (Side::Operand(0), Affine::shift(shift)),
            ];
            adds_by_place(
                at,
                places,
                Step {
                    folds,
                    ..Step::pass_on(0, scale)
                },
            )
        })
    }

    fn backward(&self, at: &At, _: usize, affine: &Affine) -> Result<Step, Reason> {
        backward(at, affine).or_else(|reason| {
            let places = passes_places(at, affine).map_err(|_| reason)?;
            let step = Step::pass_on(0, Affine::scale(affine.scale.clone()));
            if affine.has_no_shift() && at.graph.input(at.node, 2).is_none() {
                return Ok(step);
            }
            adds_by_place(
                at,
                places,
                Step {
                    folds: vec![(Side::Result, affine.clone())],
                    ..step
                },
            )
        })
    }
}

impl Rule for ConvTranspose {
    fn ops(&self) -> &'static [&'static str] {
        &["ConvTranspose"]
    }

    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        forward(at, inputs)
    }

    fn backward(&self, at: &At, _: usize, affine: &Affine) -> Result<Step, Reason> {
        backward(at, affine)
    }
}

/// How many places a scale of them has, which passes an operator that makes every result of one place.
fn passes_places(at: &At, affine: &Affine) -> Result<usize, Reason> {
    let geometry = check(at)?;
    let places: Vec<usize> = (2..affine.rank()).collect();
    only_along(&Affine::scale(affine.scale.clone()), &places)?;
    if !geometry.reads_one_place() || !is_by_places(&affine.scale) {
        return Err(Reason::WrongAxis);
    }
    Ok(affine
        .shift
        .shape()
        .iter()
        .zip(affine.scale.shape())
        .skip(2)
        .map(|(&t, &s)| t.max(s))
        .product())
}

/// A step that leaves another number to add for each channel and place.
fn adds_by_place(at: &At, places: usize, step: Step) -> Result<Step, Reason> {
    match at.extents(1)?[0].saturating_mul(places) {
        size if size > LARGEST => Err(Reason::TooLarge(size)),
        _ => Ok(Step {
            by_place: true,
            ..step
        }),
    }
}

/// Whether a scale varies over places, and so is no scale of channels.
fn is_by_places(scale: &Numbers) -> bool {
    scale.shape().iter().skip(2).any(|&extent| extent != 1)
}

/// The step backward, common to all convolutions.
fn backward(at: &At, affine: &Affine) -> Result<Step, Reason> {
    check(at)?;
    only_along(&Affine::scale(affine.scale.clone()), &[1])?;
    Ok(Step::taken(Side::Result, affine.clone()))
}

/// The step forward, common to all convolutions.
pub(crate) fn forward(at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
    let affine = at.only(inputs, 0)?;
    let geometry = check(at)?;
    only_along(&Affine::scale(affine.scale.clone()), &[1])?;
    let by_place = !affine.has_no_shift() && !geometry.is_plain(&affine.shift);
    if !affine.has_no_shift() {
        geometry.room(&affine.shift)?;
    }
    Ok(Step {
        by_place,
        ..Step::taken(Side::Operand(0), affine.clone())
    })
}

fn check(at: &At) -> Result<Geometry, Reason> {
    at.weight(1)?;
    if at.graph.input(at.node, 2).is_some() {
        at.weight(2)?;
    }
    Geometry::from_node(at)
}

impl Linear for Conv {
    fn slots(&self, _: &At) -> Result<Slots, Reason> {
        Ok(Slots {
            weight: Some(1),
            bias: Some(2),
        })
    }

    fn scaled(
        &self,
        at: &At,
        weight: &Recipe,
        side: Side,
        scale: &Numbers,
    ) -> Result<Recipe, Reason> {
        match side {
            Side::Operand(_) => along_grouped(at, weight, scale),
            // It propagates to the input.
            _ if is_by_places(scale) => Ok(weight.clone()),
            _ => along(weight, scale, 0),
        }
    }

    fn contracted(&self, at: &At) -> Result<Vec<usize>, Reason> {
        Ok((1..at.extents(1)?.len()).collect())
    }

    fn image(
        &self,
        at: &At,
        weight: Option<&Recipe>,
        _: usize,
        shift: &Numbers,
    ) -> Result<Recipe, Reason> {
        Geometry::from_node(at)?.image(weight.ok_or(Reason::NotConstant)?, shift)
    }

    fn read_bias(&self, at: &At, bias: Recipe) -> Result<Recipe, Reason> {
        per_channel(at, &bias)
    }

    fn write_bias(&self, at: &At, bias: &Recipe) -> Option<Recipe> {
        as_vector(bias, at.extents(1).ok()?[0])
    }
}

impl Linear for ConvTranspose {
    fn slots(&self, _: &At) -> Result<Slots, Reason> {
        Ok(Slots {
            weight: Some(1),
            bias: Some(2),
        })
    }

    fn scaled(
        &self,
        at: &At,
        weight: &Recipe,
        side: Side,
        scale: &Numbers,
    ) -> Result<Recipe, Reason> {
        match side {
            Side::Operand(_) => along(weight, scale, 0),
            _ => along_grouped(at, weight, scale),
        }
    }

    /// The channels too, unless they are in groups: then each result sums over some of them only.
    fn contracted(&self, at: &At) -> Result<Vec<usize>, Reason> {
        let channels = (at.attr("group", 1)? == 1).then_some(0);
        Ok(channels
            .into_iter()
            .chain(2..at.extents(1)?.len())
            .collect())
    }

    fn image(
        &self,
        at: &At,
        weight: Option<&Recipe>,
        _: usize,
        shift: &Numbers,
    ) -> Result<Recipe, Reason> {
        Geometry::from_node(at)?.image(weight.ok_or(Reason::NotConstant)?, shift)
    }

    fn read_bias(&self, at: &At, bias: Recipe) -> Result<Recipe, Reason> {
        per_channel(at, &bias)
    }

    fn write_bias(&self, at: &At, bias: &Recipe) -> Option<Recipe> {
        as_vector(bias, at.extents(1).ok()?[1].checked_mul(groups(at).ok()?)?)
    }
}

fn groups(at: &At) -> Result<usize, Reason> {
    let groups = usize::try_from(at.attr("group", 1)?)
        .ok()
        .filter(|&groups| groups > 0);
    groups.ok_or_else(|| Reason::Attribute("group".into()))
}

/// `[O]` as `[1, O, 1...]`.
pub(crate) fn per_channel(at: &At, bias: &Recipe) -> Result<Recipe, Reason> {
    let mut shape = vec![1; at.rank(0)?];
    shape[1] = bias.len();
    bias.reshape(&shape).ok_or(Reason::UnknownShape)
}

/// `[1, O, 1...]` as `[O]`; `None` where the bias depends on the place.
pub(crate) fn as_vector(bias: &Recipe, channels: usize) -> Option<Recipe> {
    let uniform = bias
        .shape()
        .iter()
        .enumerate()
        .all(|(axis, &n)| axis == 1 || n == 1);
    bias.reshape(&[bias.len()])
        .filter(|_| uniform)?
        .expand(&[channels])
}

/// Multiplies along one axis of the weight by the channels of a `[1, C, 1...]` scale.
pub(crate) fn along(weight: &Recipe, scale: &Numbers, axis: usize) -> Result<Recipe, Reason> {
    let mut shape = vec![1; weight.rank()];
    shape[axis] = scale.len();
    let scaled = scale
        .recipe()
        .reshape(&shape)
        .and_then(|scale| weight.mul(&scale));
    scaled
        .filter(|scaled| scaled.shape() == weight.shape())
        .ok_or(Reason::WrongAxis)
}

/// Along axis 1, which counts channels within a group; the groups lie along axis 0.
pub(crate) fn along_grouped(at: &At, weight: &Recipe, scale: &Numbers) -> Result<Recipe, Reason> {
    let (group, shape) = (groups(at)?, weight.shape());
    if scale.len() == 1 || group == 1 {
        return along(weight, scale, 1);
    }
    if shape[0] % group != 0 || Some(scale.len()) != shape[1].checked_mul(group) {
        return Err(Reason::WrongAxis);
    }
    let apart = [&[group, shape[0] / group], &shape[1..]].concat();
    let mut by_group = vec![1; apart.len()];
    (by_group[0], by_group[2]) = (group, shape[1]);
    let scaled = weight
        .reshape(&apart)
        .zip(scale.recipe().reshape(&by_group));
    let scaled = scaled.and_then(|(weight, scale)| weight.mul(&scale)?.reshape(shape));
    scaled.ok_or(Reason::WrongAxis)
}

/// Which input place each tap of the kernel meets for each output place.
struct Geometry {
    transposed: bool,
    group: usize,
    /// The numbers of input and output channels.
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
    fn from_node(at: &At) -> Result<Self, Reason> {
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
        at.only_attributes(&known_attributes(
            at,
            if transposed { known } else { &known[..6] },
        ))?;
        let weight = at.extents(1)?;
        if weight.len() < 3 {
            return Err(Reason::UnknownShape);
        }
        let kernel = weight[2..].to_vec();
        let spatial = kernel.len();
        let list = |name: &str| -> Result<Vec<i64>, Reason> {
            let list = at.attr_ints(name)?.unwrap_or_else(|| vec![1; spatial]);
            let fits = list.len() == spatial && list.iter().all(|&number| number > 0);
            if fits {
                Ok(list)
            } else {
                Err(Reason::Attribute(name.into()))
            }
        };
        let (strides, dilations) = (list("strides")?, list("dilations")?);
        let extents = |shape: crate::shape::facts::Shape| -> Result<Vec<Option<usize>>, Reason> {
            if shape.len() != spatial + 2 {
                return Err(Reason::UnknownShape);
            }
            Ok(shape[2..].iter().map(extent).collect())
        };
        let (input, output) = (extents(at.shape(0)?)?, extents(at.output_shape(0)?)?);
        let auto = at.attr_text("auto_pad", "NOTSET")?;
        let pads = at
            .attr_ints("pads")?
            .unwrap_or_else(|| vec![0; 2 * spatial]);
        let explicit = at.attr_ints("output_shape")?.is_some();
        // How many places `SAME` puts around the image. A kernel of one place reaches beyond none.
        let same = |axis: usize| {
            if kernel[axis] == 1 {
                return Some(0);
            }
            let (input, output) = (input[axis]? as i64, output[axis]? as i64);
            let reach = (kernel[axis] as i64 - 1)
                .checked_mul(dilations[axis])?
                .checked_add(1)?;
            let read = (output - 1)
                .checked_mul(strides[axis])?
                .checked_add(reach)?;
            Some(read.saturating_sub(input).max(0))
        };
        let half = |total: i64| {
            if auto == "SAME_UPPER" {
                total / 2
            } else {
                (total + 1) / 2
            }
        };
        let (before, padded) = match auto {
            "VALID" => (Some(vec![0; spatial]), false),
            "NOTSET" => {
                let is_told = pads.len() == 2 * spatial && !explicit;
                (
                    is_told.then(|| pads[..spatial].to_vec()),
                    pads.iter().any(|&pad| pad != 0),
                )
            }
            "SAME_UPPER" | "SAME_LOWER" if !transposed => {
                let totals: Option<Vec<i64>> = (0..spatial).map(same).collect();
                let padded = totals
                    .as_ref()
                    .is_none_or(|totals| totals.iter().any(|&total| total != 0));
                (
                    totals.map(|totals| totals.into_iter().map(half).collect()),
                    padded,
                )
            }
            _ => (None, true),
        };
        let group = groups(at)?;
        let wide = weight[1].checked_mul(group).ok_or(Reason::UnknownShape)?;
        let channels = if transposed {
            [weight[0], wide]
        } else {
            [wide, weight[0]]
        };
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

    /// Whether each result is made of the one place where it is itself.
    fn reads_one_place(&self) -> bool {
        let is_one =
            self.kernel.iter().all(|&taps| taps == 1) && self.strides.iter().all(|&step| step == 1);
        is_one && !self.padded && !self.transposed
    }

    /// The places that stand for all in the image of this shift: those of the shift itself, where each is made of one of
    /// them; `None` where it depends on the border, or on what lies around.
    fn alike(&self, shift: &Numbers) -> Option<Vec<usize>> {
        let places = &shift.shape()[2..];
        let is_plain = places.iter().all(|&count| count == 1) && !self.padded && !self.transposed;
        (is_plain || self.reads_one_place()).then(|| places.to_vec())
    }

    /// Whether the image of this shift is the same at every place.
    fn is_plain(&self, shift: &Numbers) -> bool {
        self.alike(shift)
            .is_some_and(|places| places.iter().all(|&count| count == 1))
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
    fn room(&self, shift: &Numbers) -> Result<(Vec<usize>, Vec<usize>), Reason> {
        let (input, output) = match self.alike(shift) {
            Some(places) => (places.clone(), places),
            None => self.places()?,
        };
        let places =
            [&input, &output].map(|extents| extents.iter().copied().fold(1, usize::saturating_mul));
        let [taken, made] = [0, 1].map(|side| self.channels[side].saturating_mul(places[side]));
        let size = taken.saturating_add(made);
        match shift.shape()[0] {
            1 if size <= LARGEST => Ok((input, output)),
            1 => Err(Reason::TooLarge(size)),
            _ => Err(Reason::WrongAxis),
        }
    }

    /// `L(t)`: where nothing lies around a place, one product with the sum over the taps.
    fn image(&self, weight: &Recipe, shift: &Numbers) -> Result<Recipe, Reason> {
        let is_alike = self.alike(shift).is_some();
        let (input, output) = self.room(shift)?;
        let (group, taps) = (self.group, self.kernel.iter().product());
        let [inner, outer] = self.channels.map(|channels| channels / group);
        let build = || {
            let taken = match self.transposed {
                true => weight
                    .reshape(&[group, inner, outer, taps])?
                    .transpose(&[0, 2, 1, 3])?,
                false => weight.reshape(&[group, outer, inner, taps])?,
            };
            let values = shift
                .recipe()
                .expand(&[&[1, inner * group][..], &input].concat())?;
            let values = values.reshape(&[group, inner, input.iter().product()])?;
            let image = match is_alike {
                true => taken
                    .sum(3)?
                    .reshape(&[group, outer, inner])?
                    .product(&values)?,
                false => taken.conv(&values, self.windows(input, &output)?)?,
            };
            image.reshape(&[&[1, outer * group][..], &output].concat())
        };
        build().ok_or(Reason::WrongAxis)
    }

    fn windows(&self, input: Vec<usize>, output: &[usize]) -> Option<Windows> {
        Some(Windows {
            transposed: self.transposed,
            kernel: self.kernel.clone(),
            strides: self.strides.clone(),
            dilations: self.dilations.clone(),
            before: self.before.clone()?,
            input,
            output: output.to_vec(),
        })
    }
}
