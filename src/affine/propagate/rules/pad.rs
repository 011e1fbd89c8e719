//! Pad: the border does not carry the affine.
//!
//! With a constant `c` in the border, `Pad(s·x + t) = s·Pad(x) + t'`, where `t'` is `t` inside and
//! `c − s·c` in the border. This is exact, but the shift depends on the place. The affine passes
//! unchanged along axes without padding, and if the border repeats the inside.
//!
//! Negative padding cuts places off, and the remaining places carry the affine, as after a Slice. A
//! Pad that moves a value by one place cuts one end and pads the other.

use std::ops::Range;

use crate::affine::Affine;
use crate::affine::propagate::rules::split::cut;
use crate::affine::rule::{At, Rule, Step};
use crate::analysis::broadcast::LARGEST;
use crate::ir::axes::axes;
use crate::recipe::Numbers;
use crate::refusal::Reason;

/// Pad.
pub(crate) struct Pad;

impl Rule for Pad {
    fn ops(&self) -> &'static [&'static str] {
        &["Pad"]
    }

    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        let affine = at.only(inputs, 0)?;
        let padding = Padding::from_node(at, affine.rank())?;
        if !padding.is_constant {
            let mut changed = (0..affine.rank()).filter(|&axis| padding.at(axis) != (0, 0));
            let uniform = changed.all(|axis| affine.is_uniform_along(axis));
            return if uniform {
                Ok(Step::pass_on(0, affine.clone()))
            } else {
                Err(Reason::Padding)
            };
        }
        let affine = affine.try_map(|numbers| padding.cut(numbers))?;
        let mut padded = (0..affine.rank())
            .filter(|&axis| padding.widens(axis))
            .peekable();
        if padded.peek().is_none() {
            return Ok(Step::pass_on(0, affine));
        }
        if padded.any(|axis| affine.scale.shape()[axis] != 1) {
            return Err(Reason::Padding);
        }
        let border = padding.border(&affine.scale);
        if affine.shift == border {
            return Ok(Step::pass_on(0, affine));
        }
        let shift = padding.frame(at, &affine, &border)?;
        Ok(Step::pass_on(0, Affine::new(affine.scale, shift)))
    }

    fn backward(&self, at: &At, _: usize, affine: &Affine) -> Result<Step, Reason> {
        let padding = Padding::from_node(at, affine.rank())?;
        let mut changed = (0..affine.rank()).filter(|&axis| padding.at(axis) != (0, 0));
        if changed.any(|axis| !affine.is_uniform_along(axis)) {
            return Err(Reason::Padding);
        }
        let widens = (0..affine.rank()).any(|axis| padding.widens(axis));
        if !widens || !padding.is_constant {
            return Ok(Step::pass_on(0, affine.clone()));
        }
        let border = padding.border(&affine.scale);
        match affine.has_no_shift() && border.iter().all(|&number| number == 0.0) {
            true => Ok(Step::pass_on(0, affine.clone())),
            false => Err(Reason::Padding),
        }
    }
}

/// The padding of a Pad before and after each axis. Negative padding cuts.
pub(crate) struct Padding {
    before: Vec<i64>,
    after: Vec<i64>,
    is_constant: bool,
    value: f64,
}

impl Padding {
    /// Reads the padding of a Pad on a value of this rank.
    ///
    /// # Errors
    /// The padding is not known.
    pub(crate) fn from_node(at: &At, rank: usize) -> Result<Self, Reason> {
        let value = match at.input_for("value") {
            None => at.attr_float("value", 0.0)?,
            Some(slot) if at.graph.input(at.node, slot).is_some() => at
                .numbers(slot)?
                .first()
                .copied()
                .ok_or(Reason::Attribute("constant_value".into()))?,
            Some(_) => 0.0,
        };
        let pads = at.list("pads")?.ok_or(Reason::Attribute("pads".into()))?;
        let named = match at.ints(3)? {
            Some(named) => axes(&named, rank)?,
            None => (0..rank).collect(),
        };
        if pads.len() != 2 * named.len() {
            return Err(Reason::Attribute("pads".into()));
        }
        let (mut before, mut after) = (vec![0; rank], vec![0; rank]);
        for (i, &axis) in named.iter().enumerate() {
            before[axis] = pads[i];
            after[axis] = pads[i + named.len()];
        }
        let is_constant = match at.attr_text("mode", "constant")? {
            "constant" => true,
            "reflect" | "edge" | "wrap" => false,
            _ => return Err(Reason::Attribute("mode".into())),
        };
        Ok(Padding {
            before,
            after,
            is_constant,
            value,
        })
    }

