//! The [`AxisRead`]s of operators that move, repeat or drop elements.

use super::{AxisRead, aligned, first, kept};
use crate::analysis::axis_factors::LayoutMap;
use crate::analysis::node_view::At;
use crate::ir::axes::{axes, axis as counted};
use crate::refusal::Reason;
use crate::shape::facts::{extent, same};

pub(super) fn read(at: &At, op: &str, axis: usize) -> Option<Result<Vec<AxisRead>, Reason>> {
    Some(match op {
        "Transpose" => transpose(at, axis),
        "Flatten" | "Reshape" | "Squeeze" | "Unsqueeze" => regrouped(at, axis),
        "Concat" => concat(at, axis),
        "Split" => split(at, 0, axis),
        "Slice" => slice(at, axis),
        "Gather" => gather(at, axis),
        "GatherElements" => gather_elements(at, axis),
        "GatherND" => gather_nd(at, axis),
        "Expand" => expand(at, axis),
        "Tile" => tile(at, axis),
        "Pad" => pad(at, axis),
        "Trilu" => trilu(at, axis),
        _ => return None,
    })
}

fn transpose(at: &At, axis: usize) -> Result<Vec<AxisRead>, Reason> {
    at.only_attributes(&["perm"])?;
    Ok(kept(at, at.permutation(at.rank(0)?)?[axis]))
}

/// The reads of a Reshape or a similar operator. An output axis corresponds to the input axis that
/// consists of the same factors. Returns an error if no input axis has these factors. An output
/// axis of extent 1 reads everything.
fn regrouped(at: &At, axis: usize) -> Result<Vec<AxisRead>, Reason> {
    at.only_attributes(&["allowzero", "axes", "axis"])?;
    let (before, behind) = (at.shape(0)?, at.output_shape(0)?);
    if extent(&behind[axis]) == Some(1) {
        return Ok(first(at, AxisRead::All, AxisRead::All));
    }
    let mut trace = LayoutMap::new(&before);
    trace
        .follow(at.proto(), &behind)
        .ok_or(Reason::UnknownShape)?;
    let from = (0..before.len()).find(|&from| trace.places(&[from]).is_some_and(|to| to == [axis]));
    from.map(|from| kept(at, from)).ok_or(Reason::UnknownShape)
}

fn concat(at: &At, axis: usize) -> Result<Vec<AxisRead>, Reason> {
    at.only_attributes(&["axis"])?;
    let along = counted(at.attr("axis", i64::MAX)?, at.output_rank(0)?)?;
    if along == axis {
        return Err(Reason::Attribute("axis".into()));
    }
    Ok(vec![AxisRead::Same(axis); at.arity()])
}

/// The reads of a Split. Each part begins where the previous part ends.
pub(super) fn split(at: &At, output: usize, axis: usize) -> Result<Vec<AxisRead>, Reason> {
    at.only_attributes(&["axis", "num_outputs", "split"])?;
    let along = counted(at.attr("axis", 0)?, at.rank(0)?)?;
    if along != axis {
        return Ok(kept(at, axis));
    }
    let mut start = 0;
    for part in 0..output {
        start += at.output_extent(part, axis)?;
    }
    Ok(first(
        at,
        AxisRead::Strided {
            axis,
            start,
            step: 1,
        },
        AxisRead::All,
    ))
}

fn slice(at: &At, axis: usize) -> Result<Vec<AxisRead>, Reason> {
    at.only_attributes(&["axes", "ends", "starts"])?;
    let starts = at.list("starts");
    let named = match at.list("axes")? {
        Some(named) => axes(&named, at.rank(0)?)?,
        None => (0..starts.clone()?.ok_or(Reason::NotConstant)?.len()).collect(),
    };
    let Some(place) = named.iter().position(|&named| named == axis) else {
        return Ok(kept(at, axis));
    };
    let starts = starts?.ok_or(Reason::NotConstant)?;
    let step = match at.list("steps")? {
        Some(steps) => *steps.get(place).ok_or(Reason::UnknownShape)?,
        None => 1,
    };
    let start = *starts.get(place).ok_or(Reason::UnknownShape)?;
    let start = if start < 0 {
        start + at.extent(0, axis)? as i64
    } else {
        start
    };
    let [Ok(start), Ok(step @ 1..)] = [start, step].map(usize::try_from) else {
        return Err(Reason::Attribute("starts".into()));
    };
    Ok(first(
        at,
        AxisRead::Strided { axis, start, step },
        AxisRead::All,
    ))
}

