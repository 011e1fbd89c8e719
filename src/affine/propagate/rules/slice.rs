//! Slice: along a sliced axis the affine is sliced like the value.
//!
//! Backward, what the slice leaves out gets the identity: other readers of those parts see no change.

use ndarray::{Axis, Slice as Range};

use crate::affine::Affine;
use crate::affine::fold::{At, Rule, Step};
use crate::ir::axes::axis;
use crate::recipe::Numbers;
use crate::refusal::Reason;

/// Slice.
pub struct Slice;

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

/// `affine` at the places `taken` along an axis of extent `whole`, the identity elsewhere.
///
/// # Errors
/// [`Reason::OtherReader`] where a place is taken twice: one constant cannot serve two.
pub fn scatter(
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
    let place = |numbers: &Numbers, neutral: f64| {
        // The numbers of the places that were left out are appended, at index `along`.
        let along = numbers.shape()[axis];
        let mut places = vec![Some(along); whole];
        for (from, &to) in taken.iter().enumerate() {
            places[to] = Some(if along == 1 { 0 } else { from });
        }
        let mut shape = numbers.shape().to_vec();
        shape[axis] = 1;
        let neutral = Numbers::number(neutral, numbers.ndim()).expand(&shape)?;
        Numbers::concat(axis, &[numbers.clone(), neutral])?.pick(axis, places)
    };
    let placed = place(&affine.scale, 1.0).zip(place(&affine.shift, 0.0));
    placed
        .map(|(scale, shift)| Affine::new(scale, shift))
        .ok_or(Reason::UnknownShape)
}

/// The start, end and step of a Slice along an axis, as given.
#[derive(Clone, Copy)]
pub struct Cut {
    /// The first place; from the end, where it is negative.
    pub start: i64,
    /// The one at which it ends, which is not taken.
    pub end: i64,
    /// How far it is from one to the next.
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
            // The specification takes the first place here, and its reference none.
            return Err(Reason::Attribute("starts".into()));
        }
        let clamp = |bound: i64, low: i64, high: i64| {
            let counted = if bound < 0 {
                bound.saturating_add(length)
            } else {
                bound
            };
            counted.clamp(low, high)
        };
        if self.step > 0 {
            let (start, end) = (clamp(self.start, 0, length), clamp(self.end, 0, length));
            if start >= end {
                return Ok(vec![]);
            }
            let range = Range::new(start as isize, Some(end as isize), self.step as isize);
            return Ok(ndarray::aview1(&places).slice_axis(Axis(0), range).to_vec());
        }
        let (start, end) = (
            clamp(self.start, -1, length - 1),
            clamp(self.end, -1, length - 1),
        );
        let taken = (0..)
            .map(|i| start + i * self.step)
            .take_while(|&place| place > end);
        Ok(taken.map(|place| place as usize).collect())
    }
}

/// The cuts of a Slice on each axis that it names; `None` where the cut is not constant.
///
/// # Errors
/// Where it is not known which axes it names.
pub fn cuts(at: &At) -> Result<Vec<(usize, Option<Cut>)>, Reason> {
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
    let cut = |i: usize| {
        let (start, end) = (*starts.as_ref()?.get(i)?, *ends.as_ref()?.get(i)?);
        let step = steps
            .as_ref()
            .map_or(Some(1), |steps| steps.get(i).copied())?;
        Some(Cut { start, end, step })
    };
    named
        .iter()
        .enumerate()
        .map(|(i, &one)| Ok((axis(one, rank)?, cut(i))))
        .collect()
}