    /// The padding of an image in the order of the `pads` of a convolution: before each spatial
    /// axis, then after each. `None` if the Pad does more than surround an image by `border`.
    pub(crate) fn of_image(&self, border: f64) -> Option<Vec<i64>> {
        let rank = self.before.len();
        let is_around = self.is_constant
            && self.value == border
            && rank > 2
            && (self.at(0), self.at(1)) == ((0, 0), (0, 0));
        let pads = [&self.before[2.min(rank)..], &self.after[2.min(rank)..]].concat();
        (is_around && pads.iter().all(|&count| count >= 0)).then_some(pads)
    }

    fn at(&self, axis: usize) -> (i64, i64) {
        (self.before[axis], self.after[axis])
    }

    /// Whether the Pad adds places before or after an axis.
    fn widens(&self, axis: usize) -> bool {
        self.before[axis] > 0 || self.after[axis] > 0
    }

    /// The number of places that are cut off at the beginning and at the end of an axis.
    fn cuts(&self, axis: usize) -> (i64, i64) {
        (
            self.before[axis].min(0).saturating_neg(),
            self.after[axis].min(0).saturating_neg(),
        )
    }

    /// The places that remain of an axis of this extent. An error if none remains.
    fn left(&self, axis: usize, extent: usize) -> Result<Range<usize>, Reason> {
        let (before, after) = self.cuts(axis);
        let end = i64::try_from(extent)
            .ok()
            .and_then(|extent| extent.checked_sub(after));
        let left = usize::try_from(before)
            .ok()
            .zip(end.and_then(|end| usize::try_from(end).ok()));
        left.filter(|(start, end)| start < end)
            .map(|(start, end)| start..end)
            .ok_or(Reason::Padding)
    }

    /// Cuts numbers along the axes along which they vary.
    fn cut(&self, numbers: &Numbers) -> Result<Numbers, Reason> {
        let mut numbers = numbers.clone();
        for axis in 0..numbers.ndim() {
            let extent = numbers.shape()[axis];
            if extent != 1 && self.cuts(axis) != (0, 0) {
                numbers = cut(&numbers, axis, self.left(axis, extent)?)?;
            }
        }
        Ok(numbers)
    }

    /// The shift of the border after the scale: `c − s·c`, or 0 if c is 0, whatever s is.
    fn border(&self, scale: &Numbers) -> Numbers {
        if self.value == 0.0 {
            return Numbers::number(0.0, scale.ndim());
        }
        let value = Numbers::number(self.value, scale.ndim());
        &value - &(scale * &value)
    }

    /// The shift of the inside, surrounded by the shift of the border.
    fn frame(&self, at: &At, affine: &Affine, border: &Numbers) -> Result<Numbers, Reason> {
        let (mut inner, mut outer) = (vec![], vec![]);
        for axis in 0..affine.rank() {
            let varies = affine.shift.shape()[axis].max(border.shape()[axis]);
            if !self.widens(axis) {
                inner.push(varies);
                outer.push(varies);
                continue;
            }
            let (Ok(whole), Ok(long)) = (at.extent(0, axis), at.output_extent(0, axis)) else {
                return Err(Reason::Padding);
            };
            let (before, after) = self.at(axis);
            let short = self.left(axis, whole)?.len();
            if long as i64 != short as i64 + before.max(0) + after.max(0) {
                return Err(Reason::Padding);
            }
            inner.push(short);
            outer.push(long);
        }
        let size = outer.iter().product::<usize>();
        if size > LARGEST {
            return Err(Reason::TooLarge(size));
        }
        let mut framed = affine.shift.expand(&inner).ok_or(Reason::UnknownShape)?;
        for axis in (0..affine.rank()).filter(|&axis| self.widens(axis)) {
            // Appends one place of border to the inside. All places of the border are copies of it.
            inner[axis] = 1;
            let border = border.expand(&inner).ok_or(Reason::UnknownShape)?;
            let inside = framed.shape()[axis];
            let before = self.before[axis].max(0) as usize;
            let places = (0..outer[axis]).map(|to| Some(to.wrapping_sub(before).min(inside)));
            let joined = Numbers::concat(axis, &[framed, border]);
            let picked = joined.and_then(|joined| joined.pick(axis, places));
            framed = picked.ok_or(Reason::UnknownShape)?;
            inner[axis] = outer[axis];
        }
        Ok(framed)
    }
}
