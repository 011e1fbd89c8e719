//! A Resize that makes values larger.
//!
//! Along each axis it is a linear map of places, whose weights depend on the attributes, the factor
//! and the extent of that axis. A nearest Resize commutes with every operator that computes each
//! element separately. Any Resize commutes with a linear operator over channels. The place that a
//! nearest Resize reads is computed by the definition of the operator, and not inferred from the
//! names of modes.

use tract_onnx::prelude::TDim;

use crate::analysis::Analysis;
use crate::analysis::node_view::At;
use crate::analysis::resize::keeps_unscaled_axes;
use crate::ir::axes::axes;
use crate::ir::builder::{Maker, int};
use crate::ir::{NodeId, ValueId};
use crate::onnx::operator::{attributes, factors_at};
use crate::passes::placement::copies;
use crate::passes::placement::factor::ResizeFactor;
use crate::passes::placement::layer::again;
use crate::shape::facts::{Shape, extent, same};

/// The first operator set in which a Resize has `coordinate_transformation_mode`.
const HAS_COORDINATES: i64 = 11;

/// The largest integer factor that is recognized, if extents are unknown or the node reads factors.
const MOST_TIMES: usize = 16;

/// The way in which a place of the result is computed from places of the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResizeMode {
    Nearest,
    Linear,
    Cubic,
}

/// A Resize, Upsample, Tile or Expand that makes at least one axis longer and none shorter.
pub(super) struct Enlarged {
    /// The node.
    pub node: NodeId,
    /// The value that the node reads.
    pub value: ValueId,
    /// The factor of each axis.
    pub factors: Vec<ResizeFactor>,
    /// Whether the weights of each place add up to 1.
    pub adds_up_to_one: bool,
    mode: ResizeMode,
    coordinates: String,
    nearest: String,
}

impl Enlarged {
    /// Reads the producer of a value. `None` for another operator, or if it is not known to enlarge
    /// values for all extents.
    pub(super) fn making(analysis: &Analysis, value: ValueId) -> Option<Self> {
        let graph = &analysis.graph;
        let (node, _) = graph.producer(value)?;
        let at = analysis.at(node);
        if let Some(factors) = copies::factors(&at) {
            return Self::copying(&at, factors);
        }
        let is_upsample = match graph.domain_op(node) {
            ("", "Upsample") => true,
            ("", "Resize") if at.opset() >= HAS_COORDINATES => false,
            _ => return None,
        };
        let defined = if is_upsample {
            &["mode"]
        } else {
            attributes("Resize")?
        };
        at.only_attributes(defined).ok()?;
        let mode = match at.attr_text("mode", "nearest").ok()? {
            "nearest" => ResizeMode::Nearest,
            "linear" => ResizeMode::Linear,
            "cubic" => ResizeMode::Cubic,
            _ => return None,
        };
        let [coordinates, nearest] = match is_upsample {
            true => ["asymmetric", "floor"],
            false => [
                at.attr_text("coordinate_transformation_mode", "half_pixel")
                    .ok()?,
                at.attr_text("nearest_mode", "round_prefer_floor").ok()?,
            ],
        };
        let excludes_outside =
            mode == ResizeMode::Cubic && at.flag("exclude_outside", false).ok()?;
        let has_plain_weights = !at.flag("antialias", false).ok()? && !excludes_outside;
        let factors = factors(&at)?;
        let enlarges = factors.iter().any(|&factor| factor != ResizeFactor::Same);
        let enlarged = Enlarged {
            node,
            value: graph.input(node, 0).unwrap_or(value),
            factors,
            adds_up_to_one: has_plain_weights,
            mode,
            coordinates: coordinates.to_owned(),
            nearest: nearest.to_owned(),
        };
        (enlarges && keeps_unscaled_axes(&at).ok()?).then_some(enlarged)
    }

    /// A Tile or an Expand with these factors. `None` if no axis becomes longer.
    fn copying(at: &At, factors: Vec<ResizeFactor>) -> Option<Self> {
        let enlarges = factors.iter().any(|&factor| factor != ResizeFactor::Same);
        enlarges.then_some(Enlarged {
            node: at.node,
            value: at.input(0).ok()?,
            factors,
            adds_up_to_one: true,
            mode: ResizeMode::Nearest,
            coordinates: String::new(),
            nearest: String::new(),
        })
    }

