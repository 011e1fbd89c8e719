//! Infers the extent of an axis after a Slice.

use tract_onnx::prelude::{InferenceFact, TVec};
use tract_onnx::tract_hir::infer::{Factoid, ShapeFactoid};
use tract_onnx::tract_hir::internal::{DimFact, TDim};

use crate::ir::axes::axis;
use crate::onnx::operator::input_for;
use crate::onnx::proto::NodeProto;
use crate::shape::encode::{KnownFacts, dims_of, number};

/// A bound on the number of elements of a tensor. A Slice with an end beyond this bound keeps all
/// places up to the last one. Exporters write such an end if the program gives none.
const NOWHERE: i128 = 1 << 40;

/// The bounds of a Slice along an axis, if they are known.
pub(crate) struct SliceCut {
    axis: usize,
    start: TDim,
    end: Option<TDim>,
    step: Option<TDim>,
}

impl SliceCut {
    /// The number of places that remain of `whole` places. If `whole` is unknown, 0 for a Slice
    /// that is always empty. `None` if a bound or the number is unknown. If the end precedes the
    /// start, tract would compute a negative number.
    fn left(&self, whole: Option<i64>) -> Option<usize> {
        let start = i128::from(self.start.to_i64().ok()?);
        let end = i128::from(self.end.as_ref()?.to_i64().ok()?);
        let step = i128::from(self.step.as_ref()?.to_i64().ok()?);
        if step == 0 {
            return None;
        }
        match whole {
            Some(whole) => usize::try_from(places(start, end, step, whole.into())).ok(),
            None => is_always_empty(start, end, step).then_some(0),
        }
    }

    /// Whether the Slice keeps all places of an axis of any length. `beside` is the number of
    /// elements at each place.
    fn leaves_all(&self, beside: i128) -> bool {
        let end = self.end.as_ref().and_then(|end| end.to_i64().ok());
        let is_far = end.is_some_and(|end| i128::from(end).saturating_mul(beside) >= NOWHERE);
        let has_step_one = self.step.as_ref().is_some_and(|step| is_number(step, 1));
        is_far && has_step_one && is_number(&self.start, 0)
    }
}

fn is_number(dim: &TDim, number: i64) -> bool {
    dim.to_i64().is_ok_and(|dim| dim == number)
}

/// Whether the Slice keeps no place of an axis of any length. This holds if start and end count
/// from the same side and the start is not before the end, or if the end precedes all places.
fn is_always_empty(start: i128, end: i128, step: i128) -> bool {
    let count_from_one_side = start.is_negative() == end.is_negative();
    let is_empty = count_from_one_side && !is_ahead(start, end, step);
    is_empty || step > 0 && end <= -NOWHERE
}

/// Whether steps from the start lead towards the end.
fn is_ahead(start: i128, end: i128, step: i128) -> bool {
    if step > 0 { start < end } else { start > end }
}

/// The number of places that a Slice keeps of an axis with `whole` places.
fn places(start: i128, end: i128, step: i128, whole: i128) -> i128 {
    let (start, end) = match step > 0 {
        true => (
            clamped(start, whole, 0, whole),
            clamped(end, whole, 0, whole),
        ),
        false => (
            clamped(start, whole, 0, whole - 1),
            clamped(end, whole, -1, whole - 1),
        ),
    };
    if whole > 0 && is_ahead(start, end, step) {
        (end - start - step.signum()) / step + 1
    } else {
        0
    }
}

/// The place of a bound, limited to `low..=high`. A negative bound counts from the end.
fn clamped(bound: i128, whole: i128, low: i128, high: i128) -> i128 {
    let place = if bound < 0 { bound + whole } else { bound };
    place.clamp(low, high.max(low))
}

