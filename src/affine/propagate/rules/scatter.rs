//! ScatterND and ScatterElements: data and updates must carry the same affine. Zeros carry every
//! scale.
//!
//! If updates are added, as the messages of a graph network are, data and updates must carry the
//! same scale. Only the data may carry a shift, because the number of additions at a place is
//! unknown.
//!
//! The indices are not known, so the affine must be constant along the indexed axes.

use crate::affine::Affine;
use crate::affine::propagate::rules::gather_nd::{axes, replaced};
use crate::affine::propagate::rules::where_op::is_zero;
use crate::affine::rule::{At, Rule, Step};
use crate::ir::axes::axis;
use crate::refusal::Reason;
use crate::shape::facts::same;

/// Operators that write into a copy of a value.
pub(super) struct Scatter;

/// The inputs with elements: data and updates.
const VALUE: usize = 0;
const WRITTEN: usize = 2;

impl Rule for Scatter {
    fn ops(&self) -> &'static [&'static str] {
        &["ScatterElements", "ScatterND"]
    }

    fn reads_numbers(&self) -> bool {
        true
    }

    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        let value = inputs.get(VALUE).cloned().flatten();
        let written = inputs.get(WRITTEN).and_then(Option::as_ref);
        let written = written.map(|affine| moved(at, affine, false)).transpose()?;
        let adds = adds(at)?;
        let affine = match (value, written) {
            (Some(value), Some(written)) if !adds && value == written => value,
            (Some(value), Some(written))
                if adds && value.scale == written.scale && written.has_no_shift() =>
            {
                value
            }
            (Some(only), None) if only.has_no_shift() && is_zero(at, WRITTEN) => only,
            (None, Some(only)) if only.has_no_shift() && is_zero(at, VALUE) => only,
            _ => return Err(Reason::ResidualStream),
        };
        moved(at, &affine, true)?;
        Ok(Step::pass_on(0, affine))
    }

    fn backward(&self, at: &At, _: usize, affine: &Affine) -> Result<Step, Reason> {
        let written = if adds(at)? {
            Affine::scale(affine.scale.clone())
        } else {
            affine.clone()
        };
        let sides = [
            (VALUE, affine.clone()),
            (WRITTEN, moved(at, &written, true)?),
        ];
        let wanted = sides
            .into_iter()
            .filter(|(slot, affine)| !affine.has_no_shift() || !is_zero(at, *slot));
        Ok(Step {
            ways: vec![wanted.collect()],
            ..Step::default()
        })
    }
}

/// Whether updates are added to the data, rather than replacing them.
fn adds(at: &At) -> Result<bool, Reason> {
    match at.attr_text("reduction", "none")? {
        "none" => Ok(false),
        "add" => Ok(true),
        _ => Err(Reason::Attribute("reduction".into())),
    }
}

/// Converts an affine of the data to an affine of the updates, or back.
fn moved(at: &At, affine: &Affine, to_written: bool) -> Result<Affine, Reason> {
    if at.proto().op_type() == "ScatterND" {
        let (indexed, picks) = axes(at)?;
        return if to_written {
            replaced(affine, indexed, picks)
        } else {
            replaced(affine, picks, indexed)
        };
    }
    let (value, written) = (at.shape(VALUE)?, at.shape(WRITTEN)?);
    if value.len() != written.len() || affine.rank() != value.len() {
        return Err(Reason::UnknownShape);
    }
    let along = axis(at.attr("axis", 0)?, value.len())?;
    for axis in affine.axes() {
        if axis == along || !same(&value[axis], &written[axis]) {
            return Err(Reason::WrongAxis);
        }
    }
    Ok(affine.clone())
}
