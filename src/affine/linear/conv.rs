//! Conv and ConvTranspose with any number of spatial axes, grouped and depthwise.
//!
//! `Conv(s·x + t) = Conv'(x) + Conv(t)`. Without padding, `Conv(t)` is one scalar for each output
//! channel and is added to the bias. With padding, it differs from place to place, because the
//! border holds zeros instead of `t`. Then an Add after the Conv holds `Conv(t)` for each place, if
//! all extents are known.
//!
//! If every result depends on one place only, a scale that varies over places commutes with the
//! operator: `W·(x·diag(s)) = (W·x)·diag(s)`. An example is a kernel of size 1 that mixes tokens,
//! which lie along the channel axis. The bias and the shift then differ from place to place, so an
//! Add holds them: `(W·x + b)·diag(s) + t` is `W·(x·diag(s)) + (b·diag(s) + t)`, and
//! `W·(x·diag(s) + t) + b` is `(W·x + (b/s + W·(t/s)))·diag(s)`.

use crate::affine::Affine;
use crate::affine::linear::geometry::{Geometry, groups};
use crate::affine::linear::{Linear, Slots, dequantized, only_along};
use crate::affine::rule::{At, Rule, Side, Step};
use crate::analysis::broadcast::LARGEST;
use crate::recipe::{Numbers, Recipe};
use crate::refusal::Reason;

/// Conv, with a weight of shape `[O, C/group, k...]`.
pub(crate) struct Conv;

/// ConvTranspose, with a weight of shape `[C, O/group, k...]`.
pub(crate) struct ConvTranspose;

impl Rule for Conv {
    fn ops(&self) -> &'static [&'static str] {
        &["Conv"]
    }

    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        let affine = at.only(inputs, 0)?;
        if at.is_dequantized(1) {
            return into_dequantized_channels(at, affine);
        }
        forward(at, inputs).or_else(|reason| match passes_places(at, affine) {
            Ok(places) => forward_by_place(at, affine, places, reason),
            Err(_) => Err(reason),
        })
    }

    fn backward(&self, at: &At, _: usize, affine: &Affine) -> Result<Step, Reason> {
        if at.is_dequantized(1) {
            Geometry::from_node(at)?;
            only_along(affine, &[1])?;
            return dequantized::backward(at, 1, 0, 2, affine);
        }
        backward(at, affine).or_else(|reason| match passes_places(at, affine) {
            Ok(places) => backward_by_place(at, affine, places),
            Err(_) => Err(reason),
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

/// The forward step of a Conv with a weight that a DequantizeLinear computes. In a depthwise Conv,
/// the scale of an input channel moves to axis 0 of the weight, since that channel belongs to one
/// channel of the result.
fn into_dequantized_channels(at: &At, affine: &Affine) -> Result<Step, Reason> {
    Geometry::from_node(at)?;
    only_along(&Affine::scale(affine.scale.clone()), &[1])?;
    let weight = at.extents(1)?;
    let along = match groups(at)? {
        1 => 1,
        group if group == weight[0] && weight[1] == 1 => 0,
        _ if affine.scale.len() == 1 => 1,
        _ => return Err(Reason::Granularity),
    };
    dequantized::forward(at, 1, along, affine)
}

/// The forward step of a scale that varies over places. A new Add after the node adds the image of
/// the shift and the bias at each place.
///
/// # Errors
/// `reason` if the scale has no inverse, or if only a bias would need the Add. [`Reason::TooLarge`]
/// if the Add is too large.
fn forward_by_place(
    at: &At,
    affine: &Affine,
    places: usize,
    reason: Reason,
) -> Result<Step, Reason> {
    let scale = Affine::scale(affine.scale.clone());
    if affine.has_no_shift() {
        // A bias would have to be divided by the scale of each place, and this would need an Add.
        return match at.graph.input(at.node, 2) {
            Some(_) => Err(reason),
            None => Ok(Step::pass_on(0, scale)),
        };
    }
    let inverse = scale.inverse().ok_or(reason)?;
    let shift = &affine.shift * &inverse.scale;
    Geometry::from_node(at)?.room(&shift)?;
    let step = Step {
        folds: vec![
            (Side::Result, inverse),
            (Side::Operand(0), Affine::shift(shift)),
        ],
        ..Step::pass_on(0, scale)
    };
    adds_by_place(at, places, step)
}

/// The backward step of a scale that varies over places. A new Add after the node adds the scaled
/// bias at each place.
fn backward_by_place(at: &At, affine: &Affine, places: usize) -> Result<Step, Reason> {
    let step = Step::pass_on(0, Affine::scale(affine.scale.clone()));
    if affine.has_no_shift() && at.graph.input(at.node, 2).is_none() {
        return Ok(step);
    }
    let step = Step {
        folds: vec![(Side::Result, affine.clone())],
        ..step
    };
    adds_by_place(at, places, step)
}

/// Checks that each result of the node depends on one place, and that the scale of the affine
/// varies over places only, so that it passes the node. Returns the number of places.
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

/// Marks that a step needs an Add after the node, with one scalar for each channel and place.
/// Refuses an Add that is too large.
fn adds_by_place(at: &At, places: usize, step: Step) -> Result<Step, Reason> {
    match at.extents(1)?[0].saturating_mul(places) {
        size if size > LARGEST => Err(Reason::TooLarge(size)),
        _ => Ok(Step {
            by_place: true,
            ..step
        }),
    }
}

/// Whether a scale varies over places, so that it is not a scale of the channels.
fn is_by_places(scale: &Numbers) -> bool {
    scale.shape().iter().skip(2).any(|&extent| extent != 1)
}

/// The backward step of a convolution for a scale of the channels.
fn backward(at: &At, affine: &Affine) -> Result<Step, Reason> {
    check(at)?;
    only_along(&Affine::scale(affine.scale.clone()), &[1])?;
    Ok(Step::taken(Side::Result, affine.clone()))
}

/// The forward step of a convolution for a scale of the channels.
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
            // A scale that varies over places passes the node, so the weight is unchanged.
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

    /// Returns the axes of the kernel, and the axis of input channels if there is one group. With
    /// several groups, each result sums over some channels only, so the axis of channels is not
    /// contracted.
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

/// Reshapes a bias from `[O]` to `[1, O, 1...]`.
pub(crate) fn per_channel(at: &At, bias: &Recipe) -> Result<Recipe, Reason> {
    let mut shape = vec![1; at.rank(0)?];
    shape[1] = bias.len();
    bias.reshape(&shape).ok_or(Reason::UnknownShape)
}

/// Reshapes a bias from `[1, O, 1...]` to `[O]`. `None` if it depends on the place.
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

/// Multiplies the weight along one of its axes by a scale of shape `[1, C, 1...]`.
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

/// Multiplies the weight by a scale of the channels. Axis 1 of the weight has the channels of one
/// group, and the groups follow each other along axis 0.
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