/// Corrects the fact about a slice of `from`. A slice whose bounds exceed the extent is shorter
/// than the bounds imply, so its extent is unknown if the extent of the axis is unknown. An axis is
/// assumed to be nonempty, so that its first and last places exist.
pub(crate) fn within_reach(
    fact: InferenceFact,
    from: &InferenceFact,
    cuts: &[SliceCut],
) -> InferenceFact {
    if from.shape.is_open() {
        return fact;
    }
    // A Slice keeps the rank, even if nothing else is known.
    let fact = match fact.shape.is_open() {
        true => fact.with_shape(ShapeFactoid::closed(
            from.shape.dims().map(|_| DimFact::default()).collect(),
        )),
        false => fact,
    };
    let sliced = SlicedValue { from, cuts };
    let axes = from.shape.dims().zip(fact.shape.dims()).enumerate();
    let mut dims: TVec<DimFact> = TVec::new();
    let mut is_contradicted = false;
    for (axis, (whole, taken)) in axes {
        is_contradicted |= sliced.contradicts(axis, whole, taken);
        dims.push(sliced.dim(axis, whole, taken));
    }
    let fact = if is_contradicted {
        fact.without_value()
    } else {
        fact
    };
    fact.with_shape(ShapeFactoid::closed(dims))
}

/// A value and the cuts that a Slice makes along its axes.
struct SlicedValue<'s> {
    from: &'s InferenceFact,
    cuts: &'s [SliceCut],
}

impl SlicedValue<'_> {
    fn cuts_along(&self, axis: usize) -> impl Iterator<Item = &SliceCut> {
        self.cuts.iter().filter(move |cut| cut.axis == axis)
    }

    /// The extent of an axis after the Slice. `whole` is the extent before the Slice, and `taken`
    /// is the extent that tract infers for the result.
    fn dim(&self, axis: usize, whole: &DimFact, taken: &DimFact) -> DimFact {
        if let Some(left) = self.left(axis, whole) {
            return DimFact::from(TDim::from(left));
        }
        match (number(whole), number(taken)) {
            (None, _) if self.leaves_all(axis) => whole.clone(),
            (None, Some(1)) if self.begins_at_an_end(axis, whole) => taken.clone(),
            (None, Some(1..)) => DimFact::default(),
            _ if reaches_past(whole, taken) => DimFact::default(),
            _ => taken.clone(),
        }
    }

    /// Whether the extent that tract infers is known to be wrong.
    fn contradicts(&self, axis: usize, whole: &DimFact, taken: &DimFact) -> bool {
        match (self.left(axis, whole), number(taken)) {
            (Some(left), Some(taken)) => left != taken,
            _ => false,
        }
    }

    /// The number of places of an axis that remain, if it is known.
    fn left(&self, axis: usize, whole: &DimFact) -> Option<i64> {
        let cut = self.cuts_along(axis).next()?;
        cut.left(number(whole)).map(|left| left as i64)
    }

    /// Whether the Slice begins at the first or the last place of an axis.
    fn begins_at_an_end(&self, axis: usize, whole: &DimFact) -> bool {
        let last = whole.concretize().map(|whole| whole - 1);
        let ends = [Some(TDim::from(0)), Some(TDim::from(-1)), last];
        self.cuts_along(axis)
            .any(|cut| ends.iter().flatten().any(|end| *end == cut.start))
    }

    fn leaves_all(&self, axis: usize) -> bool {
        let beside = self.elements_beside(axis);
        self.cuts_along(axis).any(|cut| cut.leaves_all(beside))
    }

    /// The product of the known extents of the other axes.
    fn elements_beside(&self, axis: usize) -> i128 {
        let others = self
            .from
            .shape
            .dims()
            .enumerate()
            .filter(|(other, _)| *other != axis);
        let numbers = others.filter_map(|(_, dim)| number(dim).map(i128::from));
        numbers.fold(1, i128::saturating_mul)
    }
}

/// Whether a slice of `taken` places may be longer than its axis of `whole` places. That is possible
/// if `taken` is symbolic, and `whole` is another symbolic extent. If both extents differ by a known
/// number of places, the sign of this difference decides. If the extent of the axis is known, it is assumed to suffice,
/// because a table of positions has a place for each token of every valid run.
fn reaches_past(whole: &DimFact, taken: &DimFact) -> bool {
    let Some(taken) = taken.concretize().filter(|taken| taken.to_i64().is_err()) else {
        return false;
    };
    whole.concretize().is_none_or(|whole| {
        whole.to_i64().is_err() && !(whole - taken).to_i64().is_ok_and(|more| more >= 0)
    })
}