fn gather(at: &At, axis: usize) -> Result<Vec<AxisRead>, Reason> {
    at.only_attributes(&["axis"])?;
    let along = counted(at.attr("axis", 0)?, at.rank(0)?)?;
    let wide = at.rank(1)?;
    Ok(match axis {
        _ if axis < along => vec![AxisRead::Same(axis), AxisRead::All],
        _ if axis < along + wide => {
            vec![
                AxisRead::Picked {
                    axis: along,
                    indices: 1,
                },
                AxisRead::Same(axis - along),
            ]
        }
        _ => vec![AxisRead::Same(axis + 1 - wide), AxisRead::All],
    })
}

/// The reads of a GatherElements. Along the axes that are not indexed, the data may have more
/// places than the indices. Then only the first places are read, and the answer is unknown.
fn gather_elements(at: &At, axis: usize) -> Result<Vec<AxisRead>, Reason> {
    at.only_attributes(&["axis"])?;
    let along = counted(at.attr("axis", 0)?, at.rank(0)?)?;
    if axis == along {
        return Ok(vec![AxisRead::All, AxisRead::Same(axis)]);
    }
    let [data, indices] = [at.shape(0)?, at.shape(1)?];
    let fits = same(
        data.get(axis).unwrap_or(&None),
        indices.get(axis).unwrap_or(&None),
    );
    fits.then(|| vec![AxisRead::Same(axis); 2])
        .ok_or(Reason::UnknownShape)
}

fn gather_nd(at: &At, axis: usize) -> Result<Vec<AxisRead>, Reason> {
    at.only_attributes(&["batch_dims"])?;
    let samples = usize::try_from(at.attr("batch_dims", 0)?).map_err(|_| Reason::UnknownShape)?;
    let wide = at.rank(1)?;
    let last = wide.checked_sub(1).ok_or(Reason::UnknownShape)?;
    let depth = at.extent(1, last)?;
    Ok(match axis {
        _ if axis < samples => vec![AxisRead::Same(axis); 2],
        _ if axis < last => vec![AxisRead::All, AxisRead::Same(axis)],
        _ => vec![AxisRead::Same(samples + depth + axis - last), AxisRead::All],
    })
}

/// The reads of an Expand. Returns an error if the extent of the input axis may be either 1 or that
/// of the result.
fn expand(at: &At, axis: usize) -> Result<Vec<AxisRead>, Reason> {
    at.only_attributes(&[])?;
    let (before, behind) = (at.shape(0)?, at.output_shape(0)?);
    let read = match aligned(axis, behind.len(), before.len()) {
        None => AxisRead::Absent,
        Some(from) if extent(&before[from]) == Some(1) => AxisRead::Absent,
        Some(from) if same(&before[from], &behind[axis]) => AxisRead::Same(from),
        Some(_) => return Err(Reason::UnknownShape),
    };
    Ok(first(at, read, AxisRead::All))
}

fn tile(at: &At, axis: usize) -> Result<Vec<AxisRead>, Reason> {
    at.only_attributes(&[])?;
    let repeats = at.ints(1)?.ok_or(Reason::NotConstant)?;
    match repeats.get(axis) {
        Some(1) => Ok(kept(at, axis)),
        Some(_) if at.extent(0, axis) == Ok(1) => Ok(first(at, AxisRead::Absent, AxisRead::All)),
        _ => Err(Reason::UnknownShape),
    }
}

fn pad(at: &At, axis: usize) -> Result<Vec<AxisRead>, Reason> {
    at.only_attributes(&["mode", "pads", "value"])?;
    let rank = at.rank(0)?;
    let pads = at.list("pads")?.ok_or(Reason::NotConstant)?;
    let named = match at.input_for("axes") {
        Some(slot) => at.ints(slot)?,
        None => None,
    };
    let named = match named {
        Some(named) => axes(&named, rank)?,
        None => (0..rank).collect(),
    };
    if pads.len() != 2 * named.len() {
        return Err(Reason::Attribute("pads".into()));
    }
    let (before, behind) = pads.split_at(named.len());
    match named.iter().position(|&named| named == axis) {
        Some(place) if (before[place], behind[place]) != (0, 0) => {
            Err(Reason::Attribute("pads".into()))
        }
        _ => Ok(kept(at, axis)),
    }
}

fn trilu(at: &At, axis: usize) -> Result<Vec<AxisRead>, Reason> {
    at.only_attributes(&["upper"])?;
    if axis + 2 < at.rank(0)? {
        Ok(kept(at, axis))
    } else {
        Err(Reason::Attribute("upper".into()))
    }
}
