//! The extent of an axis behind a Slice.

use tract_onnx::prelude::{InferenceFact, TVec};
use tract_onnx::tract_hir::infer::{Factoid, ShapeFactoid};
use tract_onnx::tract_hir::internal::{DimFact, TDim};

use crate::ir::axes::axis;
use crate::onnx::operator::input_for;
use crate::onnx::proto::NodeProto;
use crate::shape::encode::dims_of;

/// From how many elements on no tensor is held: what a Slice would cut off behind as many is not there. Exporters that leave
/// an end out have it at a billion.
const NOWHERE: i128 = 1 << 40;

/// How a Slice cuts an axis, as far as that is known.
pub struct SliceCut {
    axis: usize,
    start: TDim,
    end: Option<TDim>,
    step: Option<TDim>,
}

impl SliceCut {
    /// How many places are left of so many, where all is a number: those from the start on that are before the end. tract
    /// counts them backwards where the end is before the start.
    fn left(&self, whole: Option<i64>) -> Option<usize> {
        let number = |dim: &TDim| dim.to_i64().ok().map(i128::from);
        let (start, end) = (number(&self.start)?, number(self.end.as_ref()?)?);
        let step = number(self.step.as_ref()?).filter(|&step| step != 0)?;
        let is_ahead = |start: i128, end: i128| if step > 0 { start < end } else { start > end };
        let Some(whole) = whole.map(i128::from) else {
            // Both count from the same side: the first is not before the last, however many there are. Or the end is before
            // all places.
            let is_reached = start.is_negative() != end.is_negative() || is_ahead(start, end);
            return (!is_reached || step > 0 && end <= -NOWHERE).then_some(0);
        };
        let within = |place: i128, low: i128, high: i128| {
            let place = if place < 0 { place + whole } else { place };
            place.clamp(low, high.max(low))
        };
        let (start, end) = match step > 0 {
            true => (within(start, 0, whole), within(end, 0, whole)),
            false => (within(start, 0, whole - 1), within(end, -1, whole - 1)),
        };
        let is_any = whole > 0 && is_ahead(start, end);
        usize::try_from(if is_any {
            (end - start - step.signum()) / step + 1
        } else {
            0
        })
        .ok()
    }

    /// Whether all of an axis is left, however long it is, of a value that has so many elements at each place.
    fn leaves_all(&self, beside: i128) -> bool {
        let is = |dim: &TDim, number| dim.to_i64().ok() == Some(number);
        let end = self.end.as_ref().and_then(|end| end.to_i64().ok());
        let is_far = end.is_some_and(|end| i128::from(end).saturating_mul(beside) >= NOWHERE);
        is(&self.start, 0) && self.step.as_ref().is_some_and(|step| is(step, 1)) && is_far
    }
}

/// The facts about a slice of `from`. A slice that reaches past the end is shorter than its bounds,
/// and the end of an open extent is unknown. An axis is assumed to be non-empty, so that its first
/// and its last place exist.
pub fn within_reach(fact: InferenceFact, from: &InferenceFact, cuts: &[SliceCut]) -> InferenceFact {
    if from.shape.is_open() {
        return fact;
    }
    // A Slice keeps the rank, even where all else is unknown.
    let fact = match fact.shape.is_open() {
        true => fact.with_shape(ShapeFactoid::closed(
            from.shape.dims().map(|_| DimFact::default()).collect(),
        )),
        false => fact,
    };
    let number = |dim: &DimFact| dim.concretize().and_then(|dim| dim.to_i64().ok());
    let is_there = |(axis, whole): (usize, &DimFact)| {
        let ends = [
            Some(TDim::from(0)),
            Some(TDim::from(-1)),
            whole.concretize().map(|whole| whole - 1),
        ];
        cuts.iter()
            .any(|cut| cut.axis == axis && ends.iter().flatten().any(|end| *end == cut.start))
    };
    let left = |axis: usize, whole: &DimFact| {
        let cut = cuts.iter().find(|cut| cut.axis == axis);
        cut.and_then(|cut| cut.left(number(whole)))
            .map(|left| left as i64)
    };
    let beside = |axis: usize| -> i128 {
        let others = from
            .shape
            .dims()
            .enumerate()
            .filter(|(other, _)| *other != axis);
        let known = others.filter_map(|(_, dim)| number(dim).map(i128::from));
        known.fold(1, i128::saturating_mul)
    };
    let is_left = |axis: usize| {
        cuts.iter()
            .any(|cut| cut.axis == axis && cut.leaves_all(beside(axis)))
    };
    let ends = || from.shape.dims().enumerate().zip(fact.shape.dims());
    let is_other = ends().any(|((axis, whole), taken)| {
        let (left, taken) = (left(axis, whole), number(taken));
        left.is_some() && taken.is_some() && left != taken
    });
    let dims: TVec<DimFact> = ends()
        .map(
            |((axis, whole), taken)| match (left(axis, whole), number(whole), number(taken)) {
                (Some(left), ..) => DimFact::from(TDim::from(left)),
                (_, None, _) if is_left(axis) => whole.clone(),
                (_, None, Some(1)) if is_there((axis, whole)) => taken.clone(),
                (_, None, Some(1..)) => DimFact::default(),
                _ if reaches_past(whole, taken) => DimFact::default(),
                _ => taken.clone(),
            },
        )
        .collect();
    let fact = if is_other { fact.without_value() } else { fact };
    fact.with_shape(ShapeFactoid::closed(dims))
}

