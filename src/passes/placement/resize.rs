//! A Resize that makes values larger.
//!
//! Along each axis it is a linear map of places, whose weights depend on the attributes, the factor and the extent of that
//! axis. A nearest one commutes with every operator that sees each element alone, and any one with a linear operator over
//! channels. The index of a nearest one is computed by the definition of the operator and not read off the names of modes.

use crate::affine::fold::At;
use crate::analysis::Analysis;
use crate::ir::axes::axes;
use crate::ir::builder::Maker;
use crate::ir::{NodeId, ValueId};
use crate::onnx::operator::{attributes, factors_at};
use crate::shape::facts::{Shape, extent, same};

use crate::passes::placement::layer::again;

/// The first operator set in which a Resize says where its places lie.
const PLACED: i64 = 11;

/// The largest multiple that an open extent is compared with.
const MOST_TIMES: usize = 16;

/// How much longer an axis is afterwards.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ResizeFactor {
    /// The extent stays.
    Same,
    /// By a whole factor above 1, at every extent.
    Times(usize),
    /// By another factor above 1, at the only extent.
    Larger(f64),
}

/// How places are made of places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResizeMode {
    Nearest,
    Linear,
    Cubic,
}

/// A Resize, or an Upsample, that makes at least one axis longer and none shorter.
pub struct Enlarged {
    /// The node.
    pub node: NodeId,
    /// The value that it reads.
    pub value: ValueId,
    /// For each axis, how much longer it is.
    pub factors: Vec<ResizeFactor>,
    /// Whether the weights of each place add up to 1.
    pub adds_up_to_one: bool,
    mode: ResizeMode,
    coordinates: String,
    nearest: String,
}

impl Enlarged {
    /// Reads the producer of a value; `None` for another operator, and where it is not known to enlarge at all extents.
    pub fn making(analysis: &Analysis, value: ValueId) -> Option<Self> {
        let graph = &analysis.graph;
        let (node, _) = graph.producer(value)?;
        let at = analysis.at(node);
        let is_upsample = match graph.domain_op(node) {
            ("", "Upsample") => true,
            ("", "Resize") if at.opset() >= PLACED => false,
            _ => return None,
        };
        let known = if is_upsample {
            &["mode"]
        } else {
            attributes("Resize")?
        };
        at.only_attributes(known).ok()?;
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
        if coordinates == "tf_crop_and_resize" {
            return None;
        }
        let excludes_outside =
            mode == ResizeMode::Cubic && at.flag("exclude_outside", false).ok()?;
        let has_plain_weights = !at.flag("antialias", false).ok()? && !excludes_outside;
        let factors = factors(&at)?;
        let enlarges = factors.iter().any(|&factor| factor != ResizeFactor::Same);
        enlarges.then(|| Enlarged {
            node,
            value: graph.input(node, 0).unwrap_or(value),
            factors,
            adds_up_to_one: has_plain_weights,
            mode,
            coordinates: coordinates.to_owned(),
            nearest: nearest.to_owned(),
        })
    }

    /// Whether each place is a copy of another one.
    pub fn is_nearest(&self) -> bool {
        self.mode == ResizeMode::Nearest && self.adds_up_to_one
    }

    /// Whether place i of each axis is the place `⌊i/s⌋` before, for the whole factor s of the axis and all extents.
    pub fn repeats(&self) -> bool {
        let is_whole = |&factor: &ResizeFactor| match factor {
            ResizeFactor::Same => self.index_is_quotient(1),
            ResizeFactor::Times(times) => self.index_is_quotient(times),
            ResizeFactor::Larger(_) => false,
        };
        self.is_nearest() && self.factors.iter().all(is_whole)
    }

    /// Whether the nearest place to i is `⌊i/s⌋`. A place s further on is nearest to the next one, so the first s tell.
    fn index_is_quotient(&self, times: usize) -> bool {
        let Ok(times) = i64::try_from(times) else {
            return false;
        };
        // Twice the factor, times the coordinate of i among the places before.
        let coordinate = |i: i64| match self.coordinates.as_str() {
            "asymmetric" => Some(2 * i),
            "half_pixel" | "half_pixel_symmetric" => Some(2 * i + 1 - times),
            // An axis of one place after a factor of 1 is at 0, which is where the others have it too.
            "pytorch_half_pixel" => Some(2 * i + 1 - times),
            "tf_half_pixel_for_nn" => Some(2 * i + 1),
            _ => None,
        };
        let index = |twice: i64| match self.nearest.as_str() {
            "floor" => Some(twice.div_euclid(2 * times)),
            "ceil" => Some(-(-twice).div_euclid(2 * times)),
            "round_prefer_floor" => Some(-(times - twice).div_euclid(2 * times)),
            "round_prefer_ceil" => Some((twice + times).div_euclid(2 * times)),
            _ => None,
        };
        (0..times).all(|i| coordinate(i).and_then(index) == Some(0))
    }

