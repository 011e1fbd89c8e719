//! Slice: along a sliced axis, the affine is sliced like the value.
//!
//! Backward, the parts that the slice leaves out get the identity, so other readers of those parts
//! see no change.

use ndarray::{Axis, Slice as Range};

use crate::affine::Affine;
use crate::affine::rule::{At, Rule, Step};
use crate::ir::axes::axis;
use crate::recipe::Numbers;
use crate::refusal::Reason;

/// Slice.
pub(crate) struct Slice;

impl Rule for Slice {
    fn ops(&self) -> &'static [&'static str] {
        &["Slice"]
    }

    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        let affine = at.only(inputs, 0)?;
        let cuts = cuts(at)?;
        let sliced = affine.try_map(|numbers| {
            let mut numbers = numbers.clone();
            for &(axis, cut) in &cuts {
                if numbers.shape()[axis] != 1 {
                    let taken = cut.ok_or(Reason::NotConstant)?.resolve(at, axis)?;
                    numbers = numbers
                        .pick(axis, taken.into_iter().map(Some))
                        .ok_or(Reason::UnknownShape)?;
                }
            }
            Ok(numbers)
        })?;
        Ok(Step::pass_on(0, sliced))
    }

    fn backward(&self, at: &At, _: usize, affine: &Affine) -> Result<Step, Reason> {
        let mut widened = affine.clone();
        for (axis, cut) in cuts(at)? {
            let whole = at.places(0, axis)?;
            let taken = cut.ok_or(Reason::NotConstant)?.resolve(at, axis)?;
            widened = scatter(&widened, axis, &taken, whole)?;
        }
        Ok(Step::pass_on(0, widened))
    }
}

/// Puts `affine` at the places `taken` along an axis of extent `whole`, and the identity at the
/// other places.
///
/// # Errors
/// [`Reason::OtherReader`] if a place is taken twice, because it could need two affines.
pub(crate) fn scatter(
    affine: &Affine,
    axis: usize,
    taken: &[usize],
    whole: usize,
) -> Result<Affine, Reason> {
    let mut seen = vec![false; whole];
    for &place in taken {
        if std::mem::replace(seen.get_mut(place).ok_or(Reason::UnknownShape)?, true) {
            return Err(Reason::OtherReader);
        }
    }
    if seen.iter().all(|&taken| taken) && affine.is_uniform_along(axis) {
        return Ok(affine.clone());
    }
    let scale = placed(&affine.scale, 1.0, axis, taken, whole);
    let shift = placed(&affine.shift, 0.0, axis, taken, whole);
    match (scale, shift) {
        (Some(scale), Some(shift)) => Ok(Affine::new(scale, shift)),
        _ => Err(Reason::UnknownShape),
    }
}

/// Puts numbers at the places `taken` along an axis of extent `whole`, and `neutral` at the other
/// places.
fn placed(
    numbers: &Numbers,
    neutral: f64,
    axis: usize,
    taken: &[usize],
    whole: usize,
) -> Option<Numbers> {
    // The neutral number is appended at index `along`.
    let along = numbers.shape()[axis];
    let mut places = vec![Some(along); whole];
    for (from, &to) in taken.iter().enumerate() {
        places[to] = Some(if along == 1 { 0 } else { from });
    }
    let mut shape = numbers.shape().to_vec();
    shape[axis] = 1;
    let neutral = Numbers::number(neutral, numbers.ndim()).expand(&shape)?;
    Numbers::concat(axis, &[numbers.clone(), neutral])?.pick(axis, places)
}

/// The start, end and step of a Slice along an axis, as given.
#[derive(Clone, Copy)]
pub(crate) struct Cut {
    /// The first place. A negative number counts from the end.
    pub start: i64,
    /// The place after the last one. A negative number counts from the end.
    pub end: i64,
    /// The distance between two places.
    pub step: i64,
}

impl Cut {
    /// The places that are taken, in order.
    fn resolve(self, at: &At, axis: usize) -> Result<Vec<usize>, Reason> {
        let whole = at.places(0, axis)?;
        let places: Vec<usize> = (0..whole).collect();
        if self.step == 0 {
            return Err(Reason::Attribute("steps".into()));
        }
        let length = whole as i64;
        if self.step < 0 && self.start < -length {
            // The specification includes the first place here, but the reference implementation
            // does not. So this Slice is refused.
            return Err(Reason::Attribute("starts".into()));
        }
        if self.step > 0 {
            let start = place_from(self.start, length).clamp(0, length);
            let end = place_from(self.end, length).clamp(0, length);
            if start >= end {
                return Ok(vec![]);
            }
            let range = Range::new(start as isize, Some(end as isize), self.step as isize);
            return Ok(ndarray::aview1(&places).slice_axis(Axis(0), range).to_vec());
        }
        let start = place_from(self.start, length).clamp(-1, length - 1);
        let end = place_from(self.end, length).clamp(-1, length - 1);
        let taken = (0..)
            .map(|i| start + i * self.step)
            .take_while(|&place| place > end);
        Ok(taken.map(|place| place as usize).collect())
    }
}

/// Converts a bound of a Slice to a place. A negative bound counts from the end.
fn place_from(bound: i64, length: i64) -> i64 {
    if bound < 0 {
        bound.saturating_add(length)
    } else {
        bound
    }
}

/// The cuts of a Slice, for each axis that it names. `None` for a cut that is not constant.
///
/// # Errors
/// The axes are not known.
pub(crate) fn cuts(at: &At) -> Result<Vec<(usize, Option<Cut>)>, Reason> {
    let rank = at.rank(0)?;
    let steps = at.list("steps")?;
    let (starts, ends) = match (at.list("starts"), at.list("ends")) {
        (Ok(starts), Ok(ends)) => (starts, ends),
        _ => (None, None),
    };
    let named = at.list("axes")?;
    let Some(named) = named.or_else(|| starts.as_ref().map(|s| (0..s.len() as i64).collect()))
    else {
        return Err(Reason::NotConstant);
    };
    let mut cuts = vec![];
    for (i, &one) in named.iter().enumerate() {
        let axis = axis(one, rank)?;
        let cut = match (&starts, &ends) {
            (Some(starts), Some(ends)) => cut_at(starts, ends, steps.as_deref(), i),
            _ => None,
        };
        cuts.push((axis, cut));
    }
    Ok(cuts)
}

fn cut_at(starts: &[i64], ends: &[i64], steps: Option<&[i64]>, i: usize) -> Option<Cut> {
    let step = match steps {
        Some(steps) => *steps.get(i)?,
        None => 1,
    };
    Some(Cut {
        start: *starts.get(i)?,
        end: *ends.get(i)?,
        step,
    })
}