/// Whether the bounds may select more places than the whole axis has: of one open extent as many as
/// of another. Tables are assumed to have as many places as there are tokens, as in each run that
/// adds the two.
fn reaches_past(whole: &DimFact, taken: &DimFact) -> bool {
    let Some(taken) = taken.concretize().filter(|taken| taken.to_i64().is_err()) else {
        return false;
    };
    whole.concretize().is_none_or(|whole| {
        whole.to_i64().is_err() && !(whole - taken).to_i64().is_ok_and(|more| more >= 0)
    })
}

/// The axes that a Slice cuts, and how.
pub fn cuts(
    node: &NodeProto,
    from: &InferenceFact,
    known: &dyn Fn(&str) -> Option<InferenceFact>,
) -> Vec<SliceCut> {
    let list = |name: &str| {
        if let Some(ints) = node.attr_ints(name).ok().flatten() {
            return Some(ints.iter().map(|&int| TDim::from(int)).collect());
        }
        dims_of(
            &*known(node.input.get(input_for("Slice", name)?.0)?)?
                .value
                .concretize()?,
        )
    };
    let is_left_out = |slot: usize| node.input.get(slot).is_none_or(String::is_empty);
    let starts = list("starts").unwrap_or_default();
    let ends = list("ends").unwrap_or_default();
    let axes = list("axes")
        .or_else(|| is_left_out(3).then(|| (0..starts.len()).map(TDim::from).collect()));
    let steps = if is_left_out(4) {
        Some(vec![TDim::from(1); starts.len()])
    } else {
        list("steps")
    };
    let steps = steps.unwrap_or_default();
    let rank = from.shape.dims().count();
    let named = axes.unwrap_or_default().into_iter().zip(starts).enumerate();
    named
        .filter_map(|(place, (along, start))| {
            let (end, step) = (ends.get(place).cloned(), steps.get(place).cloned());
            Some(SliceCut {
                axis: axis(along.to_i64().ok()?, rank).ok()?,
                start,
                end,
                step,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_places_are_left_as_numpy_leaves() {
        // Start, end, step, and how many are left of four places, and of any number of them.
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
            let cut = |number: i64| TDim::from(number);
            let cut = SliceCut {
                axis: 0,
                start: cut(start),
                end: Some(cut(end)),
                step: Some(cut(step)),
            };
            assert_eq!(
                (cut.left(Some(4)), cut.left(None)),
                (of_four, of_any),
                "{start}:{end}:{step}"
            );
        }
    }

    #[test]
    fn what_is_cut_off_behind_more_than_anybody_holds_is_not_there() {
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
            let cut = |number: i64| TDim::from(number);
            let cut = SliceCut {
                axis: 0,
                start: cut(start),
                end: Some(cut(end)),
                step: Some(cut(step)),
            };
            assert_eq!(
                cut.leaves_all(beside),
                all,
                "{start}:{end}:{step} of {beside}"
            );
        }
    }
}
