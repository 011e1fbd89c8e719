//! Operators that move or sum elements. They pass an affine that is constant over all places from
//! which an element may come.
//!
//! DepthToSpace and SpaceToDepth move elements between all axes. The deeper value has separate
//! channels for each place of a block, so an affine of channels is repeated for each place.
//! GatherElements moves elements along one axis, and CumSum sums along one axis. Trilu writes
//! zeros, to which no shift may be added.

use crate::affine::Affine;
use crate::affine::rule::{At, Rule, Step};
use crate::ir::axes::axis;
use crate::recipe::Numbers;
use crate::refusal::Reason;
use crate::shape::facts::same;

/// Operators that move or sum elements.
pub(super) struct Rearrange;

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

/// Converts an affine of the channels to the other side of a DepthToSpace or SpaceToDepth.
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

/// The order of channels and places along the channel axis of the deeper value.
struct Blocks {
    channels: usize,
    /// The number of places in a block.
    places: usize,
    /// Whether the channels of a place are adjacent, rather than the places of a channel.
    by_place: bool,
}

impl Blocks {
    /// `None` if the depth is not a multiple of the number of channels.
    fn new(deep: usize, channels: usize, by_place: bool) -> Option<Self> {
        let places = deep.checked_div(channels)?;
        let blocks = Blocks {
            channels,
            places,
            by_place,
        };
        (places * channels == deep).then_some(blocks)
    }

    /// Repeats the scalar of each channel for all places of a block, in the order of the deeper
    /// value.
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

    /// Finds the scalar of each channel. `None` if the places of a channel have different scalars.
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
            // Along the other axes, GatherElements takes the first places, as many as there are
            // indices. So no affine may vary along an axis that becomes shorter.
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
