//! Operators that move elements, or add them up, one by one: a scale passes that is constant over
//! all source places.
//!
//! DepthToSpace and SpaceToDepth move between all axes, and each place of a block has channels of its own in the depth:
//! what differs there along the channels alone is repeated for each. GatherElements takes along one axis, CumSum adds
//! along one. A triangle leaves zeros, which no shift has reached.

use crate::affine::Affine;
use crate::affine::fold::{At, Rule, Step};
use crate::ir::axes::axis;
use crate::recipe::Numbers;
use crate::refusal::Reason;
use crate::shape::facts::same;

/// Operators that rearrange elements.
pub struct Rearrange;

impl Rule for Rearrange {
    fn ops(&self) -> &'static [&'static str] {
        &[
            "CumSum",
            "DepthToSpace",
            "GatherElements",
            "SpaceToDepth",
            "Trilu",
        ]
    }

    fn is_scale_transparent(&self) -> bool {
        true
    }

    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        let affine = at.only(inputs, 0)?;
        let passed = if is_depth(at) {
            in_depth(at, affine, true)?
        } else {
            affine.clone()
        };
        check(at, &passed)?;
        Ok(Step::pass_on(0, passed))
    }

    fn backward(&self, at: &At, _: usize, affine: &Affine) -> Result<Step, Reason> {
        let passed = if is_depth(at) {
            in_depth(at, affine, false)?
        } else {
            affine.clone()
        };
        check(at, &passed)?;
        Ok(Step::pass_on(0, passed))
    }
}

fn is_depth(at: &At) -> bool {
    matches!(at.proto().op_type(), "DepthToSpace" | "SpaceToDepth")
}

/// An affine of the channels on the other side of a DepthToSpace or SpaceToDepth.
fn in_depth(at: &At, affine: &Affine, forward: bool) -> Result<Affine, Reason> {
    if affine.rank() < 2 || affine.is_uniform_along(1) {
        return Ok(affine.clone());
    }
    let spreads = at.proto().op_type() == "DepthToSpace";
    let by_place = match at.attr_text("mode", "DCR")? {
        "DCR" => true,
        "CRD" if spreads => false,
        _ => return Err(Reason::Attribute("mode".into())),
    };
    let (from, to) = (at.places(0, 1)?, at.output_extent(0, 1)?);
    let (deep, channels) = if spreads { (from, to) } else { (to, from) };
    let blocks = Blocks::new(deep, channels, by_place).ok_or(Reason::UnknownShape)?;
    affine.try_map(|numbers| {
        if numbers.shape()[1] == 1 {
            Ok(numbers.clone())
        } else if forward == spreads {
            blocks.once(numbers).ok_or(Reason::WrongAxis)
        } else {
            blocks.repeated(numbers).ok_or(Reason::UnknownShape)
        }
    })
}

/// The order of channels and places in a depth.
struct Blocks {
    channels: usize,
    /// How many places a block has.
    places: usize,
    /// Whether the channels of a place are next to each other, and not the places of a channel.
    by_place: bool,
}

impl Blocks {
    /// `None` where the depth is no multiple of the channels.
    fn new(deep: usize, channels: usize, by_place: bool) -> Option<Self> {
        let places = deep.checked_div(channels)?;
        let blocks = Blocks {
            channels,
            places,
            by_place,
        };
        (places * channels == deep).then_some(blocks)
    }

    /// The number of a channel for each of its places in the depth.
    fn repeated(&self, numbers: &Numbers) -> Option<Numbers> {
        let deep = 0..self.channels * self.places;
        let channels = deep.map(|place| {
            Some(if self.by_place {
                place % self.channels
            } else {
                place / self.places
            })
        });
        numbers.pick(1, channels)
    }

    /// The number of each channel; `None` where the places of a channel have different numbers.
    fn once(&self, numbers: &Numbers) -> Option<Numbers> {
        let distance = if self.by_place { 1 } else { self.places };
        let once = numbers.pick(
            1,
            (0..self.channels).map(|channel| Some(channel * distance)),
        )?;
        (self.repeated(&once)? == *numbers).then_some(once)
    }
}

fn check(at: &At, affine: &Affine) -> Result<(), Reason> {
    let (from, to) = (at.shape(0)?, at.output_shape(0)?);
    if from.len() != to.len() || affine.rank() != from.len() {
        return Err(Reason::UnknownShape);
    }
    let (mixed, keeps_shift) = match at.proto().op_type() {
        "CumSum" => {
            let list = at.list("axis")?.ok_or(Reason::NotConstant)?;
            let &[along] = &list[..] else {
                return Err(Reason::Attribute("axis".into()));
            };
            (vec![axis(along, from.len())?], false)
        }
        "GatherElements" => {
            let along = axis(at.attr("axis", 0)?, from.len())?;
            // Along the others it takes as many from the front as there are indices.
            let cut =
                (0..from.len()).filter(|&axis| axis == along || !same(&from[axis], &to[axis]));
            (cut.collect(), true)
        }
        "Trilu" => (vec![], false),
        _ => ((2..from.len()).collect(), true),
    };
    if mixed.iter().any(|&axis| !affine.is_uniform_along(axis)) {
        return Err(Reason::WrongAxis);
    }
    if keeps_shift || affine.has_no_shift() {
        Ok(())
    } else {
        Err(at.not_linear())
    }
}