    /// Whether each place of the result is a copy of a place of the input.
    pub(super) fn is_nearest(&self) -> bool {
        self.mode == ResizeMode::Nearest && self.adds_up_to_one
    }

    /// Whether place i of the result is a copy of place `⌊i/s⌋` of the input along each axis, for
    /// the integer factor s of the axis and for all extents.
    pub(super) fn repeats(&self) -> bool {
        self.is_nearest()
            && self.factors.iter().all(|&factor| match factor {
                ResizeFactor::Same => self.index_is_quotient(1),
                ResizeFactor::Times(times) => self.index_is_quotient(times),
                ResizeFactor::Larger(_) => false,
            })
    }

    /// Whether place i of the result reads place `⌊i/s⌋` for every i. The first s places decide,
    /// because place `i + s` reads the place after the one that place i reads.
    fn index_is_quotient(&self, times: usize) -> bool {
        let Ok(times) = i64::try_from(times) else {
            return false;
        };
        (0..times).all(|i| {
            let coordinate = self.scaled_coordinate(i, times);
            coordinate.and_then(|scaled| self.nearest_index(scaled, times)) == Some(0)
        })
    }

    /// The input coordinate of place i of the result, multiplied by twice the factor. `None` for
    /// another mode.
    fn scaled_coordinate(&self, i: i64, times: i64) -> Option<i64> {
        match self.coordinates.as_str() {
            "asymmetric" => Some(2 * i),
            "half_pixel" | "half_pixel_symmetric" => Some(2 * i + 1 - times),
            // `pytorch_half_pixel` differs from `half_pixel` only if the result has one place. Here
            // the factor is then 1, and both modes give 0.
            "pytorch_half_pixel" => Some(2 * i + 1 - times),
            "tf_half_pixel_for_nn" => Some(2 * i + 1),
            _ => None,
        }
    }

    /// The place that is read for a [scaled coordinate](Self::scaled_coordinate), by the rounding
    /// mode. `None` for another mode.
    fn nearest_index(&self, scaled: i64, times: i64) -> Option<i64> {
        match self.nearest.as_str() {
            "floor" => Some(scaled.div_euclid(2 * times)),
            "ceil" => Some(-(-scaled).div_euclid(2 * times)),
            "round_prefer_floor" => Some(-(times - scaled).div_euclid(2 * times)),
            "round_prefer_ceil" => Some((scaled + times).div_euclid(2 * times)),
            _ => None,
        }
    }

    /// The ratio of the number of places after the Resize to the number of places before it.
    pub(super) fn ratio(&self) -> f64 {
        self.factors.iter().map(|factor| factor.ratio()).product()
    }

    /// The number of input places that are read for each place of the result.
    pub(super) fn taps(&self) -> usize {
        let per_axis: usize = match self.mode {
            ResizeMode::Nearest => 1,
            ResizeMode::Linear => 2,
            ResizeMode::Cubic => 4,
        };
        let axes = self
            .factors
            .iter()
            .filter(|&&factor| factor != ResizeFactor::Same);
        axes.fold(1, |taps, _| taps.saturating_mul(per_axis))
    }

    /// Writes the node on another value, which has `count` places along `axis`. Returns the name of
    /// the result. `None` if the sizes that the node reads cannot be changed.
    pub(super) fn on(
        &self,
        analysis: &Analysis,
        value: &str,
        (axis, count): (usize, usize),
        maker: &mut Maker,
    ) -> Option<String> {
        let at = analysis.at(self.node);
        if analysis.graph.is(self.node, "Expand") {
            return copies::expand(&at, value, (axis, count), self.factors.len(), maker);
        }
        let Some(sizes) = at.input(3).ok() else {
            return Some(again(analysis, (self.node, 0), value, maker));
        };
        let sizes = analysis.graph.value_name(sizes);
        let named = self.named_axes(&at)?;
        let sizes = match named.iter().position(|&other| other == axis) {
            None => sizes.to_owned(),
            Some(place) => match at.ints(3).ok().flatten() {
                Some(mut list) => {
                    *list.get_mut(place)? = i64::try_from(count).ok()?;
                    maker.ints(&list)
                }
                None => with_size(sizes, place, count, named.len(), maker),
            },
        };
        let like = analysis.graph.node(self.node);
        Some(maker.op("Resize", &[value, "", "", &sizes], like.attribute.clone()))
    }

