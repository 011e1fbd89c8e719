//! Replaces a Slice with a step other than 1 by a Gather along each sliced axis.
//!
//! tract fails with `Invalid axis` if a Slice with a step follows a Reshape that splits the axis.

use super::Definition;
use super::writer::Writer;
use crate::ir::axes::axis;
use crate::ir::builder::int;

/// The maximum extent of a sliced axis.
const LONGEST: i64 = 1 << 16;

pub(super) const DEFINITION: Definition = Definition {
    operator: ("", "Slice"),
    attributes: &[],
    inputs: 5,
    write,
};

fn write(writer: &mut Writer) -> Option<()> {
    let (extents, steps) = (writer.extents(0)?, writer.integers(4)?);
    let (starts, ends) = (writer.integers(1)?, writer.integers(2)?);
    let axes = match writer.input(3) {
        Some(_) => writer.integers(3)?,
        None => (0..i64::try_from(starts.len()).ok()?).collect(),
    };
    let are_alike = [&ends, &axes, &steps]
        .iter()
        .all(|list| list.len() == starts.len());
    if !are_alike || steps.iter().all(|&step| step == 1) {
        return None;
    }
    let mut value = writer.input(0)?;
    for (place, &given) in axes.iter().enumerate() {
        let axis = axis(given, extents.len()).ok()?;
        let places = places(extents[axis], starts[place], ends[place], steps[place])?;
        let list = writer.maker.ints(&places);
        value = writer
            .maker
            .op("Gather", &[&value, &list], vec![int("axis", axis as i64)]);
    }
    writer.result(0, &value)
}

/// The places of an axis that a Slice selects, in order; `None` if it selects none, or if the axis
/// is too long.
fn places(extent: i64, start: i64, end: i64, step: i64) -> Option<Vec<i64>> {
    let (mut place, end) = match step {
        0 => return None,
        1.. => (
            bound(start, extent, 0, extent),
            bound(end, extent, 0, extent),
        ),
        _ => (
            bound(start, extent, 0, extent - 1),
            bound(end, extent, -1, extent - 1),
        ),
    };
    let mut places = vec![];
    while if step > 0 { place < end } else { place > end } {
        places.push(place);
        place = place.saturating_add(step);
    }
    (!places.is_empty() && extent <= LONGEST).then_some(places)
}

/// Converts a bound to a place, and clamps the place to `low..=high`. A negative bound counts from
/// the end.
fn bound(place: i64, extent: i64, low: i64, high: i64) -> i64 {
    let place = if place < 0 {
        place.saturating_add(extent)
    } else {
        place
    };
    place.clamp(low, high)
}

#[cfg(test)]
mod tests {
    use tract_onnx::prelude::tensor2;

    use super::*;
    use crate::ops::definitions::tests::{assert_close, listed, run};
    use crate::ops::definitions::{FAILING, written_out};

    #[test]
    fn positions_match_those_of_a_slice() {
        assert_eq!(places(7, 0, i64::MAX, 2), Some(vec![0, 2, 4, 6]));
        assert_eq!(places(7, -5, -1, 3), Some(vec![2, 5]));
        assert_eq!(places(4, -1, i64::MIN, -1), Some(vec![3, 2, 1, 0]));
        assert_eq!(places(4, i64::MAX, 0, -2), Some(vec![3, 1]));
        assert_eq!((places(4, 3, 1, 1), places(4, 0, 4, 0)), (None, None));
    }

    #[test]
    fn slice_with_steps_becomes_gather() {
        let [plain, strided] = [1, 2].map(|step| {
            let lists: [(&str, &[i64], &[i64]); 4] = [
                ("s", &[2], &[0, 1]),
                ("e", &[2], &[9, 9]),
                ("a", &[2], &[0, -1]),
                ("t", &[2], &[step, 1]),
            ];
            listed("Slice x, s, e, a, t -> y", &["3", "2"], &lists)
        });
        assert!(written_out(&plain, FAILING).is_none());
        let written = written_out(&strided, FAILING).unwrap();
        assert!(
            written
                .graph()
                .node
                .iter()
                .all(|node| node.op_type() != "Slice")
        );
        let y = run(
            &written,
            &[tensor2(&[[1_f32, 2.0], [3.0, 4.0], [5.0, 6.0]])],
        );
        assert_close(&y[0], &tensor2(&[[2_f32], [6.0]]));
    }
}