/// The axes that a Slice cuts, with their bounds.
pub(crate) fn cuts(node: &NodeProto, from: &InferenceFact, known: KnownFacts) -> Vec<SliceCut> {
    let starts = list(node, "starts", known).unwrap_or_default();
    let ends = list(node, "ends", known).unwrap_or_default();
    let axes = list(node, "axes", known).or_else(|| {
        let all = (0..starts.len()).map(TDim::from);
        is_left_out(node, 3).then(|| all.collect())
    });
    let steps = if is_left_out(node, 4) {
        vec![TDim::from(1); starts.len()]
    } else {
        list(node, "steps", known).unwrap_or_default()
    };
    let rank = from.shape.dims().count();
    let starts = axes.unwrap_or_default().into_iter().zip(starts).enumerate();
    starts
        .filter_map(|(place, (along, start))| {
            Some(SliceCut {
                axis: axis(along.to_i64().ok()?, rank).ok()?,
                start,
                end: ends.get(place).cloned(),
                step: steps.get(place).cloned(),
            })
        })
        .collect()
}

/// A list of bounds, which is an attribute or an input.
fn list(node: &NodeProto, name: &str, known: KnownFacts) -> Option<Vec<TDim>> {
    if let Some(ints) = node.attr_ints(name).ok().flatten() {
        return Some(ints.iter().map(|&int| TDim::from(int)).collect());
    }
    let (slot, _) = input_for("Slice", name)?;
    let value = known(node.input.get(slot)?)?.value.concretize()?;
    dims_of(&value)
}

fn is_left_out(node: &NodeProto, slot: usize) -> bool {
    node.input.get(slot).is_none_or(String::is_empty)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(start: i64, end: i64, step: i64) -> SliceCut {
        SliceCut {
            axis: 0,
            start: TDim::from(start),
            end: Some(TDim::from(end)),
            step: Some(TDim::from(step)),
        }
    }

    #[test]
    fn slice_extents_match_numpy() {
        // Each case has a start, an end and a step, the number of places that remain of four, and
        // the number that remains of an unknown number of places.
        let cases = [
            (0, 4, 1, Some(4), None),
            (1, i64::MAX, 2, Some(2), None),
            (-1, -3, 1, Some(0), Some(0)),
            (3, 1, 1, Some(0), Some(0)),
            (3, 1, 2, Some(0), Some(0)),
            (0, 3, -1, Some(0), Some(0)),
            (-1, i64::MIN, -1, Some(4), None),
            (-1, -5, -3, Some(2), None),
            (9, 12, 1, Some(0), None),
            (-9, 2, 1, Some(2), None),
            (0, i64::MIN, 1, Some(0), Some(0)),
            (0, -i64::MAX, 1, Some(0), Some(0)),
            (0, -9, 1, Some(0), None),
            (1, 3, 0, None, None),
        ];
        for (start, end, step, of_four, of_any) in cases {
            let cut = cut(start, end, step);
            assert_eq!(
                (cut.left(Some(4)), cut.left(None)),
                (of_four, of_any),
                "{start}:{end}:{step}"
            );
        }
    }

    #[test]
    fn slice_to_an_unreachable_end_keeps_everything() {
        let cases = [
            (0, 1_000_000_000, 1, 2048, true),
            (0, 1_000_000_000, 1, 1, false),
            (0, i64::MAX, 1, 1, true),
            (1, i64::MAX, 1, 1, false),
            (0, i64::MAX, 2, 1, false),
            (0, -1, 1, 1 << 50, false),
            (0, i64::MAX, 1, 0, false),
        ];
        for (start, end, step, beside, all) in cases {
            let cut = cut(start, end, step);
            assert_eq!(
                cut.leaves_all(beside),
                all,
                "{start}:{end}:{step} of {beside}"
            );
        }
    }
}