    /// The axes that have a size or a factor.
    fn named_axes(&self, at: &At) -> Option<Vec<usize>> {
        named_axes(at, self.factors.len())
    }
}

/// Writes a list of sizes in which the size at one place is replaced by `count`.
fn with_size(sizes: &str, place: usize, count: usize, length: usize, maker: &mut Maker) -> String {
    let number = maker.ints(&[count as i64]);
    let mut parts = vec![];
    if place > 0 {
        parts.push(maker.slice(sizes, &(0..place), 0));
    }
    parts.push(number);
    if place + 1 < length {
        parts.push(maker.slice(sizes, &(place + 1..length), 0));
    }
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    maker.op("Concat", &parts, vec![int("axis", 0)])
}

/// The factor of each axis. `None` if a factor is unknown, or if an axis may become shorter.
fn factors(at: &At) -> Option<Vec<ResizeFactor>> {
    let before: Shape = at.shape(0).ok()?;
    let named = named_axes(at, before.len())?;
    let named_factors = match at.input(3) {
        Ok(sizes) => factors_by_sizes(at, &before, &named, sizes)?,
        Err(_) => factors_by_scales(at, named.len())?,
    };
    let mut factors = vec![ResizeFactor::Same; before.len()];
    for (axis, factor) in named.into_iter().zip(named_factors) {
        factors[axis] = factor;
    }
    Some(factors)
}

/// The axes that have a size or a factor: the axes in the attribute, or all axes if there is no
/// attribute.
fn named_axes(at: &At, rank: usize) -> Option<Vec<usize>> {
    match at.attr_ints("axes").ok()? {
        Some(list) => axes(&list, rank).ok(),
        None => Some((0..rank).collect()),
    }
}

/// The factors of the named axes of a node that reads their new extents. `None` if one of them is
/// unknown.
fn factors_by_sizes(
    at: &At,
    before: &Shape,
    named: &[usize],
    sizes: ValueId,
) -> Option<Vec<ResizeFactor>> {
    let after = at
        .facts
        .extents(sizes)
        .filter(|after| after.len() == named.len())?;
    if at.attr_text("keep_aspect_ratio_policy", "stretch").ok()? != "stretch" {
        return None;
    }
    named
        .iter()
        .zip(&after)
        .map(|(&axis, size)| ratio(&before[axis], size))
        .collect()
}

/// The factors of the named axes of a node that reads factors. `None` if one of them is not a small
/// integer.
fn factors_by_scales(at: &At, count: usize) -> Option<Vec<ResizeFactor>> {
    let slot = factors_at(at.proto().op_type(), at.opset());
    let numbers = at.numbers(slot).ok()?;
    if numbers.shape() != [count] {
        return None;
    }
    numbers.iter().map(|&number| whole_factor(number)).collect()
}

fn whole_factor(number: f64) -> Option<ResizeFactor> {
    let is_whole = number.fract() == 0.0 && (1.0..=MOST_TIMES as f64).contains(&number);
    match number as usize {
        _ if !is_whole => None,
        1 => Some(ResizeFactor::Same),
        times => Some(ResizeFactor::Times(times)),
    }
}

/// The factor between two extents of an axis. `None` if the factor is unknown, or if the axis may
/// become shorter.
fn ratio(before: &Option<TDim>, after: &Option<TDim>) -> Option<ResizeFactor> {
    if same(before, after) {
        return Some(ResizeFactor::Same);
    }
    if let (Some(from), Some(to)) = (extent(before), extent(after)) {
        return match to.checked_rem(from)? {
            0 if to > from => Some(ResizeFactor::Times(to / from)),
            _ if to > from => Some(ResizeFactor::Larger(to as f64 / from as f64)),
            _ => None,
        };
    }
    let before = before.as_ref()?;
    (2..=MOST_TIMES)
        .find(|&times| same(&Some(before.clone() * times as i64), after))
        .map(ResizeFactor::Times)
}