    /// How many times more places there are, at least.
    pub fn ratio(&self) -> f64 {
        let ratio = |&factor: &ResizeFactor| match factor {
            ResizeFactor::Same => 1.0,
            ResizeFactor::Times(times) => times as f64,
            ResizeFactor::Larger(ratio) => ratio,
        };
        self.factors.iter().map(ratio).product()
    }

    /// How many places before are read for each place.
    pub fn taps(&self) -> usize {
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

    /// Makes it once more on another value, which has so many places along one axis. Returns the name of its result; `None`
    /// where the sizes that it is given cannot be changed.
    pub fn on(
        &self,
        analysis: &Analysis,
        value: &str,
        (axis, count): (usize, usize),
        maker: &mut Maker,
    ) -> Option<String> {
        let at = analysis.at(self.node);
        let Some(sizes) = at.input(3).ok() else {
            return Some(again(analysis, (self.node, 0), value, maker));
        };
        let place = self.place(&at, axis)?;
        let sizes = match place {
            None => analysis.graph.value_name(sizes).to_owned(),
            Some(place) => match at.ints(3).ok().flatten() {
                Some(mut list) => {
                    *list.get_mut(place)? = i64::try_from(count).ok()?;
                    maker.ints(&list)
                }
                None => other_size(
                    analysis.graph.value_name(sizes),
                    place,
                    count,
                    self.named(&at),
                    maker,
                ),
            },
        };
        let like = analysis.graph.node(self.node);
        Some(maker.op("Resize", &[value, "", "", &sizes], like.attribute.clone()))
    }

    /// How many axes are given a size.
    fn named(&self, at: &At) -> usize {
        at.attr_ints("axes")
            .ok()
            .flatten()
            .map_or(self.factors.len(), |axes| axes.len())
    }

    /// At which place the sizes name an axis; an inner `None` where they do not.
    fn place(&self, at: &At, axis: usize) -> Option<Option<usize>> {
        Some(match at.attr_ints("axes").ok()? {
            Some(list) => axes(&list, self.factors.len())
                .ok()?
                .iter()
                .position(|&other| other == axis),
            None => Some(axis),
        })
    }
}

/// A list of sizes with another number at one place.
fn other_size(sizes: &str, place: usize, count: usize, length: usize, maker: &mut Maker) -> String {
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
    maker.op("Concat", &parts, vec![crate::ir::builder::int("axis", 0)])
}

/// How much longer each axis is; `None` where one is shorter, or that is not known.
fn factors(at: &At) -> Option<Vec<ResizeFactor>> {
    let before: Shape = at.shape(0).ok()?;
    let named = match at.attr_ints("axes").ok()? {
        Some(list) => axes(&list, before.len()).ok()?,
        None => (0..before.len()).collect(),
    };
    let mut factors = vec![ResizeFactor::Same; before.len()];
    if let Ok(sizes) = at.input(3) {
        let after = at
            .facts
            .extents(sizes)
            .filter(|after| after.len() == named.len())?;
        if at.attr_text("keep_aspect_ratio_policy", "stretch").ok()? != "stretch" {
            return None;
        }
        for (&axis, size) in named.iter().zip(&after) {
            factors[axis] = ratio(&before[axis], size)?;
        }
        return Some(factors);
    }
    let numbers = at
        .numbers(factors_at(at.proto().op_type(), at.opset()))
        .ok()?;
    if numbers.shape() != [named.len()] {
        return None;
    }
    for (&axis, &number) in named.iter().zip(numbers.iter()) {
        factors[axis] = match number {
            1.0 => ResizeFactor::Same,
            number if number.fract() == 0.0 && (2.0..=MOST_TIMES as f64).contains(&number) => {
                ResizeFactor::Times(number as usize)
            }
            _ => return None,
        };
    }
    Some(factors)
}

/// How much longer an axis of this extent is with another one.
fn ratio(
    before: &Option<tract_onnx::prelude::TDim>,
    after: &Option<tract_onnx::prelude::TDim>,
) -> Option<ResizeFactor> {
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
    let is_multiple = |&times: &usize| same(&Some(before.clone() * times as i64), after);
    (2..=MOST_TIMES).find(is_multiple).map(ResizeFactor::Times)
}
